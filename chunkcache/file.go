package chunkcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

const (
	fileMagic   = "TIERFSCH"
	fileVersion = 1
	blockSize   = 16 << 10
	fixedHeader = 64
	pageSize    = 4096
)

// errBadChunk: what is on the disk is not what was put there. The chunk is dropped and fetched again.
var errBadChunk = errors.New("bad chunk on the cache's disk")

// blocks is how many blocks n bytes are; headerSize is what stands before them in a file, fileSize all of it.
func blocks(n int64) int64 { return (n + blockSize - 1) / blockSize }
func headerSize(n int64) int64 {
	return (fixedHeader + 8*blocks(n) + 8 + pageSize - 1) / pageSize * pageSize
}
func fileSize(n int64) int64 { return headerSize(n) + n }

// header is what a chunk file says about itself; see the package's documentation for its form.
type header struct {
	object hash
	start  int64
	length int64
	nonce  uint64
	sums   []uint64 // XXH3-64 of each block
}

func (h header) marshal() []byte {
	b := make([]byte, headerSize(h.length))
	copy(b, fileMagic)
	le := binary.LittleEndian
	le.PutUint16(b[8:], fileVersion)
	le.PutUint32(b[12:], blockSize)
	le.PutUint64(b[16:], uint64(h.start))
	le.PutUint64(b[24:], uint64(h.length))
	copy(b[32:], h.object[:])
	le.PutUint64(b[48:], h.nonce)
	at := fixedHeader
	for _, sum := range h.sums {
		le.PutUint64(b[at:], sum)
		at += 8
	}
	le.PutUint64(b[at:], xxh3.Hash(b[:at]))
	return b
}

// parseHeader decodes a whole header. Every byte of it is checked.
func parseHeader(b []byte) (header, error) {
	le := binary.LittleEndian
	if len(b) < fixedHeader || string(b[:8]) != fileMagic {
		return header{}, fmt.Errorf("%w: no chunk header", errBadChunk)
	}
	if v, bs := le.Uint16(b[8:]), le.Uint32(b[12:]); v != fileVersion || bs != blockSize {
		return header{}, fmt.Errorf("%w: version %d with blocks of %d", errBadChunk, v, bs)
	}
	h := header{start: int64(le.Uint64(b[16:])), length: int64(le.Uint64(b[24:])), object: hash(b[32:48]), nonce: le.Uint64(b[48:])}
	if h.start < 0 || h.length <= 0 || h.length > maxLength || int64(len(b)) != headerSize(h.length) {
		return header{}, fmt.Errorf("%w: header of %d bytes for [%d, +%d)", errBadChunk, len(b), h.start, h.length)
	}
	end := fixedHeader + 8*int(blocks(h.length))
	if le.Uint64(b[end:]) != xxh3.Hash(b[:end]) {
		return header{}, fmt.Errorf("%w: header checksum", errBadChunk)
	}
	unused := append(append(append([]byte(nil), b[10:12]...), b[56:fixedHeader]...), b[end+8:]...)
	if len(bytes.Trim(unused, "\x00")) > 0 {
		return header{}, fmt.Errorf("%w: reserved bytes of the header are not zero", errBadChunk)
	}
	h.sums = make([]uint64, blocks(h.length))
	for i := range h.sums {
		h.sums[i] = le.Uint64(b[fixedHeader+8*i:])
	}
	return h, nil
}

// maxLength bounds what a file's name or header may claim.
const maxLength = 1 << 32

// fileName is the name of e's file in its object's directory.
func fileName(e *extent) string {
	return fmt.Sprintf("%020d-%d-%016x", e.start, e.length(), e.nonce)
}

// parseFileName reads what fileName wrote, and nothing else.
func parseFileName(name string) (start, length int64, nonce uint64, ok bool) {
	f := strings.Split(name, "-")
	if len(f) != 3 || len(f[0]) != 20 || len(f[2]) != 16 {
		return 0, 0, 0, false
	}
	start, err1 := strconv.ParseInt(f[0], 10, 64)
	length, err2 := strconv.ParseInt(f[1], 10, 64)
	nonce, err3 := strconv.ParseUint(f[2], 16, 64)
	if errors.Join(err1, err2, err3) != nil || start < 0 || length <= 0 || length > maxLength || start > start+length {
		return 0, 0, 0, false
	}
	e := extent{start: start, end: start + length, nonce: nonce}
	return start, length, nonce, name == fileName(&e)
}

// chunkFile is an open chunk file. Its methods may be called in parallel.
type chunkFile struct {
	fd     int
	length int64
	sums   []uint64
}

func (f *chunkFile) close() {
	if f != nil {
		unix.Close(f.fd) // read only, or never synced: there is nothing to lose
	}
}

// readAt fills p with the bytes at off of the chunk. Every block that it touches is checked as a whole; scratch holds
// *[blockSize]byte for blocks of which only a part is asked for.
func (f *chunkFile) readAt(p []byte, off int64, scratch *sync.Pool) error {
	for len(p) > 0 {
		block := off / blockSize
		lo := block * blockSize
		var n int
		var err error
		if whole := f.wholeBlocks(off, int64(len(p))); whole > 0 {
			n = int(whole)
			err = f.readBlocks(p[:n], block)
		} else {
			buf := scratch.Get().(*[blockSize]byte)
			have := min(blockSize, f.length-lo)
			if err = f.readBlocks(buf[:have], block); err == nil {
				n = copy(p, buf[off-lo:have])
			}
			scratch.Put(buf)
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// wholeBlocks is how many bytes from off on, of n, can be read as whole blocks: 0 when off is inside a block.
func (f *chunkFile) wholeBlocks(off, n int64) int64 {
	if off%blockSize != 0 {
		return 0
	}
	if off+n == f.length {
		return n
	}
	return n / blockSize * blockSize
}

// readBlocks reads whole blocks, the last one of the chunk being a short one, and checks them.
func (f *chunkFile) readBlocks(p []byte, block int64) error {
	if err := pread(f.fd, p, headerSize(f.length)+block*blockSize); err != nil {
		return fmt.Errorf("%w: block %d: %w", errBadChunk, block, err)
	}
	for ; len(p) > 0; block++ {
		n := min(blockSize, len(p))
		if xxh3.Hash(p[:n]) != f.sums[block] {
			return fmt.Errorf("%w: block %d: checksum", errBadChunk, block)
		}
		p = p[n:]
	}
	return nil
}

// pread fills p from off; the end of the file is an error.
func pread(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(fd, p, off)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			p, off = p[n:], off+int64(n)
		}
	}
	return nil
}

// pwrite writes all of p at off.
func pwrite(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		default:
			p, off = p[n:], off+int64(n)
		}
	}
	return nil
}

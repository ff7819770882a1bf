package chunkcache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

const (
	chunksDir  = "chunks"
	accessFile = "access"
	partSuffix = ".part"
	tagFile    = "CACHEDIR.TAG"
	// tagText tells backup programs to pass the directory by (https://bford.info/cachedir/).
	tagText = "Signature: 8a477f597d28d172789f06886806bc55\n# This directory holds copies of objects that tierfs can fetch again.\n"
)

// disk is the directory on disk. Everything is reached relative to its descriptor. Errors name what was done to which file.
type disk struct{ dir int }

// dirName is the directory of an object: what identifies it, and, for people, the end of its key.
func dirName(h hash, key string) string {
	const readable = 160
	if len(key) > readable {
		key = key[len(key)-readable:]
	}
	return fmt.Sprintf("%x-%s", h[:], strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '_'
	}, key))
}

// parseDirName reads the hash that a directory's name begins with.
func parseDirName(name string) (h hash, ok bool) {
	digits, _, found := strings.Cut(name, "-")
	if !found || len(digits) != 2*len(h) || digits != strings.ToLower(digits) {
		return h, false
	}
	_, err := hex.Decode(h[:], []byte(digits))
	return h, err == nil
}

func (d disk) open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(d.dir, path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR:
		default:
			return -1, fmt.Errorf("open %s: %w", path, err)
		}
	}
}

// create makes a new file, and the directories that it stands in where they are missing: another goroutine may just be
// removing them.
func (d disk) create(dir, name string) (fd int, err error) {
	object := chunksDir + "/" + dir
	for range 10 {
		fd, err = d.open(object+"/"+name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		if !errors.Is(err, unix.ENOENT) {
			return fd, err
		}
		for _, p := range []string{chunksDir, object} {
			if err := unix.Mkdirat(d.dir, p, 0o700); err != nil && err != unix.EEXIST && err != unix.ENOENT {
				return -1, fmt.Errorf("make %s: %w", p, err)
			}
		}
	}
	return fd, err
}

// write makes e's file of data and leaves it open. When it fails nothing is left behind that a later start would not remove.
func (d disk) write(e *extent, data []byte) (*chunkFile, error) {
	h := header{object: e.obj.hash, start: e.start, length: e.length(), nonce: e.nonce, sums: make([]uint64, 0, blocks(e.length()))}
	for rest := data; len(rest) > 0; rest = rest[min(blockSize, len(rest)):] {
		h.sums = append(h.sums, xxh3.Hash(rest[:min(blockSize, len(rest))]))
	}
	name := fileName(e)
	fd, err := d.create(e.obj.dir, name+partSuffix)
	if err != nil {
		return nil, err
	}
	path := chunksDir + "/" + e.obj.dir + "/" + name
	b := h.marshal()
	if err = pwrite(fd, b, 0); err == nil {
		err = pwrite(fd, data, int64(len(b)))
	}
	if err == nil {
		err = unix.Renameat(d.dir, path+partSuffix, d.dir, path)
	}
	if err != nil {
		unix.Close(fd)
		unix.Unlinkat(d.dir, path+partSuffix, 0)
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return &chunkFile{fd: fd, length: h.length, sums: h.sums}, nil
}

// read opens e's file and checks that it is that. sums are its checksums where they are known.
func (d disk) read(e *extent, sums []uint64) (*chunkFile, error) {
	path := chunksDir + "/" + e.obj.dir + "/" + fileName(e)
	fd, err := d.open(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBadChunk, err)
	}
	f := &chunkFile{fd: fd, length: e.length(), sums: sums}
	if err := f.check(e); err != nil {
		f.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (f *chunkFile) check(e *extent) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("%w: %w", errBadChunk, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != fileSize(f.length) {
		return fmt.Errorf("%w: mode %o, %d bytes", errBadChunk, st.Mode, st.Size)
	}
	if f.sums != nil {
		return nil
	}
	b := make([]byte, headerSize(f.length))
	if err := pread(f.fd, b, 0); err != nil {
		return fmt.Errorf("%w: %w", errBadChunk, err)
	}
	h, err := parseHeader(b)
	if err != nil {
		return err
	}
	if h.object != e.obj.hash || h.start != e.start || h.length != f.length || h.nonce != e.nonce {
		return fmt.Errorf("%w: it belongs elsewhere", errBadChunk)
	}
	f.sums = h.sums
	return nil
}

// unlink removes a chunk file; that it is gone already is no error. What has taken its place and is no file is left.
func (d disk) unlink(dir, name string) error {
	path := chunksDir + "/" + dir + "/" + name
	err := unix.Unlinkat(d.dir, path, 0)
	if err == unix.EISDIR {
		err = unix.Unlinkat(d.dir, path, unix.AT_REMOVEDIR)
		if err == unix.ENOTEMPTY {
			return nil
		}
	}
	if err != nil && err != unix.ENOENT && err != unix.ENOTDIR {
		return fmt.Errorf("unlink %s: %w", path, err)
	}
	return nil
}

// rmdir removes an object's directory if it is empty.
func (d disk) rmdir(dir string) {
	unix.Unlinkat(d.dir, chunksDir+"/"+dir, unix.AT_REMOVEDIR)
}

// list opens a directory for reading its names.
func (d disk) list(path string) (*os.File, error) {
	fd, err := d.open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

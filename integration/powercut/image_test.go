package powercut

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// blockSize is what a disk writes whole or not at all.
const blockSize = 4096

// The kinds of entries.
const (
	writeEntry uint64 = iota + 1
	zeroEntry
	flushEntry
)

// entry is one change of the image, or a flush. In the log it is its three numbers, 8 bytes each, little-endian, and the bytes
// of a write behind them.
type entry struct {
	kind           uint64
	offset, length int64 // of the image, in bytes
}

func (e entry) write(w io.Writer, data []byte) error {
	var head [24]byte
	binary.LittleEndian.PutUint64(head[:], e.kind)
	binary.LittleEndian.PutUint64(head[8:], uint64(e.offset))
	binary.LittleEndian.PutUint64(head[16:], uint64(e.length))
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

// readEntry reads the next entry; data are the bytes of a write.
func readEntry(r io.Reader) (e entry, data []byte, err error) {
	var head [24]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return e, nil, err
	}
	e.kind = binary.LittleEndian.Uint64(head[:])
	e.offset = int64(binary.LittleEndian.Uint64(head[8:]))
	e.length = int64(binary.LittleEndian.Uint64(head[16:]))
	if e.kind == writeEntry {
		data = make([]byte, e.length)
		_, err = io.ReadFull(r, data)
	}
	return e, data, err
}

// apply does to an image what the entry says.
func (e entry) apply(image *os.File, data []byte) (err error) {
	switch e.kind {
	case writeEntry:
		_, err = image.WriteAt(data, e.offset)
	case zeroEntry:
		err = unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, e.offset, e.length)
	}
	return err
}

// applySome does it for some of the blocks.
func (e entry) applySome(image *os.File, data []byte, keep func() bool) error {
	for at := int64(0); at < e.length; {
		n := min(blockSize-(e.offset+at)%blockSize, e.length-at)
		part := entry{e.kind, e.offset + at, n}
		if keep() {
			var bytes []byte
			if e.kind == writeEntry {
				bytes = data[at : at+n]
			}
			if err := part.apply(image, bytes); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// history replays a disk's log into images. Cuts have to come in their order.
type history struct {
	dir     string
	log     *os.File
	from    *bufio.Reader
	safe    *os.File // the image of everything up to the last flush
	entries int      // how many of the log were read
	open    []change // those behind the last flush
	deafAt  int      // after so many entries no flush is heard: the disk lies; 0: never
}

type change struct {
	entry
	data []byte
}

func newHistory(dir string) (*history, error) {
	h := &history{dir: dir}
	path := filepath.Join(dir, "safe")
	err := clone(filepath.Join(dir, baseFile), path)
	if err == nil {
		h.safe, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err == nil {
		h.log, err = os.Open(filepath.Join(dir, logFile))
	}
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	h.from = bufio.NewReaderSize(h.log, 1<<20)
	return h, nil
}

func (h *history) close() error {
	var errs []error
	for _, f := range []*os.File{h.log, h.safe} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// goTo reads on until so many entries were read.
func (h *history) goTo(entries int) error {
	for ; h.entries < entries; h.entries++ {
		e, data, err := readEntry(h.from)
		if err != nil {
			return fmt.Errorf("entry %d of the disk's log: %w", h.entries, err)
		}
		if e.kind != flushEntry {
			h.open = append(h.open, change{e, data})
			continue
		}
		if h.deafAt > 0 && h.entries >= h.deafAt {
			continue
		}
		for _, c := range h.open {
			if err := c.apply(h.safe, c.data); err != nil {
				return err
			}
		}
		h.open = nil
	}
	return nil
}

// image writes what a cut here leaves to path: all that was flushed, and of the rest each block with this probability. What
// is kept depends on the seed alone.
func (h *history) image(path string, seed uint64, kept float64) error {
	if err := clone(h.safe.Name(), path); err != nil {
		return err
	}
	image, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, uint64(h.entries)))
	for _, c := range h.open {
		if err := c.applySome(image, c.data, func() bool { return random.Float64() < kept }); err != nil {
			return errors.Join(err, image.Close())
		}
	}
	return image.Close()
}

// clone copies a file, holes as holes.
func clone(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	if err := dst.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); ; {
		begin, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		} else if err != nil {
			return err
		}
		if at, err = unix.Seek(int(src.Fd()), begin, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(dst, begin), io.NewSectionReader(src, begin, at-begin)); err != nil {
			return err
		}
	}
}

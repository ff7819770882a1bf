package objstore

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/minio/crc64nvme"
)

// Body is what a Put stores: Size bytes of R from offset 0, and their checksum.
// The checksum was taken before the first try, so a source that changes meanwhile
// is refused by a store that enforces checksums. R is read by several goroutines
// one after the other, from the start again for each try, and must stay open
// until Put returns; Put never reads it afterwards.
type Body struct {
	R    io.ReaderAt
	Size int64
	// CRC64NVME is the CRC-64/NVME of the Size bytes, as in the header
	// x-amz-checksum-crc64nvme.
	CRC64NVME uint64
}

// NewBody reads size bytes of r once to compute the checksum. ErrInvalid when
// there are fewer.
func NewBody(r io.ReaderAt, size int64) (Body, error) {
	sum, err := Checksum(io.NewSectionReader(r, 0, size), size)
	if err != nil {
		return Body{}, err
	}
	return Body{R: r, Size: size, CRC64NVME: sum}, nil
}

// BytesBody is a Body of bytes in memory, which must not change until Put returns.
func BytesBody(b []byte) Body {
	return Body{R: bytes.NewReader(b), Size: int64(len(b)), CRC64NVME: crc64nvme.Checksum(b)}
}

// Checksum reads exactly size bytes of r and returns their CRC-64/NVME. An end
// before that is ErrInvalid around io.ErrUnexpectedEOF; other errors of r are
// returned wrapped.
func Checksum(r io.Reader, size int64) (uint64, error) {
	h := crc64nvme.New()
	n, err := io.CopyBuffer(h, io.LimitReader(r, size), make([]byte, 1<<20))
	if err != nil {
		return 0, fmt.Errorf("read body at %d of %d: %w", n, size, err)
	}
	if n != size {
		return 0, shortBody(n, size)
	}
	return h.Sum64(), nil
}

func shortBody(n, size int64) error {
	return fmt.Errorf("%w: body ended at %d of %d: %w", ErrInvalid, n, size, io.ErrUnexpectedEOF)
}

// Reader returns a new reader of the whole body for one try. It remembers what
// went wrong with the source, which a transport tends to hide.
func (b Body) Reader() *BodyReader {
	return &BodyReader{s: io.NewSectionReader(b.R, 0, b.Size), size: b.Size}
}

// BodyReader reads a Body once, for a transport that may still be reading when
// its caller has given up. Safe for use by several goroutines.
type BodyReader struct {
	size int64

	mu     sync.Mutex // held while the source is read, so that Close waits for it
	s      *io.SectionReader
	pos    int64
	err    error
	closed bool
}

// Read reads on; an end before the body's size is an error, never io.EOF.
func (r *BodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, fmt.Errorf("%w: read of a closed body", ErrInvalid)
	}
	n, err := r.s.Read(p)
	r.pos += int64(n)
	if err == io.EOF && r.pos < r.size {
		err = shortBody(r.pos, r.size)
	}
	if err == nil || err == io.EOF {
		return n, err
	}
	err = fmt.Errorf("read body at %d: %w", r.pos, err)
	if r.err == nil {
		r.err = err
	}
	return n, err
}

// Seek is io.Seeker's: a request signer and a transport may start over.
func (r *BodyReader) Seek(offset int64, whence int) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pos, err := r.s.Seek(offset, whence)
	if err == nil {
		r.pos = pos
	}
	return pos, err
}

// Err is the first failure of the source, nil while there is none.
func (r *BodyReader) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Close returns when nobody reads the source any more; later reads fail.
func (r *BodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

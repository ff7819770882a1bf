package segment

import (
	"errors"
	"fmt"
	"io"
)

// windowSize is how much of a segment is in memory during a Walk.
const windowSize = 256 << 10

// window shows a stretch of a segment at a time. Its slices are valid until the next call.
type window struct {
	r      io.Reader // nil: buf holds all there is
	buf    []byte
	lo, hi int   // buf[lo:hi] is read and not yet consumed
	unread int64 // bytes of the segment still in r
	pos    int64 // position of buf[lo] in the segment
}

func newWindow(r io.Reader, size int64) window {
	return window{r: r, buf: make([]byte, min(size, windowSize)), unread: size}
}

// rest is how many bytes of the segment are not consumed.
func (w *window) rest() int64 { return int64(w.hi-w.lo) + w.unread }

// peek shows the next n bytes; n must be at most windowSize.
func (w *window) peek(n int) ([]byte, error) {
	if w.hi-w.lo < n {
		if err := w.fill(n); err != nil {
			return nil, err
		}
	}
	return w.buf[w.lo : w.lo+n], nil
}

// some consumes at least one and at most limit bytes; limit must be positive and at most rest.
func (w *window) some(limit int64) ([]byte, error) {
	if w.hi == w.lo {
		if err := w.fill(1); err != nil {
			return nil, err
		}
	}
	n := int(min(limit, int64(w.hi-w.lo)))
	b := w.buf[w.lo : w.lo+n]
	w.skip(n)
	return b, nil
}

// skip consumes n bytes that were seen.
func (w *window) skip(n int) {
	w.lo += n
	w.pos += int64(n)
}

// fill reads until n bytes can be seen, and as much more as fits.
func (w *window) fill(n int) error {
	if int64(n) > w.rest() {
		return ErrTorn
	}
	w.hi = copy(w.buf, w.buf[w.lo:w.hi])
	w.lo = 0
	room := min(int64(len(w.buf)-w.hi), w.unread)
	got, err := io.ReadAtLeast(w.r, w.buf[w.hi:w.hi+int(room)], n-w.hi)
	w.hi += got
	w.unread -= int64(got)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %d bytes are missing", ErrTorn, w.unread)
	}
	return fmt.Errorf("read: %w", err)
}

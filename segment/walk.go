package segment

import (
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
)

// Walk reads a segment of size bytes and the stem start from r, in one pass and to its last byte, and proves it whole;
// see the package comment. each is called for every batch, in order, after it was verified, and may be nil; its error
// ends the walk and is returned as it is. The errors of this package are wrapped with the position; those of r are
// wrapped. Walk takes 256 KiB of memory for any segment and allocates nothing per batch. It reads no byte beyond size.
//
// The first batch's base offset is at least start under Kafka, where compaction and deletions leave gaps, and start
// itself under Iggy. Generic data is read to size, and its End is start.
func Walk(r io.Reader, size int64, start uint64, f Format, each func(Batch) error) (Summary, error) {
	sum := Summary{Start: start, End: start, Size: size}
	if size <= 0 {
		return Summary{}, fmt.Errorf("%w: %d bytes", ErrEmpty, size)
	}
	s := &scanner{window: newWindow(r, size), format: f, last: start}
	if f == Generic {
		if err := s.readAll(); err != nil {
			return Summary{}, err
		}
		return sum, nil
	}
	for s.rest() > 0 {
		b, err := s.next()
		if err != nil {
			return Summary{}, err
		}
		if sum.Batches == 0 && f == Iggy && b.Base != start {
			return Summary{}, fmt.Errorf("batch at 0: %w: base offset %d, the stem is %d", ErrOrder, b.Base, start)
		}
		sum.Batches++
		sum.End = b.Last
		sum.MaxTimestamp = max(sum.MaxTimestamp, b.MaxTimestamp)
		if sum.FirstTimestamp == 0 {
			sum.FirstTimestamp = b.FirstTimestamp
		}
		if each != nil {
			if err := each(b); err != nil {
				return Summary{}, err
			}
		}
	}
	return sum, nil
}

// Check verifies every whole batch in data, which starts where a batch starts, and returns how many bytes they cover.
// A batch of which data holds only a part is not covered and no error. On an error, covered is where the bad batch
// starts; where two do not follow each other either may be bad, and it is the first. Generic data is covered as it is.
//
// Offsets must lie between first and last, both inclusive: a batch's checksum does not cover its base offset.
func Check(data []byte, f Format, first, last uint64) (covered int64, err error) {
	if f == Generic {
		return int64(len(data)), nil
	}
	s := &scanner{window: window{buf: data, hi: len(data)}, format: f, last: first}
	before := int64(0) // where the batch before the one at hand starts
	for s.rest() > 0 {
		b, err := s.next()
		switch {
		case errors.Is(err, ErrTorn):
			return covered, nil
		case errors.Is(err, ErrOrder):
			return before, err
		case err == nil && b.Last > last:
			err = fmt.Errorf("batch at %d: %w: last offset %d, the segment ends at %d", b.Position, ErrOrder, b.Last, last)
		}
		if err != nil {
			return covered, err
		}
		before, covered = b.Position, b.Position+b.Size
	}
	return covered, nil
}

// Headers reads the batch headers, and nothing else, from position from (a batch's start) to size and calls each for
// every one, until that fails. No checksum is looked at. It fails as Walk does when the headers do not land exactly on
// size.
func Headers(r io.ReaderAt, from, size int64, f Format, each func(Batch) error) error {
	n, err := headerSize(f)
	if err != nil {
		return err
	}
	h := make([]byte, n)
	for from < size {
		if size-from < int64(n) {
			return fmt.Errorf("batch at %d: %w", from, ErrTorn)
		}
		if got, err := r.ReadAt(h, from); got < n {
			if errors.Is(err, io.EOF) {
				err = ErrTorn
			}
			return fmt.Errorf("batch at %d: read: %w", from, err)
		}
		b, err := parseHeader(h, f)
		if err == nil && b.Size > size-from {
			err = ErrTorn
		}
		if err != nil {
			return fmt.Errorf("batch at %d: %w", from, err)
		}
		b.Position = from
		if err := each(b); err != nil {
			return err
		}
		from += b.Size
	}
	return nil
}

// scanner verifies the batches of a segment one after the other.
type scanner struct {
	window
	format Format
	begun  bool
	last   uint64 // offset of the last record so far; before the first batch the lowest that is allowed
	// Hashers of the batch and of the frame at hand, under Iggy.
	batch, frame xxh3.Hasher
}

// next verifies and consumes one batch; ErrTorn says that it is not all there.
func (s *scanner) next() (Batch, error) {
	pos := s.pos
	b, err := s.header()
	if err == nil {
		b.Position = pos
		err = s.follow(b)
	}
	if err == nil {
		if s.format == Kafka {
			err = s.verifyKafka(b)
		} else {
			err = s.verifyIggy(b)
		}
	}
	if err != nil {
		return Batch{}, fmt.Errorf("batch at %d: %w", pos, err)
	}
	s.last, s.begun = b.Last, true
	return b, nil
}

// header decodes the next batch's header without consuming it.
func (s *scanner) header() (Batch, error) {
	n, err := headerSize(s.format)
	if err != nil {
		return Batch{}, err
	}
	h, err := s.peek(n)
	if err != nil {
		return Batch{}, err
	}
	b, err := parseHeader(h, s.format)
	if err == nil && b.Size > s.rest() {
		err = fmt.Errorf("%w: a batch of %d bytes in %d", ErrTorn, b.Size, s.rest())
	}
	return b, err
}

func (s *scanner) follow(b Batch) error {
	if b.Base < s.last || (s.begun && b.Base == s.last) {
		return fmt.Errorf("%w: base offset %d after %d", ErrOrder, b.Base, s.last)
	}
	return nil
}

func (s *scanner) readAll() error {
	for s.rest() > 0 {
		if _, err := s.some(s.rest()); err != nil {
			return fmt.Errorf("at %d: %w", s.pos, err)
		}
	}
	return nil
}

func headerSize(f Format) (int, error) {
	switch f {
	case Kafka:
		return kafkaHeaderSize, nil
	case Iggy:
		return iggyHeaderSize, nil
	}
	return 0, fmt.Errorf("%w: %s has no batches", ErrFormat, f)
}

func parseHeader(h []byte, f Format) (Batch, error) {
	if f == Kafka {
		return parseKafka(h)
	}
	return parseIggy(h)
}

package segment

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"
)

const (
	iggyHeaderSize  = 256
	iggyHeaderUsed  = 52 // zeros from here to the end of the header
	iggyFrameHeader = 48
	iggyMaxBatch    = 64<<20 + iggyHeaderSize
	iggyFrameWhole  = 64 << 10 // frames up to this size are hashed in one go
)

// parseIggy decodes the header of a batch, without its position.
func parseIggy(h []byte) (Batch, error) {
	le := binary.LittleEndian
	base := le.Uint64(h[8:])
	length := le.Uint64(h[32:])
	messages := uint64(le.Uint32(h[48:]))
	switch {
	case length < iggyHeaderSize || length > iggyMaxBatch:
		return Batch{}, fmt.Errorf("%w: length %d", ErrNotBatch, length)
	case messages == 0 || messages*iggyFrameHeader > length-iggyHeaderSize:
		return Batch{}, fmt.Errorf("%w: %d messages in %d bytes", ErrNotBatch, messages, length)
	case base > math.MaxUint64-(messages-1):
		return Batch{}, fmt.Errorf("%w: base offset %d, %d messages", ErrNotBatch, base, messages)
	case !zeros(h[iggyHeaderUsed:]):
		return Batch{}, fmt.Errorf("%w: the end of the header is not zero", ErrNotBatch)
	}
	stamp := int64(min(le.Uint64(h[16:]), math.MaxInt64))
	return Batch{Size: int64(length), Base: base, Last: base + messages - 1, FirstTimestamp: stamp, MaxTimestamp: stamp}, nil
}

func zeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// verifyIggy consumes the batch b, which lies wholly in what is left of the window.
func (s *scanner) verifyIggy(b Batch) error {
	h, err := s.peek(iggyHeaderSize)
	if err != nil {
		return err
	}
	want := binary.LittleEndian.Uint64(h[40:])
	s.batch.Reset()
	_, _ = s.batch.Write(h[:40])
	_, _ = s.batch.Write(h[48:iggyHeaderUsed])
	s.skip(iggyHeaderSize)
	left := b.Size - iggyHeaderSize
	for i := range b.Last - b.Base + 1 {
		n, err := s.verifyFrame(i, left)
		if err != nil {
			return fmt.Errorf("message %d: %w", b.Base+i, err)
		}
		left -= n
	}
	if left != 0 {
		return fmt.Errorf("%w: %d bytes after its last message", ErrNotBatch, left)
	}
	if sum := s.batch.Sum64(); sum != want {
		return fmt.Errorf("%w: XXH3 is %016x, the header says %016x", ErrChecksum, sum, want)
	}
	return nil
}

// verifyFrame consumes frame number i of a batch that has left bytes left, adds its checksum to the batch's, and
// returns its size.
func (s *scanner) verifyFrame(i uint64, left int64) (int64, error) {
	if left < iggyFrameHeader {
		return 0, fmt.Errorf("%w: the batch is too short for its message count", ErrNotBatch)
	}
	h, err := s.peek(iggyFrameHeader)
	if err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	want := le.Uint64(h)
	size := iggyFrameHeader + int64(le.Uint32(h[32:])) + int64(le.Uint32(h[36:]))
	switch {
	case size > left:
		return 0, fmt.Errorf("%w: a message of %d bytes in %d", ErrNotBatch, size, left)
	case uint64(le.Uint32(h[24:])) != i:
		return 0, fmt.Errorf("%w: offset delta %d", ErrNotBatch, le.Uint32(h[24:]))
	case le.Uint64(h[40:]) != 0:
		return 0, fmt.Errorf("%w: the end of the message header is not zero", ErrNotBatch)
	}
	_, _ = s.batch.Write(h[:8])
	sum, err := s.hashFrame(size)
	if err != nil {
		return 0, err
	}
	if sum != want {
		return 0, fmt.Errorf("%w: XXH3 is %016x, the message says %016x", ErrChecksum, sum, want)
	}
	return size, nil
}

// hashFrame consumes a frame of size bytes and gives the XXH3-64 of all but its first 8.
func (s *scanner) hashFrame(size int64) (uint64, error) {
	if size <= iggyFrameWhole {
		p, err := s.peek(int(size))
		if err != nil {
			return 0, err
		}
		sum := xxh3.Hash(p[8:])
		s.skip(int(size))
		return sum, nil
	}
	s.frame.Reset()
	s.skip(8)
	for left := size - 8; left > 0; {
		p, err := s.some(left)
		if err != nil {
			return 0, err
		}
		_, _ = s.frame.Write(p)
		left -= int64(len(p))
	}
	return s.frame.Sum64(), nil
}

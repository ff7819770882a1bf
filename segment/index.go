package segment

import (
	"encoding/binary"
	"fmt"
	"math"
)

const (
	kafkaEntrySize = 8
	iggyEntrySize  = 24
)

// Boundaries decodes an index file into the batch starts that it names, ascending, as positions in a segment of size
// bytes; 0 always comes first. The zeros behind a live Kafka index are ignored. Positions and offsets must ascend and
// positions must lie in the segment, otherwise ErrIndex. Whether a batch really starts there only Walk can tell.
// Generic segments have the boundary 0.
func Boundaries(index []byte, size int64, f Format) ([]int64, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: of a segment of %d bytes", ErrIndex, size)
	}
	switch f {
	case Kafka:
		return boundaries(index, size, kafkaEntrySize, kafkaEntry)
	case Iggy:
		return boundaries(index, size, iggyEntrySize, iggyEntry)
	case Generic:
		return []int64{0}, nil
	}
	return nil, fmt.Errorf("%w: %s has no index", ErrFormat, f)
}

func boundaries(index []byte, size int64, entry int, decode func([]byte) (uint64, int64)) ([]int64, error) {
	if len(index)%entry != 0 {
		return nil, fmt.Errorf("%w: %d bytes are no multiple of %d", ErrIndex, len(index), entry)
	}
	n := len(index) / entry
	if entry == kafkaEntrySize {
		n = kafkaEntries(index)
	}
	out := make([]int64, 1, n+1)
	var lastOffset uint64
	for i := range n {
		offset, position := decode(index[i*entry:])
		last := out[len(out)-1]
		switch {
		case position < 0 || position >= size:
			return nil, fmt.Errorf("%w: entry %d: position %d of %d", ErrIndex, i, position, size)
		case i > 0 && (position <= last || offset <= lastOffset):
			return nil, fmt.Errorf("%w: entry %d: offset %d at %d after %d at %d", ErrIndex, i, offset, position, lastOffset, last)
		case position > 0:
			out = append(out, position)
		}
		lastOffset = offset
	}
	return out, nil
}

// kafkaEntries counts the entries before the zero tail.
func kafkaEntries(index []byte) int {
	n := len(index) / kafkaEntrySize
	for n > 0 && binary.NativeEndian.Uint64(index[(n-1)*kafkaEntrySize:]) == 0 {
		n--
	}
	return n
}

// kafkaEntry decodes an entry. Neither number may be negative: the position then is.
func kafkaEntry(b []byte) (offset uint64, position int64) {
	relative, at := int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[4:]))
	if relative < 0 {
		return 0, -1
	}
	return uint64(relative), int64(at)
}

func iggyEntry(b []byte) (offset uint64, position int64) {
	return binary.LittleEndian.Uint64(b), int64(min(binary.LittleEndian.Uint64(b[16:]), math.MaxInt64))
}

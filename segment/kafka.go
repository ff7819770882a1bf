package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

const (
	kafkaHeaderSize = 61
	kafkaPrefixSize = 12 // base offset and length, which the length does not count
	kafkaCRCFrom    = 21 // the checksum covers the batch from here on
	kafkaMagic      = 2

	kafkaLogAppendTime = 1 << 3 // attribute: every record has the max timestamp
	kafkaDeleteHorizon = 1 << 6 // attribute: the base timestamp is the time after which tombstones may go
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parseKafka decodes the header of a record batch, without its position.
func parseKafka(h []byte) (Batch, error) {
	be := binary.BigEndian
	base := int64(be.Uint64(h))
	length := int32(be.Uint32(h[8:]))
	delta := int32(be.Uint32(h[23:]))
	records := int32(be.Uint32(h[57:]))
	switch {
	case h[16] != kafkaMagic:
		return Batch{}, fmt.Errorf("%w: magic is %d, not %d", ErrNotBatch, h[16], kafkaMagic)
	case length < kafkaHeaderSize-kafkaPrefixSize:
		return Batch{}, fmt.Errorf("%w: length %d", ErrNotBatch, length)
	case base < 0 || delta < 0 || base > math.MaxInt64-int64(delta):
		return Batch{}, fmt.Errorf("%w: base offset %d, last offset delta %d", ErrNotBatch, base, delta)
	case records < 0:
		return Batch{}, fmt.Errorf("%w: %d records", ErrNotBatch, records)
	}
	b := Batch{
		Size:           kafkaPrefixSize + int64(length),
		Base:           uint64(base),
		Last:           uint64(base + int64(delta)),
		FirstTimestamp: microseconds(int64(be.Uint64(h[27:]))),
		MaxTimestamp:   microseconds(int64(be.Uint64(h[35:]))),
	}
	switch attributes := be.Uint16(h[21:]); {
	case attributes&kafkaDeleteHorizon != 0:
		b.FirstTimestamp = 0
	case attributes&kafkaLogAppendTime != 0:
		b.FirstTimestamp = b.MaxTimestamp
	}
	return b, nil
}

// microseconds converts from milliseconds. Negative means none under Kafka; producers may send anything.
func microseconds(ms int64) int64 {
	switch {
	case ms < 0:
		return 0
	case ms > math.MaxInt64/1000:
		return math.MaxInt64
	}
	return ms * 1000
}

// verifyKafka consumes the batch b, which lies wholly in what is left of the window.
func (s *scanner) verifyKafka(b Batch) error {
	h, err := s.peek(kafkaHeaderSize)
	if err != nil {
		return err
	}
	want := binary.BigEndian.Uint32(h[17:])
	s.skip(kafkaCRCFrom)
	var sum uint32
	for left := b.Size - kafkaCRCFrom; left > 0; {
		p, err := s.some(left)
		if err != nil {
			return err
		}
		sum = crc32.Update(sum, castagnoli, p)
		left -= int64(len(p))
	}
	if sum != want {
		return fmt.Errorf("%w: CRC-32C is %08x, the header says %08x", ErrChecksum, sum, want)
	}
	return nil
}

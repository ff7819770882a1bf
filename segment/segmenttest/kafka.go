package segmenttest

import (
	"encoding/binary"
	"hash/crc32"
	"time"
)

// kafkaIndexInterval is Kafka's default for index.interval.bytes.
const kafkaIndexInterval = 4096

// Kafka makes a segment that starts at offset start and has batches record batches, each of recordsPerBatch records of
// payload bytes, and its trimmed offset index. next is the offset after the last record.
func Kafka(start uint64, batches, recordsPerBatch, payload int) (log, index []byte, next uint64) {
	next = start
	indexed := 0
	for range batches {
		b := KafkaBatch(next, Time(next), payloads(next, recordsPerBatch, payload))
		last := next + uint64(recordsPerBatch) - 1
		if len(log)-indexed > kafkaIndexInterval {
			index = binary.BigEndian.AppendUint32(index, uint32(last-start))
			index = binary.BigEndian.AppendUint32(index, uint32(len(log)))
			indexed = len(log)
		}
		log = append(log, b...)
		next = last + 1
	}
	return log, index, next
}

// KafkaBatch makes one uncompressed record batch of version 2 with one record per value and no keys, each a millisecond
// after the one before.
func KafkaBatch(base uint64, first time.Time, values [][]byte) []byte {
	be := binary.BigEndian
	last := len(values) - 1
	b := be.AppendUint64(nil, base)
	b = append(b, make([]byte, 4)...) // length
	b = be.AppendUint32(b, 0)         // partition leader epoch
	b = append(b, 2)                  // magic
	b = append(b, make([]byte, 4)...) // checksum
	b = be.AppendUint16(b, 0)         // attributes
	b = be.AppendUint32(b, uint32(last))
	b = be.AppendUint64(b, uint64(first.UnixMilli()))
	b = be.AppendUint64(b, uint64(first.UnixMilli()+int64(last)))
	b = be.AppendUint64(b, ^uint64(0)) // producer id: none
	b = be.AppendUint16(b, ^uint16(0)) // producer epoch
	b = be.AppendUint32(b, ^uint32(0)) // base sequence
	b = be.AppendUint32(b, uint32(len(values)))
	for i, v := range values {
		b = appendRecord(b, int64(i), v)
	}
	KafkaSeal(b)
	return b
}

// KafkaSeal sets the length and the checksum of a record batch to what its bytes ask for.
func KafkaSeal(b []byte) {
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
}

// appendRecord appends the record with the given deltas of offset and timestamp.
func appendRecord(b []byte, delta int64, value []byte) []byte {
	r := []byte{0} // attributes
	r = binary.AppendVarint(r, delta)
	r = binary.AppendVarint(r, delta)
	r = binary.AppendVarint(r, -1) // no key
	r = binary.AppendVarint(r, int64(len(value)))
	r = append(r, value...)
	r = binary.AppendVarint(r, 0) // no headers
	b = binary.AppendVarint(b, int64(len(r)))
	return append(b, r...)
}

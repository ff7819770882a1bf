package segmenttest

import (
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"
)

// iggyFlush is how many batches are written per flush, each flush being one index entry.
const iggyFlush = 2

// Iggy makes a segment that starts at offset start and has batches batches, each of messagesPerBatch messages of payload
// bytes, and its index. next is the offset after the last message.
func Iggy(start uint64, batches, messagesPerBatch, payload int) (log, index []byte, next uint64) {
	next = start
	for i := range batches {
		if i%iggyFlush == 0 {
			index = binary.LittleEndian.AppendUint64(index, next)
			index = binary.LittleEndian.AppendUint64(index, uint64(Time(next).UnixMicro()))
			index = binary.LittleEndian.AppendUint64(index, uint64(len(log)))
		}
		log = append(log, IggyBatch(next, Time(next), payloads(next, messagesPerBatch, payload))...)
		next += uint64(messagesPerBatch)
	}
	return log, index, next
}

// IggyBatch makes one batch of partition 0 with one message per payload and 3 bytes of user headers each.
func IggyBatch(base uint64, stamp time.Time, messages [][]byte) []byte {
	le := binary.LittleEndian
	b := make([]byte, 256)
	le.PutUint64(b[8:], base)
	le.PutUint64(b[16:], uint64(stamp.UnixMicro()))
	le.PutUint64(b[24:], uint64(stamp.UnixMicro()))
	le.PutUint32(b[48:], uint32(len(messages)))
	for i, m := range messages {
		at := len(b)
		b = append(b, make([]byte, 48)...)
		le.PutUint64(b[at+8:], base+uint64(i)+1) // id
		le.PutUint32(b[at+24:], uint32(i))
		le.PutUint32(b[at+32:], 3)
		le.PutUint32(b[at+36:], uint32(len(m)))
		b = append(append(b, m...), "hdr"...)
	}
	IggySeal(b)
	return b
}

// IggySeal sets the length and every checksum of a batch to what its bytes ask for. The frames must fill the batch.
func IggySeal(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b[32:], uint64(len(b)))
	sums := append(append([]byte(nil), b[:40]...), b[48:52]...)
	for at := 256; at < len(b); {
		end := at + 48 + int(le.Uint32(b[at+32:])) + int(le.Uint32(b[at+36:]))
		le.PutUint64(b[at:], xxh3.Hash(b[at+8:end]))
		sums = append(sums, b[at:at+8]...)
		at = end
	}
	le.PutUint64(b[40:], xxh3.Hash(sums))
}

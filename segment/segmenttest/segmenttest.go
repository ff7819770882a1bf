// Package segmenttest makes valid segments and indexes for tests: Kafka's and Iggy's formats as package segment
// describes them, written independently of its decoders. The bytes are a function of the arguments alone. It panics on
// arguments that no broker could write; nothing but tests may import it.
package segmenttest

import (
	"encoding/binary"
	"time"
)

// Epoch is the time of the record at offset 0 in Kafka and Iggy; each further offset is a millisecond later.
var Epoch = time.UnixMilli(1_700_000_000_000)

// Time is when the record at offset was made.
func Time(offset uint64) time.Time { return Epoch.Add(time.Duration(offset) * time.Millisecond) }

// Payload is the n bytes of the record at offset: pseudo-random, so that no two records are alike.
func Payload(offset uint64, n int) []byte {
	p := make([]byte, 0, n+8)
	for x := offset; len(p) < n; {
		// One step of splitmix64.
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		p = binary.LittleEndian.AppendUint64(p, z^z>>31)
	}
	return p[:n]
}

// payloads are those of count records from base on.
func payloads(base uint64, count, n int) [][]byte {
	out := make([][]byte, count)
	for i := range out {
		out[i] = Payload(base+uint64(i), n)
	}
	return out
}

package segment_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// shapes are batches as brokers write them: few large ones and many small ones.
var shapes = []struct {
	name           string
	f              segment.Format
	count, payload int // records per batch, bytes per record
}{
	{"kafka/1MiB", segment.Kafka, 1000, 1024},
	{"kafka/16KiB", segment.Kafka, 16, 1024},
	{"kafka/1KiB", segment.Kafka, 1, 1024},
	{"iggy/1000x1KiB", segment.Iggy, 1000, 1024},
	{"iggy/50x300B", segment.Iggy, 50, 300},
	{"iggy/1x37B", segment.Iggy, 1, 37},
	{"iggy/4x200KiB", segment.Iggy, 4, 200 << 10},
}

func benchLog(f segment.Format, count, payload int) []byte {
	batches := max(1, 16<<20/(count*payload))
	if f == segment.Kafka {
		log, _, _ := segmenttest.Kafka(0, batches, count, payload)
		return log
	}
	log, _, _ := segmenttest.Iggy(0, batches, count, payload)
	return log
}

func BenchmarkWalk(b *testing.B) {
	for _, c := range shapes {
		b.Run(c.name, func(b *testing.B) {
			log := benchLog(c.f, c.count, c.payload)
			b.SetBytes(int64(len(log)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := segment.Walk(bytes.NewReader(log), int64(len(log)), 0, c.f, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, c := range shapes {
		b.Run(c.name, func(b *testing.B) {
			log := benchLog(c.f, c.count, c.payload)
			b.SetBytes(int64(len(log)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := segment.Check(log, c.f, 0, math.MaxUint64); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBoundaries(b *testing.B) {
	live := make([]byte, 10<<20)
	b.SetBytes(int64(len(live)))
	for b.Loop() {
		if _, err := segment.Boundaries(live, 1<<30, segment.Kafka); err != nil {
			b.Fatal(err)
		}
	}
}

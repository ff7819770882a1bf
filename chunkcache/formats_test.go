package chunkcache

import (
	"context"
	"math"
	"testing"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// TestFormats reads real segments with their own checks and indexes.
func TestFormats(t *testing.T) {
	kafka, kafkaIndex, _ := segmenttest.Kafka(0, 300, 10, 500)
	iggy, iggyIndex, _ := segmenttest.Iggy(0, 300, 10, 500)
	for _, c := range []struct {
		format     segment.Format
		log, index []byte
	}{{segment.Kafka, kafka, kafkaIndex}, {segment.Iggy, iggy, iggyIndex}, {segment.Generic, kafka, nil}} {
		t.Run(c.format.String(), func(t *testing.T) {
			f := newFixture(t, nil)
			f.store.objects["k"] = c.log
			o := Object{
				Key: "k", Size: int64(len(c.log)),
				Index: func(context.Context) ([]int64, error) {
					return segment.Boundaries(c.index, int64(len(c.log)), c.format)
				},
				Check: func(data []byte) (int64, error) { return segment.Check(data, c.format, 0, math.MaxUint64) },
			}
			for off := o.Size - 20_000; off > 0; off -= 77_777 {
				f.read(o, c.log, off, 10_000)
			}
			for off := int64(0); off < o.Size; off += 4096 {
				f.read(o, c.log, off, min(4096, o.Size-off))
			}
			f.consistent()
		})
	}
}

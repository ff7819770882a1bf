package segment_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// seedLogs adds whole, torn and damaged segments.
func seedLogs(f *testing.F, add func(data []byte, format segment.Format)) {
	small := map[segment.Format][]byte{}
	small[segment.Kafka], _, _ = segmenttest.Kafka(0, 3, 2, 20)
	small[segment.Iggy], _, _ = segmenttest.Iggy(0, 3, 2, 20)
	for format, log := range small {
		add(log, format)
		add(log[:len(log)-1], format)
		bad := bytes.Clone(log)
		bad[len(bad)/2] ^= 1
		add(bad, format)
	}
	add(load(f, "kafka/compacted-0/00000000000000000000.log"), segment.Kafka)
	add(load(f, "kafka/tx-1-0/00000000000000000000.log"), segment.Kafka)
	add([]byte("anything"), segment.Generic)
}

// known says whether err is one of this package's.
func known(err error) bool {
	return slices.ContainsFunc([]error{
		segment.ErrTorn, segment.ErrChecksum, segment.ErrNotBatch, segment.ErrOrder, segment.ErrEmpty, segment.ErrFormat,
	}, func(e error) bool { return errors.Is(err, e) })
}

func FuzzWalk(f *testing.F) {
	seedLogs(f, func(data []byte, format segment.Format) { f.Add(data, int64(len(data)), uint64(0), uint8(format)) })
	f.Fuzz(func(t *testing.T, data []byte, size int64, start uint64, format uint8) {
		size = min(size, int64(len(data))+1)
		var batches []segment.Batch
		sum, err := segment.Walk(bytes.NewReader(data), size, start, segment.Format(format), func(b segment.Batch) error {
			batches = append(batches, b)
			return nil
		})
		at, last := int64(0), start
		for i, b := range batches {
			if b.Position != at || b.Size <= 0 || b.Last < b.Base || b.Base < last || (i > 0 && b.Base == last) {
				t.Fatalf("batch %d is %+v, after %d at %d", i, b, last, at)
			}
			at, last = at+b.Size, b.Last
		}
		if err != nil {
			if !known(err) {
				t.Fatal(err)
			}
			return
		}
		if sum.Start != start || sum.Size != size || sum.End != last || sum.Batches != int64(len(batches)) {
			t.Fatalf("%+v", sum)
		}
		if segment.Format(format) != segment.Generic {
			if at != size {
				t.Fatalf("landed on %d of %d", at, size)
			}
			agree(t, data[:size], batches, segment.Format(format))
		}
	})
}

func FuzzCheck(f *testing.F) {
	seedLogs(f, func(data []byte, format segment.Format) { f.Add(data, uint8(format)) })
	f.Fuzz(func(t *testing.T, data []byte, format uint8) {
		covered, err := segment.Check(data, segment.Format(format), 0, math.MaxUint64)
		if covered < 0 || covered > int64(len(data)) {
			t.Fatalf("%d of %d", covered, len(data))
		}
		if err != nil && !known(err) {
			t.Fatal(err)
		}
		if again, err := segment.Check(data[:covered], segment.Format(format), 0, math.MaxUint64); covered > 0 && (again != covered || err != nil) {
			t.Fatalf("%d, then %d: %v", covered, again, err)
		}
	})
}

// FuzzHeaders is the fuzz of the two header decoders.
func FuzzHeaders(f *testing.F) {
	seedLogs(f, func(data []byte, format segment.Format) { f.Add(data, int64(0), uint8(format)) })
	f.Fuzz(func(t *testing.T, data []byte, from int64, format uint8) {
		from = max(0, min(from, int64(len(data))))
		at := from
		err := segment.Headers(bytes.NewReader(data), from, int64(len(data)), segment.Format(format), func(b segment.Batch) error {
			if b.Position != at || b.Size <= 0 || b.Size > int64(len(data))-at || b.Last < b.Base || b.FirstTimestamp < 0 || b.MaxTimestamp < 0 {
				t.Fatalf("%+v at %d", b, at)
			}
			at += b.Size
			return nil
		})
		if err == nil && at != int64(len(data)) || err != nil && !known(err) {
			t.Fatalf("ends at %d of %d: %v", at, len(data), err)
		}
	})
}

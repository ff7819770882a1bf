package segment_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/tierfs/tierfs/segment"
)

// kafkaIndex makes an index of pairs of relative offset and position.
func kafkaIndex(pairs ...int32) []byte {
	var b []byte
	for _, v := range pairs {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// iggyIndex makes an index of pairs of offset and position; its timestamps fall.
func iggyIndex(pairs ...uint64) []byte {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		b = binary.LittleEndian.AppendUint64(b, pairs[i])
		b = binary.LittleEndian.AppendUint64(b, uint64(1000-i))
		b = binary.LittleEndian.AppendUint64(b, pairs[i+1])
	}
	return b
}

func TestBoundaries(t *testing.T) {
	live := append(kafkaIndex(39, 4113, 69, 8226), make([]byte, 10<<20-16)...)
	for _, c := range []struct {
		what  string
		f     segment.Format
		index []byte
		want  []int64
	}{
		{"kafka trimmed", segment.Kafka, kafkaIndex(39, 4113, 69, 8226), []int64{0, 4113, 8226}},
		{"kafka live", segment.Kafka, live, []int64{0, 4113, 8226}},
		{"kafka live and empty", segment.Kafka, make([]byte, 10<<20), []int64{0}},
		{"kafka empty", segment.Kafka, nil, []int64{0}},
		{"kafka names 0", segment.Kafka, kafkaIndex(3, 0, 9, 100), []int64{0, 100}},
		{"kafka last byte", segment.Kafka, kafkaIndex(3, 9999), []int64{0, 9999}},
		{"iggy", segment.Iggy, iggyIndex(0, 0, 100, 4096, 200, 8000), []int64{0, 4096, 8000}},
		{"iggy empty", segment.Iggy, nil, []int64{0}},
		{"generic", segment.Generic, []byte("anything"), []int64{0}},
	} {
		t.Run(c.what, func(t *testing.T) {
			got, err := segment.Boundaries(c.index, 10_000, c.f)
			if err != nil || !slices.Equal(got, c.want) {
				t.Fatalf("%v, %v", got, err)
			}
		})
	}
}

func TestBoundariesRefuse(t *testing.T) {
	for _, c := range []struct {
		what  string
		f     segment.Format
		size  int64
		index []byte
	}{
		{"kafka cut short", segment.Kafka, 100, make([]byte, 9)},
		{"kafka position falls", segment.Kafka, 100, kafkaIndex(1, 50, 2, 49)},
		{"kafka position repeated", segment.Kafka, 100, kafkaIndex(1, 50, 2, 50)},
		{"kafka offset falls", segment.Kafka, 100, kafkaIndex(2, 50, 1, 60)},
		{"kafka offset repeated", segment.Kafka, 100, kafkaIndex(2, 50, 2, 60)},
		{"kafka position at the end", segment.Kafka, 100, kafkaIndex(2, 100)},
		{"kafka position negative", segment.Kafka, 100, kafkaIndex(2, math.MinInt32)},
		{"kafka offset negative", segment.Kafka, 100, kafkaIndex(-2, 50)},
		{"kafka zeros in between", segment.Kafka, 100, kafkaIndex(1, 50, 0, 0, 2, 60)},
		{"kafka of nothing", segment.Kafka, 0, nil},
		{"iggy cut short", segment.Iggy, 100, make([]byte, 23)},
		{"iggy position falls", segment.Iggy, 100, iggyIndex(0, 0, 1, 50, 2, 49)},
		{"iggy position repeated", segment.Iggy, 100, iggyIndex(0, 0, 1, 0)},
		{"iggy offset repeated", segment.Iggy, 100, iggyIndex(1, 0, 1, 50)},
		{"iggy position at the end", segment.Iggy, 100, iggyIndex(0, 100)},
		{"iggy position too large", segment.Iggy, 100, iggyIndex(0, math.MaxUint64)},
		{"iggy of nothing", segment.Iggy, -1, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			if got, err := segment.Boundaries(c.index, c.size, c.f); !errors.Is(err, segment.ErrIndex) {
				t.Fatalf("%v, %v", got, err)
			}
		})
	}
}

func TestMadeIndexes(t *testing.T) {
	for _, f := range batched {
		t.Run(f.String(), func(t *testing.T) {
			log, index, _ := made(f, 77)
			_, batches, err := walk(log, 77, f)
			if err != nil {
				t.Fatal(err)
			}
			bounds, err := segment.Boundaries(index, int64(len(log)), f)
			if err != nil || len(bounds) < 2 {
				t.Fatalf("%v, %v", bounds, err)
			}
			starts := startsOf(batches)
			for _, b := range bounds {
				if !slices.Contains(starts, b) {
					t.Fatalf("no batch starts at %d", b)
				}
				if covered, err := segment.Check(log[b:], f, 0, math.MaxUint64); err != nil || covered != int64(len(log))-b {
					t.Fatalf("from %d: %d, %v", b, covered, err)
				}
			}
		})
	}
}

func FuzzBoundaries(f *testing.F) {
	f.Add(kafkaIndex(39, 4113, 69, 8226, 0, 0), int64(10_000), uint8(segment.Kafka))
	f.Add(iggyIndex(0, 0, 100, 4096), int64(10_000), uint8(segment.Iggy))
	f.Add([]byte(nil), int64(1), uint8(segment.Generic))
	f.Fuzz(func(t *testing.T, index []byte, size int64, format uint8) {
		got, err := segment.Boundaries(bytes.Clone(index), size, segment.Format(format))
		if err != nil {
			if !errors.Is(err, segment.ErrIndex) && !errors.Is(err, segment.ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		if got[0] != 0 || got[len(got)-1] >= size || len(got) > len(index)/8+1 {
			t.Fatalf("%v of %d", got, size)
		}
		for i := 1; i < len(got); i++ {
			if got[i] <= got[i-1] {
				t.Fatalf("%v", got)
			}
		}
	})
}

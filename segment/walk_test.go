package segment_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// made is a small segment of each format that has batches.
func made(f segment.Format, start uint64) (log, index []byte, next uint64) {
	if f == segment.Kafka {
		return segmenttest.Kafka(start, 5, 4, 300)
	}
	return segmenttest.Iggy(start, 5, 4, 300)
}

var batched = []segment.Format{segment.Kafka, segment.Iggy}

func TestWalkMade(t *testing.T) {
	for _, f := range batched {
		t.Run(f.String(), func(t *testing.T) {
			log, _, next := made(f, 1000)
			sum, batches, err := walk(log, 1000, f)
			if err != nil {
				t.Fatal(err)
			}
			last := segmenttest.Time(next - 1)
			if f == segment.Iggy {
				last = segmenttest.Time(next - 4)
			}
			want := segment.Summary{
				Start: 1000, End: next - 1, Size: int64(len(log)), Batches: 5,
				FirstTimestamp: segmenttest.Time(1000).UnixMicro(), MaxTimestamp: last.UnixMicro(),
			}
			if diff := cmp.Diff(want, sum); diff != "" {
				t.Fatal(diff)
			}
			agree(t, log, batches, f)
		})
	}
}

func TestWalkGeneric(t *testing.T) {
	data := segmenttest.Payload(1, 700_000)
	sum, batches, err := walk(data, 42, segment.Generic)
	if err != nil || batches != nil || sum != (segment.Summary{Start: 42, End: 42, Size: 700_000}) {
		t.Fatalf("%+v, %v", sum, err)
	}
	if _, err := segment.Walk(bytes.NewReader(data), 700_001, 42, segment.Generic, nil); !errors.Is(err, segment.ErrTorn) {
		t.Fatalf("a byte too few: %v", err)
	}
	if n, err := segment.Check(data, segment.Generic, 0, math.MaxUint64); n != 700_000 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
}

func TestWalkReaders(t *testing.T) {
	broken := errors.New("disk on fire")
	for _, f := range append(batched, segment.Generic) {
		log, _, _ := made(f, 0)
		size := int64(len(log))
		for what, r := range map[string]io.Reader{
			"one byte": iotest.OneByteReader(bytes.NewReader(log)),
			"half":     iotest.HalfReader(bytes.NewReader(log)),
			"data+EOF": iotest.DataErrReader(bytes.NewReader(log)),
			"more":     io.MultiReader(bytes.NewReader(log), iotest.ErrReader(broken)),
		} {
			t.Run(f.String()+"/"+what, func(t *testing.T) {
				if _, err := segment.Walk(r, size, 0, f, nil); err != nil {
					t.Fatal(err)
				}
			})
		}
		t.Run(f.String()+"/error", func(t *testing.T) {
			r := io.MultiReader(bytes.NewReader(log[:size-1]), iotest.ErrReader(broken))
			if _, err := segment.Walk(r, size, 0, f, nil); !errors.Is(err, broken) || errors.Is(err, segment.ErrTorn) {
				t.Fatal(err)
			}
		})
		t.Run(f.String()+"/early end", func(t *testing.T) {
			if _, err := segment.Walk(bytes.NewReader(log[:size-1]), size, 0, f, nil); !errors.Is(err, segment.ErrTorn) {
				t.Fatal(err)
			}
		})
	}
}

func TestWalkStopsForEach(t *testing.T) {
	stop := errors.New("enough")
	for _, f := range batched {
		t.Run(f.String(), func(t *testing.T) {
			log, _, _ := made(f, 0)
			seen := 0
			each := func(segment.Batch) error {
				if seen++; seen == 2 {
					return stop
				}
				return nil
			}
			if _, err := segment.Walk(bytes.NewReader(log), int64(len(log)), 0, f, each); err != stop || seen != 2 {
				t.Fatalf("%v after %d", err, seen)
			}
			seen = 0
			if err := segment.Headers(bytes.NewReader(log), 0, int64(len(log)), f, each); err != stop || seen != 2 {
				t.Fatalf("Headers: %v after %d", err, seen)
			}
		})
	}
}

// TestLargeBatches walks batches and messages that do not fit the window, and misses no damage in them.
func TestLargeBatches(t *testing.T) {
	kafka, _, _ := segmenttest.Kafka(0, 2, 3, 200_000)
	iggy, _, _ := segmenttest.Iggy(0, 2, 3, 200_000)
	for f, log := range map[segment.Format][]byte{segment.Kafka: kafka, segment.Iggy: iggy} {
		t.Run(f.String(), func(t *testing.T) {
			_, batches, err := walk(log, 0, f)
			if err != nil || len(batches) != 2 {
				t.Fatalf("%d batches: %v", len(batches), err)
			}
			agree(t, log, batches, f)
			for i := 1000; i < len(log); i += 50_000 {
				log[i] ^= 1
				if _, _, err := walk(log, 0, f); !errors.Is(err, segment.ErrChecksum) {
					t.Fatalf("byte %d: %v", i, err)
				}
				log[i] ^= 1
			}
		})
	}
}

func TestMaxTimestampIsTheHighest(t *testing.T) {
	one := [][]byte{[]byte("a")}
	late, early := segmenttest.Time(5000), segmenttest.Time(10)
	for f, batch := range map[segment.Format]func(uint64, time.Time, [][]byte) []byte{
		segment.Kafka: segmenttest.KafkaBatch, segment.Iggy: segmenttest.IggyBatch,
	} {
		t.Run(f.String(), func(t *testing.T) {
			sum, _, err := walk(append(batch(0, late, one), batch(1, early, one)...), 0, f)
			if err != nil || sum.MaxTimestamp != late.UnixMicro() || sum.FirstTimestamp != late.UnixMicro() {
				t.Fatalf("%+v, %v", sum, err)
			}
		})
	}
}

// TestTornAnywhere cuts a segment at every byte: only cuts between batches are whole.
func TestTornAnywhere(t *testing.T) {
	for _, f := range batched {
		t.Run(f.String(), func(t *testing.T) {
			log, _, _ := made(f, 0)
			_, batches, err := walk(log, 0, f)
			if err != nil {
				t.Fatal(err)
			}
			whole, i := int64(0), 0
			for n := 1; n < len(log); n++ {
				if i < len(batches) && int64(n) == batches[i].Position+batches[i].Size {
					whole = int64(n)
					i++
				}
				_, _, err := walk(log[:n], 0, f)
				if atEdge := int64(n) == whole; atEdge != (err == nil) || (!atEdge && !errors.Is(err, segment.ErrTorn)) {
					t.Fatalf("cut at %d: %v", n, err)
				}
				if covered, err := segment.Check(log[:n], f, 0, math.MaxUint64); covered != whole || err != nil {
					t.Fatalf("cut at %d: Check covers %d: %v", n, covered, err)
				}
			}
		})
	}
}

// TestEveryByteCounts flips each byte of a segment. Kafka's checksum leaves out the base offset, of which the order
// shows a part, and the leader epoch.
func TestEveryByteCounts(t *testing.T) {
	for _, f := range batched {
		t.Run(f.String(), func(t *testing.T) {
			log, _, _ := made(f, 7)
			_, batches, err := walk(log, 7, f)
			if err != nil {
				t.Fatal(err)
			}
			bare := make(map[int64]bool)
			for _, b := range batches {
				for i := b.Position; f == segment.Kafka && i < b.Position+16; i++ {
					bare[i] = i < b.Position+8 || i >= b.Position+12
				}
			}
			for i := range log {
				if bare[int64(i)] {
					continue
				}
				log[i] ^= 0x40
				if _, _, err := walk(log, 7, f); err == nil {
					t.Fatalf("byte %d may be anything", i)
				}
				log[i] ^= 0x40
			}
		})
	}
}

// claims is a reader of one batch header and then of zeros without end.
type claims struct{ header []byte }

func (c *claims) Read(p []byte) (int, error) {
	n := copy(p, c.header)
	c.header = c.header[n:]
	clear(p[n:])
	return len(p), nil
}

// TestMemoryIsBounded walks batches and a message far larger than the window.
func TestMemoryIsBounded(t *testing.T) {
	kafka := segmenttest.KafkaBatch(0, segmenttest.Epoch, [][]byte{nil})[:61]
	iggy := segmenttest.IggyBatch(0, segmenttest.Epoch, [][]byte{nil})[:256+48]
	const size = 60 << 20
	binary.BigEndian.PutUint32(kafka[8:], size-12)
	binary.LittleEndian.PutUint64(iggy[32:], size)
	binary.LittleEndian.PutUint32(iggy[256+32:], 0)
	binary.LittleEndian.PutUint32(iggy[256+36:], size-256-48)
	for f, header := range map[segment.Format][]byte{segment.Kafka: kafka, segment.Iggy: iggy} {
		t.Run(f.String(), func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := segment.Walk(&claims{header}, size, 0, f, nil)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, segment.ErrChecksum) {
				t.Fatal(err)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
				t.Fatalf("%d bytes allocated", used)
			}
		})
	}
}

func TestWalkAllocatesNothingPerBatch(t *testing.T) {
	for _, f := range batched {
		t.Run(f.String(), func(t *testing.T) {
			allocs := func(batches int) (walk, check float64) {
				log, _, _ := segmenttest.Kafka(0, batches, 3, 100)
				if f == segment.Iggy {
					log, _, _ = segmenttest.Iggy(0, batches, 3, 100)
				}
				walk = testing.AllocsPerRun(10, func() {
					_, _ = segment.Walk(bytes.NewReader(log), int64(len(log)), 0, f, nil)
				})
				return walk, testing.AllocsPerRun(10, func() { _, _ = segment.Check(log, f, 0, math.MaxUint64) })
			}
			walk1, check1 := allocs(1)
			walk2, check2 := allocs(1000)
			if walk2 > walk1 || check2 > check1 {
				t.Fatalf("Walk %v and %v, Check %v and %v", walk1, walk2, check1, check2)
			}
		})
	}
}

// TestKafkaKeeps: what compaction, transactions and leaders of other times leave in a segment is whole.
func TestKafkaKeeps(t *testing.T) {
	be := binary.BigEndian
	batch := func(base uint64, records int) []byte {
		return segmenttest.KafkaBatch(base, segmenttest.Epoch, slices.Repeat([][]byte{[]byte("v")}, records))
	}
	for _, c := range []struct {
		what   string
		change func(b []byte)
	}{
		{"records went, the last offset stays", func(b []byte) { be.PutUint32(b[23:], 7) }},
		{"no last offset but the base", func(b []byte) { be.PutUint32(b[23:], 0) }},
		{"a control batch", func(b []byte) { be.PutUint16(b[21:], 1<<5|1<<4) }},
		{"of a transaction that was aborted", func(b []byte) { be.PutUint16(b[21:], 1<<4); be.PutUint64(b[43:], 4000) }},
		{"a delete horizon", func(b []byte) { be.PutUint16(b[21:], 1<<6) }},
		{"no producer", func(b []byte) { be.PutUint64(b[43:], math.MaxUint64) }},
		{"no base sequence", func(b []byte) { be.PutUint32(b[53:], math.MaxUint32) }},
		{"an older leader's", func(b []byte) { be.PutUint32(b[12:], 1) }},
		{"of no known leader", func(b []byte) { be.PutUint32(b[12:], math.MaxUint32) }},
		{"an unknown compression", func(b []byte) { be.PutUint16(b[21:], 7) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			changed := batch(120, 3)
			c.change(changed)
			segmenttest.KafkaSeal(changed)
			empty := batch(130, 1)[:61] // a producer's last batch, of which compaction left the header
			be.PutUint32(empty[8:], 61-12)
			be.PutUint32(empty[23:], 4)
			be.PutUint32(empty[57:], 0)
			segmenttest.KafkaSeal(empty)
			log := slices.Concat(batch(107, 2), changed, empty, batch(math.MaxInt64-1, 2))
			sum, batches, err := walk(log, 100, segment.Kafka)
			if err != nil || sum.Batches != 4 || sum.End != math.MaxInt64 {
				t.Fatalf("%+v, %v", sum, err)
			}
			agree(t, log, batches, segment.Kafka)
		})
	}
}

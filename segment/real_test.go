package segment_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tierfs/tierfs/segment"
)

// real is a segment that a broker wrote.
type real struct {
	file   string // in testdata, without .log and .index
	format segment.Format
	start  uint64
	want   segment.Summary
	index  int // entries
}

var reals = []real{
	{"kafka/plain.topic-0/00000000000000000000", segment.Kafka, 0, segment.Summary{End: 199, Size: 27420, FirstTimestamp: 1700000000000000, MaxTimestamp: 1700000000199000, Batches: 20}, 6},
	{"kafka/gzip-topic-0/00000000000000000000", segment.Kafka, 0, segment.Summary{End: 199, Size: 17777, FirstTimestamp: 1700000000000000, MaxTimestamp: 1700000000199000, Batches: 20}, 3},
	{"kafka/lz4_topic-0/00000000000000000000", segment.Kafka, 0, segment.Summary{End: 199, Size: 25860, FirstTimestamp: 1700000000000000, MaxTimestamp: 1700000000199000, Batches: 20}, 4},
	{"kafka/zstd-0/00000000000000000000", segment.Kafka, 0, segment.Summary{End: 199, Size: 17726, FirstTimestamp: 1700000000000000, MaxTimestamp: 1700000000199000, Batches: 20}, 3},
	{"kafka/snappy-0/00000000000000000000", segment.Kafka, 0, segment.Summary{End: 199, Size: 26451, FirstTimestamp: 1700000000000000, MaxTimestamp: 1700000000199000, Batches: 20}, 4},
	{"kafka/idempotent-0/00000000000000000000", segment.Kafka, 0, segment.Summary{End: 149, Size: 25675, FirstTimestamp: 1700000000000000, MaxTimestamp: 1700000000149000, Batches: 25}, 6},
	{"iggy/topic0-00000000000000000000", segment.Iggy, 0, segment.Summary{End: 2749, Size: 1061797, FirstTimestamp: 1795980268569076, Batches: 55}, 28},
	{"iggy/topic0-00000000000000008250", segment.Iggy, 8250, segment.Summary{End: 8999, Size: 289601, FirstTimestamp: 1795980275828971, Batches: 15}, 8},
	{"iggy/topic1-00000000000000002000", segment.Iggy, 2000, segment.Summary{End: 2999, Size: 1082013, FirstTimestamp: 1795980276473411, Batches: 4}, 1},
	{"iggy/topic2-00000000000000000000", segment.Iggy, 0, segment.Summary{End: 399, Size: 149567, FirstTimestamp: 1795980276482508, Batches: 400}, 13},
}

// load reads a file of testdata; one that is kept compressed has .gz behind its name.
func load(t testing.TB, name string) []byte {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name))
	if b, err := os.ReadFile(path); err == nil {
		return b
	}
	f, err := os.Open(path + ".gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// walk is Walk with the batches that it saw.
func walk(data []byte, start uint64, f segment.Format) (sum segment.Summary, batches []segment.Batch, err error) {
	sum, err = segment.Walk(bytes.NewReader(data), int64(len(data)), start, f, func(b segment.Batch) error {
		batches = append(batches, b)
		return nil
	})
	return sum, batches, err
}

func TestRealSegments(t *testing.T) {
	for _, c := range reals {
		t.Run(c.file, func(t *testing.T) {
			log := load(t, c.file+".log")
			sum, batches, err := walk(log, c.start, c.format)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Start = c.start
			if c.format == segment.Iggy {
				c.want.MaxTimestamp = batches[len(batches)-1].MaxTimestamp
			}
			if diff := cmp.Diff(c.want, sum); diff != "" {
				t.Fatal(diff)
			}
			agree(t, log, batches, c.format)
			bounds, err := segment.Boundaries(load(t, c.file+".index"), sum.Size, c.format)
			if err != nil {
				t.Fatal(err)
			}
			starts := startsOf(batches)
			for _, b := range bounds {
				if _, ok := slices.BinarySearch(starts, b); !ok {
					t.Fatalf("no batch starts at %d", b)
				}
			}
			if want := c.index + btoi(c.format == segment.Kafka); len(bounds) != want {
				t.Fatalf("%d boundaries, not %d", len(bounds), want)
			}
		})
	}
}

// agree tells whether Check and Headers see what Walk saw.
func agree(t *testing.T, log []byte, batches []segment.Batch, f segment.Format) {
	t.Helper()
	if covered, err := segment.Check(log, f, 0, math.MaxUint64); err != nil || covered != int64(len(log)) {
		t.Fatalf("Check covers %d of %d: %v", covered, len(log), err)
	}
	for i := 0; i < len(batches); i += 1 + len(batches)/8 { // from some of the batches on, within the narrowest bounds
		b := batches[i]
		covered, err := segment.Check(log[b.Position:], f, batches[0].Base, batches[len(batches)-1].Last)
		if err != nil || covered != int64(len(log))-b.Position {
			t.Fatalf("Check covers %d from %d on: %v", covered, b.Position, err)
		}
	}
	var headers []segment.Batch
	err := segment.Headers(bytes.NewReader(log), 0, int64(len(log)), f, func(b segment.Batch) error {
		headers = append(headers, b)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(batches, headers); diff != "" {
		t.Fatal(diff)
	}
}

func startsOf(batches []segment.Batch) []int64 {
	out := make([]int64, len(batches))
	for i, b := range batches {
		out[i] = b.Position
	}
	return out
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestRealTransactions(t *testing.T) {
	for _, c := range []struct {
		start, end uint64
		batches    int64
	}{{0, 19, 3}, {20, 251, 45}} {
		stem := segment.Stem(c.start)
		t.Run(stem, func(t *testing.T) {
			log := load(t, "kafka/tx-1-0/"+stem+".log")
			sum, batches, err := walk(log, c.start, segment.Kafka)
			if err != nil || sum.End != c.end || sum.Batches != c.batches {
				t.Fatalf("%+v, %v", sum, err)
			}
			agree(t, log, batches, segment.Kafka)
		})
	}
}

func TestRealLogAppendTime(t *testing.T) {
	_, batches, err := walk(load(t, "kafka/appendtime-0/00000000000000000000.log"), 0, segment.Kafka)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		// The producer wrote 1700000000 s; the broker's clock was later.
		if b.FirstTimestamp != b.MaxTimestamp || b.FirstTimestamp < 1790000000_000000 {
			t.Fatalf("%+v", b)
		}
	}
}

func TestRealCompacted(t *testing.T) {
	sum, batches, err := walk(load(t, "kafka/compacted-0/00000000000000000000.log"), 0, segment.Kafka)
	if err != nil {
		t.Fatal(err)
	}
	want := []segment.Batch{
		{Position: 0, Size: 271, Base: 112, Last: 115, FirstTimestamp: 1796015622947000, MaxTimestamp: 1796015622947000},
		{Position: 271, Size: 292, Base: 116, Last: 119, FirstTimestamp: 0, MaxTimestamp: 1796015622948000},
	}
	if diff := cmp.Diff(want, batches); diff != "" {
		t.Fatal(diff)
	}
	if sum.Start != 0 || sum.End != 119 || sum.FirstTimestamp != 1796015622947000 {
		t.Fatalf("%+v", sum)
	}
}

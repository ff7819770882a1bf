package layout_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

func TestIggyClassify(t *testing.T) {
	none := layout.Partition{}
	classify(t, layout.Iggy, []classified{
		{"streams/0/topics/0/partitions/0", part("0/0", "0"), ""},
		{"streams/12/topics/34/partitions/56", part("12/34", "56"), ""},
		{"12/topics/34/partitions/56", part("12/34", "56"), ""},
		{"streams/1/topics/2/partitions/3.fenced.1", part("1/2", "3"), layout.Fenced},
		{"1/topics/2/partitions/3.fenced.12", part("1/2", "3"), layout.Fenced},

		{"", none, layout.NotPartition},
		{".", none, layout.NotPartition},
		{"streams", none, layout.NotPartition},
		{"streams/0", none, layout.NotPartition},
		{"streams/0/topics", none, layout.NotPartition},
		{"streams/0/topics/0", none, layout.NotPartition},
		{"streams/0/topics/0/partitions", none, layout.NotPartition},
		{"streams/0/topics/0/partitions/", none, layout.NotPartition},
		{"streams/0/topics/0/partitions/0/offsets", none, layout.NotPartition},
		{"streams/0/topics/0/partitions/0/prepares-1", none, layout.NotPartition},
		{"streams/0/topics/0/partitions/0/.install-backup", none, layout.NotPartition},
		{"streams/0/topics/0/partitions/0.fenced.", none, layout.NotPartition},
		{"streams/0/topics/0/partitions/0.fenced.x", none, layout.NotPartition},
		{"streams/0/topics/0/partitions/00", none, layout.NotPartition},
		{"streams/x/topics/0/partitions/0", none, layout.NotPartition},
		{"streams/0/topics/x/partitions/0", none, layout.NotPartition},
		{"streams/0/topics/1/2/partitions/0", none, layout.NotPartition},
		{"streams/streams/0/topics/0/partitions/0", none, layout.NotPartition},
		{"other/0/topics/0/partitions/0", none, layout.NotPartition},
		{"metadata", none, layout.NotPartition},
	})
}

func TestIggyFollows(t *testing.T) {
	r := rules(t, layout.Iggy)
	for _, c := range []struct {
		what      string
		end, next uint64
		anchored  bool
		want      layout.Reason
	}{
		{"just below", 9, 10, false, ""},
		{"gap", 9, 11, false, layout.Gap},
		{"gap with an anchor", 9, 11, true, ""},
		{"overlap", 9, 9, false, layout.Overlap},
		{"overlap with an anchor", 9, 5, true, layout.Overlap},
	} {
		t.Run(c.what, func(t *testing.T) {
			if got := r.Follows(c.end, c.next, c.anchored); got != c.want {
				t.Fatalf("%q", got)
			}
		})
	}
}

// headers counts which bytes of a log are read.
type headers struct {
	*bytes.Reader
	largest int
}

func (h *headers) ReadAt(p []byte, off int64) (int, error) {
	h.largest = max(h.largest, len(p))
	return h.Reader.ReadAt(p, off)
}

func TestIggyBootRanges(t *testing.T) {
	r := rules(t, layout.Iggy)
	// Batches of 256 + 3 × (48 + n + 3) bytes.
	sized := func(n, batches int) []byte {
		log, _, _ := segmenttest.Iggy(0, batches, 3, (n-256)/3-51)
		return log
	}
	large := sized(524191, 3) // as the real server's batches of 500 messages of 1000 bytes, but for a byte
	small := sized(1024, 100)
	mixed := uneven(100_000, 1000, 1000, 12_000, 100_000, 30_000, 10_000, 100_000)
	for _, c := range []struct {
		what string
		log  []byte
		last int64 // position of the last index entry
		want []layout.Range
	}{
		// A batch header across two pages, and one within a page.
		{"from the start", large, 0, []layout.Range{{Offset: 0, Length: 16384}, {Offset: 520192, Length: 8192}, {Offset: 1044480, Length: 8192}}},
		{"from a later entry", large, 524191, []layout.Range{{Offset: 520192, Length: 8192}, {Offset: 1044480, Length: 8192}}},
		{"the last batch alone", large, 1048382, []layout.Range{{Offset: 1044480, Length: 8192}}},
		{"batches smaller than a page", small, 0, []layout.Range{{Offset: 0, Length: int64(len(small))}}},
		{"small batches, from the middle", small, 51200, []layout.Range{{Offset: 49152, Length: int64(len(small)) - 49152}}},
		// Headers at 100,000, 101,000, 102,000 and 114,000, and the window that the kernel then reads; far from them
		// one page for that at 214,000, and again a cluster at 244,000 and 254,000.
		{"a cluster in the middle", mixed, 100_000, []layout.Range{
			{Offset: 98304, Length: 114688 + 16384 - 98304}, {Offset: 212992, Length: 4096}, {Offset: 241664, Length: 258048 + 16384 - 241664},
		}},
		{"shorter than a window", sized(1024, 2), 0, []layout.Range{{Offset: 0, Length: 2048}}},
	} {
		t.Run(c.what, func(t *testing.T) {
			log := &headers{Reader: bytes.NewReader(c.log)}
			got, err := r.BootRanges(iggyEntries(0, c.last), log, int64(len(c.log)))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Fatal(diff)
			}
			if log.largest > 256 {
				t.Fatalf("%d bytes read at once", log.largest)
			}
		})
	}
	for what, index := range map[string][]byte{
		"no index":             nil,
		"torn index":           iggyEntries(0, 524191)[:47],
		"index past the end":   iggyEntries(0, 99999999),
		"index within a batch": iggyEntries(0, 1000),
	} {
		t.Run(what, func(t *testing.T) {
			_, err := r.BootRanges(index, bytes.NewReader(large), int64(len(large)))
			if !errors.Is(err, segment.ErrIndex) && !errors.Is(err, segment.ErrNotBatch) {
				t.Fatal(err)
			}
		})
	}
}

// uneven makes batches of these sizes.
func uneven(sizes ...int) []byte {
	var log []byte
	for i, n := range sizes {
		offset := uint64(i)
		log = append(log, segmenttest.IggyBatch(offset, segmenttest.Time(offset), [][]byte{make([]byte, n-256-51)})...)
	}
	return log
}

// iggyEntries makes index entries of positions; one that repeats is left out.
func iggyEntries(positions ...int64) []byte {
	var b []byte
	for i, p := range slices.Compact(positions) {
		entry := make([]byte, 24)
		entry[0] = byte(i)
		for k := range 8 {
			entry[16+k] = byte(p >> (8 * k))
		}
		b = append(b, entry...)
	}
	return b
}

func TestIggyConstants(t *testing.T) {
	r := rules(t, layout.Iggy)
	if r.Kind() != layout.Iggy || r.Format() != segment.Iggy || r.IndexSuffix() != ".index" || r.AnchorSuffix() != ".anchor" {
		t.Error("names")
	}
	if !slices.Equal(r.SideSuffixes(), []string{".index"}) || r.Disqualifies("00000000000000000042.log.swap") != "" {
		t.Error("side files")
	}
	if r.FetchTimeout() != 9*time.Second || r.MaxBlocked(2) != 7 || r.MaxBlocked(0) != 1 || r.FirstFetch() != 64<<10 || r.QuietTime() != 0 {
		t.Error("limits")
	}
	b, err := r.Bounds(files{}.read)
	if err != nil || b.Evictable(part("0/0", "0"), 1<<60) != "" {
		t.Error("bounds")
	}
}

package chunkcache

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestTable(t *testing.T) {
	const chunk = 1 << 20
	t.Run("a chunk starts at the nearest batch", func(t *testing.T) {
		index := []int64{0, chunk - 5000, chunk + 4999, 2*chunk - 300, 2*chunk + 300, 3 * chunk, 3*chunk + 1}
		tb, err := newTable(hash{}, index, 4*chunk, chunk)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int64{0, chunk + 4999, 2*chunk - 300, 3 * chunk}; !slices.Equal(tb.chunks, want) {
			t.Errorf("chunks %d, want %d", tb.chunks, want)
		}
	})
	t.Run("a batch larger than chunks is one chunk", func(t *testing.T) {
		tb, err := newTable(hash{}, []int64{0, 100, 5 * chunk}, 6*chunk, chunk)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int64{0, 100, 5 * chunk}; !slices.Equal(tb.chunks, want) {
			t.Errorf("chunks %d, want %d", tb.chunks, want)
		}
	})
	t.Run("without an index chunks start at multiples", func(t *testing.T) {
		tb, err := newTable(hash{}, nil, 3*chunk+5, chunk)
		if err != nil {
			t.Fatal(err)
		}
		if want := []int64{0, chunk, 2 * chunk, 3 * chunk}; !slices.Equal(tb.chunks, want) {
			t.Errorf("chunks %d, want %d", tb.chunks, want)
		}
	})
	t.Run("a gap too wide for memory is cut", func(t *testing.T) {
		tb, err := newTable(hash{}, []int64{0, 7}, 10*maxGap, chunk)
		if err != nil {
			t.Fatal(err)
		}
		for k := range tb.chunks {
			if lo, hi := tb.chunk(k); hi-lo > 2*chunk {
				t.Errorf("chunk %d is [%d, %d)", k, lo, hi)
			}
		}
	})
	for name, index := range map[string][]int64{"not ascending": {0, 5, 5}, "negative": {0, -1}, "outside": {0, 100}} {
		t.Run(name, func(t *testing.T) {
			if _, err := newTable(hash{}, index, 100, chunk); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// TestTableProperties: whatever the index, chunks cover the object without overlap, start at batches that are as near as can
// be, and cuts lie where they should.
func TestTableProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const chunk = 64 << 10
		size := rapid.Int64Range(1, 4<<20).Draw(t, "size")
		index := rapid.SliceOfNDistinct(rapid.Int64Range(0, size-1), 0, 300, rapid.ID).Draw(t, "index")
		slices.Sort(index)
		tb, err := newTable(hash{}, slices.Clone(index), size, chunk)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := newTable(hash{}, index, size, chunk)
		if !slices.Equal(tb.chunks, again.chunks) || !slices.Equal(tb.starts, again.starts) {
			t.Fatal("not a function of the index")
		}
		for k, start := range tb.chunks {
			if k == 0 && start != 0 || k > 0 && start <= tb.chunks[k-1] || start >= size {
				t.Fatalf("chunks %d", tb.chunks)
			}
			if !tb.plain && !tb.batch(start) {
				t.Fatalf("chunk at %d is at no batch", start)
			}
			if lo, hi := tb.chunk(k); tb.chunkAt(lo) != k || tb.chunkAt(hi-1) != k {
				t.Fatalf("chunk %d [%d, %d) is not found", k, lo, hi)
			}
		}
		off := rapid.Int64Range(0, size-1).Draw(t, "off")
		lo, hi := tb.floor(off), tb.ceil(off)
		if lo > off || hi < off || hi > size || !tb.fits(lo) || !tb.fits(hi) || !tb.plain && !(tb.batch(lo) && tb.batch(hi)) {
			t.Fatalf("%d lies in [%d, %d]", off, lo, hi)
		}
	})
}

package chunkcache

import (
	"context"
	"errors"
	"fmt"
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

func TestIndex(t *testing.T) {
	t.Run("no batch is split over two files", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 3<<20, 9000)
		starts := map[int64]bool{o.Size: true}
		for pos := int64(0); pos < o.Size; {
			starts[pos] = true
			n, _ := checkBatches(data[pos:min(pos+20000, o.Size)])
			for n > 0 { // one batch at a time
				b := int64(data[pos]) | int64(data[pos+1])<<8 | int64(data[pos+2])<<16
				starts[pos] = true
				pos, n = pos+b, n-b
			}
		}
		for off := int64(7); off < o.Size-100; off += 100_001 {
			f.read(o, data, off, 99)
		}
		f.settleDown()
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, e := range f.byKey["k"].extents {
			if !starts[e.start] || !starts[e.end] {
				t.Errorf("[%d, %d) cuts a batch", e.start, e.end)
			}
		}
	})
	t.Run("is read once for all who ask at once", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		calls, begun, goOn := 0, make(chan struct{}), make(chan struct{})
		real := o.Index
		o.Index = func(ctx context.Context) ([]int64, error) {
			calls++
			close(begun)
			<-goOn
			return real(ctx)
		}
		done := make(chan error)
		for i := range 8 {
			go func() { done <- f.tryRead(o, data, int64(i)*100_000, 1000) }()
		}
		<-begun
		f.until("waiting", func() bool { return f.Stats().Waiting == 8 })
		close(goOn)
		for range 8 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
	t.Run("a reader that leaves while it is read", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		real, goOn := o.Index, make(chan struct{})
		o.Index = func(ctx context.Context) ([]int64, error) { <-goOn; return real(ctx) }
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.ReadAt(ctx, o, make([]byte, 10), 0); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		close(goOn)
		f.consistent()
		f.read(o, data, 0, 10)
	})
	for _, c := range []struct {
		name  string
		index func(context.Context) ([]int64, error)
	}{
		{"missing", func(context.Context) ([]int64, error) { return nil, errors.New("no index") }},
		{"damaged", func(context.Context) ([]int64, error) { return []int64{0, 50, 20}, nil }},
		{"none", func(context.Context) ([]int64, error) { return nil, nil }},
		{"not there", nil},
	} {
		t.Run(c.name+": plain offsets", func(t *testing.T) {
			f := newFixture(t, nil)
			o, data := f.store.object("k", 2<<20, 3000)
			o.Index = c.index
			for off := o.Size - 50_000; off > 0; off -= 70_001 {
				f.read(o, data, off, 50_000)
			}
			f.read(o, data, 0, o.Size)
			f.consistent()
		})
	}
	t.Run("another one after a restart", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data, index := f.store.indexed("k", 2<<20, 3000)
		plain := o
		plain.Index = nil
		sparse := o
		sparse.Index = func(context.Context) ([]int64, error) {
			var out []int64
			for i := 0; i < len(index); i += 7 {
				out = append(out, index[i])
			}
			return out, nil
		}
		for i := range 12 {
			v := []Object{plain, o, sparse}[i%3]
			for off := int64(i * 4000); off < o.Size-10_000; off += 333_333 {
				f.read(v, data, off, 10_000)
			}
			f.consistent()
			f.restart()
		}
		f.read(o, data, 0, o.Size)
	})
}

// TestMisfit: what was cut at plain offsets must not keep what borders on it from being checked when there is an index.
func TestMisfit(t *testing.T) {
	f := newFixture(t, nil)
	o, data := f.store.object("k", 200<<10, 3000)
	plain := o
	plain.Index = nil
	f.store.set(func(s *fakeStore) { // nothing is filled behind
		s.before = func(context.Context, get) error {
			if s.count() > 1 {
				return errors.New("no")
			}
			return nil
		}
	})
	f.read(plain, data, 100_000, 10_000)
	f.settleDown()
	f.mu.Lock()
	end := f.byKey["k"].extents[0].end
	f.mu.Unlock()
	f.restart()
	flips := 1
	f.store.set(func(s *fakeStore) {
		s.before = nil
		s.mangle = func(g get, b []byte) []byte {
			if at := end + 10 - g.off; flips > 0 && at >= 0 && at < g.n {
				flips--
				b[at] ^= 1
			}
			return b
		}
	})
	f.read(o, data, end, 1000)
	if flips > 0 {
		t.Error("nothing was fetched")
	}
	f.read(o, data, 0, o.Size)
	f.consistent()
}

func TestBadObject(t *testing.T) {
	flip := func(times int, from int64) func(get, []byte) []byte {
		return func(g get, b []byte) []byte {
			if times != 0 && g.off <= from && from < g.off+g.n {
				times--
				b[from-g.off] ^= 1
			}
			return b
		}
	}
	t.Run("wrong once: fetched again from there", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		f.store.mangle = flip(1, 20_000)
		f.read(o, data, 10_000, 20_000)
		gets := f.store.reset()
		if len(gets) < 2 || gets[1].off > 20_000 || gets[1].off < 10_000 {
			t.Errorf("%v", gets)
		}
	})
	t.Run("wrong twice: an error that names it", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("topic/k.log", 1<<20, 3000)
		f.store.mangle = flip(-1, 20_000)
		err := f.tryRead(o, data, 15_000, 20_000)
		if !errors.Is(err, ErrBadObject) {
			t.Fatalf("%v", err)
		}
		var at int64
		var rest string
		if _, serr := fmt.Sscanf(err.Error(), "bad object: topic/k.log: batch check failed at %d: %s", &at, &rest); serr != nil || at > 20_000 || at < 17_000 {
			t.Errorf("%v (%v)", err, serr)
		}
		f.read(o, data, 500_000, 1000)
		f.store.set(func(s *fakeStore) { s.mangle = nil })
		f.read(o, data, 15_000, 20_000)
		f.consistent()
	})
	t.Run("batches that start elsewhere than the index says", func(t *testing.T) {
		f := newFixture(t, nil)
		o, _, index := f.store.indexed("k", 1<<20, 3000)
		o.Index = func(context.Context) ([]int64, error) {
			out := slices.Clone(index)
			for i := range out[1:] {
				out[i+1]++
			}
			return out, nil
		}
		if err := f.ReadAt(t.Context(), o, make([]byte, 100), 500_000); !errors.Is(err, ErrBadObject) {
			t.Errorf("%v", err)
		}
	})
	t.Run("shorter than it should be: an error at once", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		f.store.objects["k"] = data[:o.Size/2]
		if err := f.ReadAt(t.Context(), o, make([]byte, 100), o.Size-100); err == nil {
			t.Error("no error")
		}
		f.read(o, data, 0, 100)
	})
	t.Run("a body that ends early", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		f.store.mangle = func(_ get, b []byte) []byte { return b[:len(b)-1] }
		if err := f.ReadAt(t.Context(), o, make([]byte, 100), 50_000); err == nil {
			t.Error("no error")
		}
		f.store.set(func(s *fakeStore) { s.mangle = nil })
		f.read(o, data, 50_000, 100)
	})
}

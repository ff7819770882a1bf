package chunkcache

import (
	"context"
	"errors"
	"testing"
)

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
}

func TestIndexWait(t *testing.T) {
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
}

func TestIndexFallback(t *testing.T) {
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

// TestMisfitInMemory: the same for what could not go to the disk.
func TestMisfitInMemory(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Size = 4096 }) // smaller than any chunk
	o, data := f.store.object("k", 200<<10, 3000)
	plain := o
	plain.Index = nil
	f.read(plain, data, 100_000, 10_000)
	f.settleDown()
	f.mu.Lock()
	e := f.byKey["k"].extents[0]
	f.memory.Del(tableKey(e.obj.hash)) // its time is over
	f.memory.Wait()
	f.mu.Unlock()
	if e.state != held {
		t.Fatalf("state %d", e.state)
	}
	end, flips := e.end, 1
	f.store.set(func(s *fakeStore) {
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
	f.consistent()
}

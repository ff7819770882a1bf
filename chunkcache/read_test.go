package chunkcache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

func TestRequests(t *testing.T) {
	t.Run("one GET for a cold read, none for a warm one", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("a/b.log", 4<<20, 3000)
		f.store.before = func(_ context.Context, g get) error {
			if f.store.count() > 1 { // what is filled behind waits until the read has been answered
				<-f.ctx.Done()
			}
			return nil
		}
		f.read(o, data, 1<<20+12345, 64<<10)
		gets := f.store.reset()
		f.read(o, data, 1<<20+12345, 64<<10)
		f.read(o, data, 1<<20+12345+1000, 100)
		if len(gets) == 0 || gets[0].n > 128<<10 || gets[0].off > 1<<20+12345 {
			t.Fatalf("first GETs: %v", gets)
		}
		for _, g := range append(gets[1:], f.store.reset()...) {
			if g.off < gets[0].off+gets[0].n && gets[0].off < g.off+g.n {
				t.Errorf("%v fetches bytes of %v again", g, gets[0])
			}
		}
	})
	t.Run("the chunk is filled behind a read", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.ReadaheadMax = 0 })
		o, data := f.store.object("k", 2<<20, 3000)
		f.read(o, data, 1<<20+100_000, 1000)
		f.settleDown()
		f.store.reset()
		f.read(o, data, 1<<20+3000, 250<<10)
		if gets := f.store.reset(); len(gets) > 0 {
			t.Errorf("%v", gets)
		}
	})
	t.Run("a read across a chunk's border is one GET", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 2<<20, 3000)
		f.read(o, data, 256<<10-5000, 10000)
		if g := f.store.reset()[0]; g.off > 256<<10-5000 || g.off+g.n < 256<<10+5000 {
			t.Errorf("%v does not hold the read", g)
		}
	})
}

func TestShared(t *testing.T) {
	t.Run("64 readers share one GET", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.FirstFetch = 256 << 10 })
		o, data := f.store.object("k", 256<<10, 3000)
		all := make(chan struct{})
		f.store.before = func(context.Context, get) error { <-all; return nil }
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() { f.read(o, data, 100<<10, 64<<10) })
		}
		f.until("waiting", func() bool { return f.Stats().Waiting == 64 })
		close(all)
		wg.Wait()
		f.settleDown()
		gets := f.store.reset()
		if g, ok := twice(gets); ok || len(gets) > 3 {
			t.Errorf("GETs %v, twice: %v", gets, g)
		}
	})
	t.Run("a sequential scan fetches no byte twice", func(t *testing.T) {
		for _, n := range []int64{4096, 32 << 10, 128 << 10} {
			f := newFixture(t, nil)
			o, data := f.store.object("k", 5<<20, 3000)
			for off := int64(0); off < o.Size; off += n {
				f.read(o, data, off, min(n, o.Size-off))
			}
			f.settleDown()
			gets := f.store.reset()
			most := int((o.Size+f.opts.ChunkSize-1)/f.opts.ChunkSize) + 2
			if g, ok := twice(gets); ok || len(gets) > most {
				t.Errorf("reads of %d: %d GETs, want at most %d; twice: %v\n%v", n, len(gets), most, g, gets)
			}
		}
	})
}

func TestRestart(t *testing.T) {
	t.Run("none after a restart", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 3<<20, 3000)
		for off := int64(0); off < o.Size; off += 64 << 10 {
			f.read(o, data, off, min(64<<10, o.Size-off))
		}
		f.settleDown()
		f.restart()
		f.store.reset()
		for off := int64(0); off < o.Size; off += 64 << 10 {
			f.read(o, data, off, min(64<<10, o.Size-off))
		}
		f.settleDown()
		if gets := f.store.reset(); len(gets) > 0 {
			t.Errorf("GETs after a restart: %v", gets)
		}
		if st := f.Stats(); st.Misses > 0 || st.Hits == 0 || st.Chunks == 0 || st.Bytes != f.onDisk() {
			t.Errorf("%+v, on disk %d", st, f.onDisk())
		}
	})
}

func TestRange(t *testing.T) {
	f := newFixture(t, nil)
	o, data := f.store.object("k", 1<<20, 3000)
	for _, c := range []struct{ off, n int64 }{{-1, 1}, {o.Size, 1}, {o.Size - 10, 11}, {o.Size + 1, 0}, {1 << 62, 1}} {
		if err := f.ReadAt(t.Context(), o, make([]byte, c.n), c.off); !errors.Is(err, ErrRange) {
			t.Errorf("[%d, +%d): %v", c.off, c.n, err)
		}
	}
	f.read(o, data, o.Size, 0)
	f.read(o, data, o.Size-1, 1)
	f.read(o, data, 0, o.Size)
}

func TestWaiting(t *testing.T) {
	t.Run("a reader that leaves does not end the fetch", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.FirstFetch = 256 << 10 })
		o, data := f.store.object("k", 256<<10, 3000)
		begun, goOn := make(chan struct{}), make(chan struct{})
		f.store.before = func(context.Context, get) error { close(begun); <-goOn; return nil }
		why := errors.New("too late")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() { done <- f.ReadAt(ctx, o, make([]byte, 1000), 5000) }()
		<-begun
		cancel(why)
		if err := <-done; !errors.Is(err, why) {
			t.Errorf("left with %v", err)
		}
		close(goOn)
		f.read(o, data, 5000, 1000)
		f.settleDown()
		if n := f.store.count(); n != 1 {
			t.Errorf("%d GETs", n)
		}
	})
	t.Run("a reader waits for its own bytes of a fill, not for the chunk", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.ChunkSize, o.ReadaheadMax, o.FirstFetch = 4<<20, 1, 64<<10 })
		o, data := f.store.object("k", 4<<20, 3000)
		hold := make(chan struct{})
		f.store.gate = func(_ context.Context, g get, pos int64) error {
			if g.off > 0 && pos >= 1<<20 {
				<-hold
			}
			return nil
		}
		f.read(o, data, 0, 1000)
		f.until("filling", func() bool { return f.store.count() == 2 })
		f.read(o, data, 500<<10, 100<<10)
		if n := f.store.count(); n != 2 {
			t.Errorf("%d GETs", n)
		}
		close(hold)
	})
}

func TestFailedFetch(t *testing.T) {
	t.Run("a failed fetch fails its readers once", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 256<<10, 3000)
		begun, goOn := make(chan struct{}), make(chan struct{})
		f.store.before = func(context.Context, get) error { close(begun); <-goOn; return objstore.ErrTransient }
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := f.ReadAt(t.Context(), o, make([]byte, 100), 77); !errors.Is(err, objstore.ErrTransient) {
					t.Errorf("%v", err)
				}
			})
		}
		<-begun
		f.until("waiting for the fetch", func() bool { // not for the index any more
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.byKey[o.Key].extents[0].pins == 5
		})
		close(goOn)
		wg.Wait()
		if n := f.store.count(); n != 1 {
			t.Errorf("%d GETs", n)
		}
		f.store.set(func(s *fakeStore) { s.before = nil })
		f.read(o, data, 77, 100)
	})
	t.Run("the failure of a fill is no reader's failure", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.ChunkSize = 4 << 20 })
		o, data := f.store.object("k", 4<<20, 3000)
		hold := make(chan struct{})
		f.store.gate = func(_ context.Context, g get, pos int64) error {
			if g.n > 1<<20 {
				<-hold
				return objstore.ErrTransient
			}
			return nil
		}
		f.read(o, data, 0, 1000)
		f.until("filling", func() bool { return f.store.count() == 2 })
		time.AfterFunc(10*time.Millisecond, func() { close(hold) })
		f.read(o, data, 100<<10, 1000)
	})
}

func TestClose(t *testing.T) {
	t.Run("close ends every read and fetch", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Concurrency = 1 })
		var wg sync.WaitGroup
		f.store.before = func(ctx context.Context, _ get) error { <-ctx.Done(); return ctx.Err() }
		for _, k := range []string{"a", "b", "c"} {
			o, _ := f.store.object(k, 256<<10, 3000)
			wg.Go(func() {
				if err := f.ReadAt(t.Context(), o, make([]byte, 100), 77); !errors.Is(err, ErrClosed) {
					t.Errorf("%v", err)
				}
			})
		}
		f.until("waiting", func() bool { return f.Stats().Waiting == 3 })
		c := f.Cache
		f.stop()
		wg.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := c.ReadAt(t.Context(), Object{Key: "a", Size: 1}, make([]byte, 1), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
		c.Drop("a")
	})
}

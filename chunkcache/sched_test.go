package chunkcache

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

func TestConcurrency(t *testing.T) {
	t.Run("is bounded", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Concurrency = 3 })
		var mu sync.Mutex
		now, most := 0, 0
		f.store.before = func(context.Context, get) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond) // the length of a request
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}
		var wg sync.WaitGroup
		for i := range 20 {
			o, data := f.store.object(fmt.Sprint("k", i), 300<<10, 3000)
			wg.Go(func() { f.read(o, data, 150<<10, 1000) })
		}
		wg.Wait()
		f.settleDown()
		if most > 3 || most < 2 {
			t.Errorf("%d GETs at once", most)
		}
	})
	t.Run("readers come before fills and read-ahead", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Concurrency, o.ChunkSize = 2, 1<<20 })
		hold := make(chan struct{})
		defer close(hold)
		f.store.before = func(ctx context.Context, g get) error {
			if g.n > 100<<10 { // a fill
				select {
				case <-hold:
				case <-ctx.Done():
				}
			}
			return nil
		}
		for i := range 20 { // fills hang, and more of them are queued
			o, data := f.store.object(fmt.Sprint("k", i), 900<<10, 3000)
			f.read(o, data, 0, 1000)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.busyBehind != 1 || f.queues[filling].Len() > fillQueue*2 || f.queues[filling].Len() == 0 {
			t.Errorf("%d fills under way, %d queued", f.busyBehind, f.queues[filling].Len())
		}
	})
}

func TestOvertaking(t *testing.T) {
	t.Run("a fill that has not begun lets a reader by", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Concurrency, o.ChunkSize = 2, 1<<20 })
		hold := make(chan struct{})
		f.store.before = func(ctx context.Context, g get) error {
			if g.key == "a" && g.off > 0 {
				<-hold
			}
			return nil
		}
		a, aData := f.store.object("a", 1<<20, 3000)
		b, bData := f.store.object("b", 1<<20, 3000)
		f.read(a, aData, 0, 1000)
		f.until("filling", func() bool { return f.store.count() == 2 })
		f.read(b, bData, 0, 1000)
		f.read(b, bData, 700<<10, 1000)
		gets := f.store.reset()
		if last := gets[len(gets)-1]; last.key != "b" || last.off < 600<<10 || last.n > 100<<10 {
			t.Errorf("%v", gets)
		}
		close(hold)
		f.settleDown()
		for off := int64(0); off < b.Size; off += 32 << 10 {
			f.read(b, bData, off, min(32<<10, b.Size-off))
		}
		f.settleDown()
		var ofB []get
		for _, g := range append(gets, f.store.reset()...) {
			if g.key == "b" {
				ofB = append(ofB, g)
			}
		}
		if g, ok := twice(ofB); ok {
			t.Errorf("%v fetched twice in %v", g, ofB)
		}
	})
}

func TestReadahead(t *testing.T) {
	t.Run("grows with the reader and stays within its limit", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.ReadaheadMax = 4 })
		o, data := f.store.object("k", 8<<20, 3000)
		chunk := f.opts.ChunkSize
		reached := func() int64 {
			f.settleDown()
			f.mu.Lock()
			defer f.mu.Unlock()
			ext := f.byKey["k"].extents
			return (ext[len(ext)-1].end + chunk/2) / chunk
		}
		f.read(o, data, 0, 4096)
		if n := reached(); n > 1 {
			t.Errorf("%d chunks after one read", n)
		}
		f.read(o, data, 4096, 4096)
		if n := reached(); n != 2 {
			t.Errorf("%d chunks after two reads", n)
		}
		for off := int64(8192); off < 4*chunk; off += 4096 {
			f.read(o, data, off, 4096)
		}
		if n := reached(); n != 9 {
			t.Errorf("%d chunks after reading 4", n)
		}
	})
	t.Run("several readers of one object are told apart", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 24<<20, 3000)
		for i := range int64(40) {
			for r := range int64(4) {
				off := r*(6<<20) + i*4096
				f.read(o, data, off, 100) // a header
				f.read(o, data, off, 4096)
			}
		}
		f.settleDown()
		before := f.Stats().Misses
		for r := range int64(4) {
			f.read(o, data, r*(6<<20)+400_000, 1000)
		}
		if n := f.Stats().Misses - before; n > 0 {
			t.Errorf("%d of 4 reads waited for what should have been read ahead", n)
		}
	})
}

func TestReadaheadBounds(t *testing.T) {
	t.Run("random reads are not read ahead of", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 24<<20, 3000)
		for i := range int64(12) {
			f.read(o, data, (i*7%12)<<21+100_000, 4096)
		}
		f.settleDown()
		if st := f.Stats(); st.Bytes > 12*(f.opts.ChunkSize+f.opts.ChunkSize/4) {
			t.Errorf("%+v", st)
		}
	})
	t.Run("has a budget", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size, o.ReadaheadMax = 2<<20, 100 })
		o, data := f.store.object("k", 30<<20, 3000)
		for off := int64(0); off < 2<<20; off += 64 << 10 {
			f.read(o, data, off, 64<<10)
			f.mu.Lock()
			if f.aheadBytes > 2<<20/4+300<<10 {
				t.Errorf("%d bytes read ahead", f.aheadBytes)
			}
			f.mu.Unlock()
		}
	})
}

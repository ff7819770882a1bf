package chunkcache

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// outage makes every GET of a fixture wait until the returned function is called.
func outage(f *fixture) (over func()) {
	gate := make(chan struct{})
	f.store.before = func(ctx context.Context, _ get) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return func() { close(gate) }
}

// leave is a read whose reader gives up as soon as the read is queued.
func (f *fixture) leave(o Object, off, n int64) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	before := f.waiting.Load()
	go func() { done <- f.ReadAt(ctx, o, make([]byte, n), off) }()
	f.until("waiting for a fetch", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		obj := f.byKey[o.Key]
		return f.waiting.Load() > before && obj != nil && obj.find(off) != nil && obj.find(off).pins > 0
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		f.t.Errorf("a reader that left: %v", err)
	}
}

func (f *fixture) queued() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.queues {
		n += f.queues[k].Len()
	}
	return n
}

func TestAbandoned(t *testing.T) {
	t.Run("fetches that nobody waits for are not hoarded", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Concurrency = 2 })
		over := outage(f)
		for i := range 200 {
			o, _ := f.store.object(fmt.Sprint("k", i), 100<<10, 3000)
			f.leave(o, 50<<10, 1000)
		}
		if n := f.queued(); n > fillQueue*2 {
			t.Errorf("%d fetches are queued for nobody", n)
		}
		over()
		f.consistent()
	})
	t.Run("a reader comes before them", readerComesFirst)
	t.Run("what one reader wants in several pieces goes with it", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Concurrency, o.ChunkSize = 1, 64<<10 })
		over := outage(f)
		first, _ := f.store.object("first", 100<<10, 3000)
		f.leave(first, 0, 1000) // has the only slot
		for i := range 50 {
			o, _ := f.store.object(fmt.Sprint("k", i), 1<<20, 3000)
			f.leave(o, 0, 400<<10)
		}
		if n := f.queued(); n > fillQueue {
			t.Errorf("%d fetches are queued for nobody", n)
		}
		over()
		f.consistent()
	})
	t.Run("the fetch goes on for a reader who comes back", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Concurrency = 2 })
		over := outage(f)
		for i := range 4 {
			o, _ := f.store.object(fmt.Sprint("k", i), 100<<10, 3000)
			f.leave(o, 0, 1000)
		}
		over()
		f.settleDown()
		gets := f.store.reset()
		o, data := f.store.object("k3", 100<<10, 3000)
		f.read(o, data, 0, 1000)
		if more := f.store.reset(); len(more) > 0 {
			t.Errorf("%v again after %v", more, gets)
		}
	})
}

func readerComesFirst(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Concurrency = 1 })
	over := outage(f)
	for i := range 6 {
		o, _ := f.store.object(fmt.Sprint("k", i), 100<<10, 3000)
		f.leave(o, 50<<10, 1000)
	}
	o, data := f.store.object("patient", 100<<10, 3000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.read(o, data, 50<<10, 1000)
	}()
	f.until("queued", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.byKey[o.Key] != nil && len(f.byKey[o.Key].extents) > 0
	})
	over()
	<-done
	f.settleDown()
	if gets := f.store.reset(); gets[1].key != o.Key { // the first one was under way
		t.Errorf("%v", gets)
	}
	f.consistent()
}

package tier

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/objstore"
)

// newColdWorld is a world with a chunk cache, whose first segment is remote.
func newColdWorld(t *testing.T, tune func(*Options)) (*world, *File) {
	t.Helper()
	w := newWorld(t, 3)
	w.remote(0)
	dir, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.do(err)
	cache, err := chunkcache.New(chunkcache.Options{Dir: dir, Store: w.store})
	w.do(err)
	t.Cleanup(func() {
		w.store.SetHook(nil)
		if err := cache.Close(); err != nil {
			t.Error(err)
		}
		_ = unix.Close(dir)
	})
	w.tune = func(o *Options) {
		o.Cache = cache
		if tune != nil {
			tune(o)
		}
	}
	w.reopen()
	return w, w.segment("t-0", 0).File
}

// cold reads the start of a remote file as fs does.
func cold(ctx context.Context, f *File) ([]byte, error) {
	b := make([]byte, 100)
	src := f.Source()
	defer src.Release()
	_, err := src.ReadAt(ctx, b, 0)
	return b, err
}

// failFirst makes the store fail its first n GETs.
func (w *world) failFirst(n int64, err error) *atomic.Int64 {
	var gets atomic.Int64
	w.store.SetHook(func(_ context.Context, op, _ string) error {
		if op == "get" && gets.Add(1) <= n {
			return err
		}
		return nil
	})
	return &gets
}

var (
	passing = map[string]error{
		"no such bucket":    objstore.ErrConfig,
		"an unknown answer": errors.New("418 I'm a teapot"),
		"credentials":       objstore.ErrAuth,
		"an outage":         objstore.ErrTransient,
	}
	lasting = map[string]error{
		"missing":  objstore.ErrNotFound,
		"archived": objstore.ErrUnsupported,
		"range":    objstore.ErrRange,
	}
)

// A reader is told only what waiting cannot change.
func TestColdReadWaitsForWhatMayPass(t *testing.T) {
	for what, failure := range passing {
		t.Run(what, func(t *testing.T) {
			w, f := newColdWorld(t, nil)
			w.failFirst(3, failure)
			b, err := cold(t.Context(), f)
			if err != nil || !bytes.Equal(b, w.logs[0][:len(b)]) {
				t.Errorf("it fails: %v", err)
			}
		})
	}
	for what, failure := range lasting {
		t.Run(what, func(t *testing.T) {
			w, f := newColdWorld(t, nil)
			gets := w.failFirst(1<<30, failure)
			if _, err := cold(t.Context(), f); !errors.Is(err, failure) || errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v after %d requests", err, gets.Load())
			}
		})
	}
}

func TestWriteWaitsForWhatMayPass(t *testing.T) {
	patch := overwrite(0, []byte("written"))
	for what, failure := range passing {
		t.Run(what, func(t *testing.T) {
			w, _ := newColdWorld(t, nil)
			w.failFirst(1, failure)
			w.do(w.mutate(w.dir("t-0"), name(0), Mutation{Kind: Write}, patch))
			w.wantContent(w.dir("t-0"), name(0), append([]byte("written"), w.logs[0][7:]...))
		})
	}
	for what, failure := range lasting {
		t.Run(what, func(t *testing.T) {
			w, _ := newColdWorld(t, nil)
			w.failFirst(1<<30, failure)
			if err := w.mutate(w.dir("t-0"), name(0), Mutation{Kind: Write}, patch); !errors.Is(err, failure) {
				t.Errorf("got %v", err)
			}
			w.wantState("t-0", 0, Remote)
		})
	}
}

// A read that is served soon takes no place of those that block, however many
// there are; one that is not does, and without a place it fails.
func TestOnlyReadsThatWaitTakeAPlace(t *testing.T) {
	const busy = 100 * time.Millisecond
	w, f := newColdWorld(t, func(o *Options) {
		o.MaxBlocked, o.BusyTimeout, o.FetchTimeout = 1, busy, time.Minute
	})
	release := make(chan struct{})
	w.store.SetHook(func(ctx context.Context, op, _ string) error {
		if op != "get" {
			return nil
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	})
	p := &w.v.planner
	first := make(chan error, 1)
	go func() {
		_, err := cold(context.Background(), f)
		first <- err
	}()
	for late := time.Now().Add(20 * time.Second); p.blocked.Load() == 0; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatal("it takes no place")
		}
	}
	began := time.Now()
	if _, err := cold(t.Context(), f); !errors.Is(err, ErrUnavailable) || time.Since(began) < busy {
		t.Errorf("without a place: %v after %v", err, time.Since(began))
	}
	if n := p.blocked.Load(); n != 1 {
		t.Errorf("%d reads block, want 1", n)
	}
	f.missed.note(0, 0, nil) // nothing is remembered
	second := make(chan error, 1)
	go func() {
		_, err := cold(context.Background(), f)
		second <- err
	}()
	close(release)
	for _, c := range []chan error{first, second} {
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
	if n := p.blocked.Load(); n != 0 {
		t.Errorf("%d reads block after all", n)
	}
	p.blocked.Store(1000)
	if _, err := cold(t.Context(), f); err != nil {
		t.Errorf("a warm read fails: %v", err)
	}
}

// What must not fail waits without a place, and for ever is for ever.
func TestReadsThatWaitWithoutLimit(t *testing.T) {
	for what, tune := range map[string]func(*Options){
		"the log cleaner": func(o *Options) { o.MaxBlocked, o.FetchTimeout = 1, 20*time.Millisecond },
		"for ever":        func(o *Options) { o.MaxBlocked, o.FetchTimeout = 2, -1 },
	} {
		t.Run(what, func(t *testing.T) {
			w, f := newColdWorld(t, func(o *Options) {
				o.BusyTimeout = 10 * time.Millisecond
				tune(o)
			})
			ctx := t.Context()
			if what == "the log cleaner" {
				ctx = nameThread(t, "kafka-log-cleaner-thread-0")
			}
			w.v.planner.blocked.Store(1)
			w.failFirst(5, objstore.ErrTransient)
			b, err := cold(ctx, f)
			if err != nil || !bytes.Equal(b, w.logs[0][:len(b)]) {
				t.Errorf("it fails: %v", err)
			}
		})
	}
}

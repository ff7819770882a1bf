package tier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/segment"
)

// nameThread gives the calling thread a name in /proc until the test ends, and
// returns a context of a read by it.
func nameThread(t *testing.T, name string) context.Context {
	t.Helper()
	runtime.LockOSThread()
	comm := filepath.Join("/proc/self/task", strconv.Itoa(unix.Gettid()), "comm")
	old, err := os.ReadFile(comm)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(comm, []byte(name), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile(comm, old, 0)
		runtime.UnlockOSThread()
	})
	return WithCaller(t.Context(), uint32(unix.Gettid()))
}

// An error that another reader met is not for Kafka's log cleaner: it would take
// the log directory offline.
func TestCleanerIsNotToldARememberedError(t *testing.T) {
	w := newWorld(t, 1)
	f := w.segment("t-0", w.starts[0]).File
	f.missed.note(0, 4096, fmt.Errorf("%w: a consumer's", ErrUnavailable))
	if err := w.v.planner.read(t.Context(), f, chunkcache.Object{}, make([]byte, 10), 0); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("a consumer waits again: %v", err)
	}
	ctx := nameThread(t, "kafka-log-cleaner-thread-0")
	var err error
	func() {
		defer func() { _ = recover() }() // there is no cache here to ask
		err = w.v.planner.read(ctx, f, chunkcache.Object{}, make([]byte, 10), 0)
	}()
	if errors.Is(err, ErrUnavailable) {
		t.Error("the cleaner is told at once")
	}
}

// A broker that starts waits for its reads, until it writes a segment, and no
// longer than ten minutes.
func TestReadsOfABrokerThatStarts(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := uint32(unix.Gettid())
	ctx := WithCaller(t.Context(), tid)
	lookup := func(w *world, n string) *File {
		e, err := w.v.Lookup(w.dir("t-0"), n)
		w.do(err)
		w.t.Cleanup(e.File.Release)
		return e.File
	}
	write := func(w *world, f *File, ctx context.Context) {
		done, err := f.Mutate(ctx, Mutation{Kind: Write})
		w.do(err)
		done()
	}
	starting := func(w *world) bool { return w.v.planner.mustNotFail(ctx) }
	want := func(w *world, want bool, when string) {
		t.Helper()
		if starting(w) != want || w.v.starts.active.Load() != 0 != want {
			t.Errorf("%s: starting is %v, want %v", when, !want, want)
		}
	}
	for what, end := range map[string]context.Context{"its thread": ctx, "the kernel": WithCaller(t.Context(), 0)} {
		t.Run("writes of "+what, func(t *testing.T) {
			w := newWorld(t, 2)
			log, index := lookup(w, name(0)), lookup(w, segment.Stem(0)+".index")
			index.OpenedBy(tid)
			want(w, false, "an index was opened")
			log.OpenedBy(tid)
			want(w, true, "a segment was opened")
			write(w, index, ctx)
			want(w, true, "an index was written")
			write(w, log, end)
			want(w, false, "a segment was written")
			log.OpenedBy(tid)
			want(w, false, "a segment was opened later")
		})
	}
	t.Run("at most", func(t *testing.T) {
		w := newWorld(t, 2)
		s := &w.v.starts
		s.opened(tid, time.Now())
		if !s.reading(tid, time.Now().Add(maxStart-time.Second)) || s.reading(tid, time.Now().Add(maxStart+time.Second)) {
			t.Error("it does not last ten minutes")
		}
		want(w, false, "after that")
	})
	t.Run("another process", func(t *testing.T) {
		w := newWorld(t, 2)
		lookup(w, name(0)).OpenedBy(uint32(unix.Getppid()))
		if starting(w) {
			t.Error("it waits for somebody else's start")
		}
		write(w, lookup(w, name(0)), ctx)
		if w.v.starts.active.Load() != 1 {
			t.Error("somebody else's write ended it")
		}
	})
	t.Run("reads", func(t *testing.T) {
		w := newWorld(t, 2)
		f := lookup(w, name(0))
		f.missed.note(0, 4096, ErrUnavailable)
		f.OpenedBy(tid)
		var err error
		func() {
			defer func() { _ = recover() }() // there is no cache here to ask
			err = w.v.planner.read(ctx, f, chunkcache.Object{}, make([]byte, 10), 0)
		}()
		if errors.Is(err, ErrUnavailable) {
			t.Error("it is told another reader's error")
		}
	})
}

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

// readNowhere is a read of the planner that has no cache to ask; it gives the error
// of one that does not come as far.
func (w *world) readNowhere(ctx context.Context, f *File) (err error) {
	defer func() { _ = recover() }()
	return w.v.planner.read(ctx, f, chunkcache.Object{}, make([]byte, 10), 0)
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
	if err := w.readNowhere(ctx, f); errors.Is(err, ErrUnavailable) {
		t.Error("the cleaner is told at once")
	}
}

// starter is a thread of a broker that starts, with the files that it opens.
type starter struct {
	*world
	tid        uint32
	ctx        context.Context
	log, index *File
}

func newStarter(t *testing.T) *starter {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	s := &starter{world: newWorld(t, 2), tid: uint32(unix.Gettid())}
	s.ctx = WithCaller(t.Context(), s.tid)
	for name, f := range map[string]**File{name(0): &s.log, segment.Stem(0) + ".index": &s.index} {
		e, err := s.v.Lookup(s.dir("t-0"), name)
		s.do(err)
		t.Cleanup(e.File.Release)
		*f = e.File
	}
	return s
}

func (s *starter) mustWrite(ctx context.Context, f *File) {
	s.t.Helper()
	done, err := f.Mutate(ctx, Mutation{Kind: Write})
	s.do(err)
	done()
}

func (s *starter) want(starting bool, when string) {
	s.t.Helper()
	if s.v.planner.mustNotFail(s.ctx) != starting || s.v.starts.active.Load() != 0 != starting {
		s.t.Errorf("%s: starting is %v, want %v", when, !starting, starting)
	}
}

// A broker that starts waits for its reads, until it writes a segment, and no
// longer than ten minutes.
func TestReadsOfABrokerThatStarts(t *testing.T) {
	for what, tid := range map[string]func(*starter) uint32{
		"its thread": func(s *starter) uint32 { return s.tid },
		"the kernel": func(*starter) uint32 { return 0 },
	} {
		t.Run("writes of "+what, func(t *testing.T) {
			s := newStarter(t)
			s.index.OpenedBy(s.tid)
			s.want(false, "an index was opened")
			s.log.OpenedBy(s.tid)
			s.want(true, "a segment was opened")
			s.mustWrite(s.ctx, s.index)
			s.want(true, "an index was written")
			s.mustWrite(WithCaller(t.Context(), tid(s)), s.log)
			s.want(false, "a segment was written")
			s.log.OpenedBy(s.tid)
			s.want(false, "a segment was opened later")
		})
	}
	t.Run("at most", func(t *testing.T) {
		s := newStarter(t)
		starts, now := &s.v.starts, time.Now()
		starts.opened(s.tid, now)
		if !starts.reading(s.tid, now.Add(maxStart-time.Second)) || starts.reading(s.tid, now.Add(maxStart+time.Second)) {
			t.Error("it does not last ten minutes")
		}
		s.want(false, "after that")
	})
	t.Run("another process", func(t *testing.T) {
		s := newStarter(t)
		s.log.OpenedBy(uint32(unix.Getppid()))
		if s.v.planner.mustNotFail(s.ctx) {
			t.Error("it waits for somebody else's start")
		}
		s.mustWrite(s.ctx, s.log)
		if s.v.starts.active.Load() != 1 {
			t.Error("somebody else's write ended it")
		}
	})
	t.Run("reads", func(t *testing.T) {
		s := newStarter(t)
		s.log.missed.note(0, 4096, ErrUnavailable)
		s.log.OpenedBy(s.tid)
		if err := s.readNowhere(s.ctx, s.log); errors.Is(err, ErrUnavailable) {
			t.Error("it is told another reader's error")
		}
	})
}

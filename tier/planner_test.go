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

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
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

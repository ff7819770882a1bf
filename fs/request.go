package fs

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// killPoll is how often a request that has been interrupted looks whether its
// caller is to die: the kernel reports only the first signal, and a Go program gets
// them all the time.
const killPoll = 250 * time.Millisecond

// A request is the context of one request. It ends when the mount ends or when
// the calling thread is being killed, which is the only way to get rid of a
// process that waits for the store without limit; no other signal ends it.
//
// It costs nothing until somebody asks for Done: only then a goroutine watches, and
// the handler that made the request ends it with stop.
type request struct {
	context.Context // the server's, with the caller
	fs              *fileSystem
	interrupted     <-chan struct{}
	pid             uint32

	mu    sync.Mutex
	inner context.Context    // guarded by mu; nil until somebody waits
	end   context.CancelFunc // guarded by mu: of inner
	watch sync.WaitGroup
}

// resentBit is set in the number of a request that was sent to a predecessor before.
const resentBit = 1 << 63

func resent(unique uint64) bool { return unique&resentBit != 0 }

// plain is the number that a request had when it was sent first.
func plain(unique uint64) uint64 { return unique &^ resentBit }

// requestOf is the context of a request by its header. The interrupt of one that was
// resent may have gone to the predecessor: it counts as interrupted from the start.
func (f *fileSystem) requestOf(interrupted <-chan struct{}, in *fuse.InHeader) *request {
	if resent(in.Unique) {
		interrupted = alreadyInterrupted()
	}
	return f.request(interrupted, in.Pid)
}

func alreadyInterrupted() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// request is requestOf for a caller by its thread.
func (f *fileSystem) request(interrupted <-chan struct{}, pid uint32) *request {
	return &request{Context: tier.WithCaller(f.base, pid), fs: f, interrupted: interrupted, pid: pid}
}

// Done is closed when the request is not worth an answer any more.
func (r *request) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inner == nil {
		inner, end := context.WithCancel(r.Context)
		r.inner, r.end = inner, end
		r.watch.Go(func() { r.watchCaller(inner, end) })
	}
	return r.inner.Done()
}

// Err is nil until Done is closed.
func (r *request) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inner == nil {
		return r.Context.Err()
	}
	return r.inner.Err()
}

// stop ends the request with its handler; nobody waits for it any more.
func (r *request) stop() {
	r.mu.Lock()
	end := r.end
	r.mu.Unlock()
	if end != nil {
		end()
		r.watch.Wait()
	}
}

func (r *request) watchCaller(ctx context.Context, end context.CancelFunc) {
	defer end()
	select {
	case <-ctx.Done():
		return
	case <-r.interrupted: // by a signal, or because the connection is gone
	}
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	for !killed(r.pid) && !disconnected(r.fs.fuseFD) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// disconnected reports whether the kernel has given the mount up.
func disconnected(fuseFD int) bool {
	fds := []unix.PollFd{{Fd: int32(fuseFD)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0
}

// killed reports whether a thread is gone or has a SIGKILL pending. The kernel's
// own requests have no thread: pid 0.
func killed(pid uint32) bool {
	if pid == 0 {
		return false
	}
	status, err := statusOf(pid)
	if err != nil {
		return os.IsNotExist(err)
	}
	for _, key := range [...]string{"SigPnd", "ShdPnd"} {
		mask, err := strconv.ParseUint(status[key], 16, 64)
		if err == nil && mask&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// statusOf reads what /proc says of a thread's status, by key.
func statusOf(thread uint32) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return nil, err
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.TrimSpace(value)
	}
	return status, nil
}

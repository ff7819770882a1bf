package fs

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Where the kernel writes back, it owns the times of files: after a rename, a link or a
// change of extended attributes it sends the new ctime at once, in a SETATTR by the same
// thread. If that thread is being killed, the kernel drops this SETATTR, and notes an
// error at the inode (Linux 6.18, fuse_flush_time_update): the next close or fsync of the
// file fails with EIO, whoever that is. A broker that is killed while it replaces a
// checkpoint file would meet that when it starts again, and give the log directory up.
//
// An inode that the kernel lets go takes the error along. So each of those requests notes
// that its thread owes a SETATTR, and when a thread is gone that has not paid, every name
// is looked up again: the old inode has no other user then, unless another process has it
// open. Linux before 6.16 cannot be told so, and keeps the error.
type owed struct {
	wake chan struct{} // cap 1: somebody owes

	mu      sync.Mutex
	callers map[uint32]debt // guarded by mu: by thread
}

// debt is what a thread owes: the times of one file. (A rename that replaces a file has it
// send those of that one, too, which say nothing of the first.)
type debt struct {
	node  uint64
	since time.Time
}

const (
	owedLook  = 20 * time.Millisecond
	owedLimit = time.Minute // a thread that has not paid by then is another one
)

func newOwed() *owed { return &owed{wake: make(chan struct{}, 1), callers: map[uint32]debt{}} }

// owes notes that a thread has to send the times of a file.
func (o *owed) owes(thread uint32, node uint64) {
	if thread == 0 {
		return
	}
	o.mu.Lock()
	o.callers[thread] = debt{node, time.Now()}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// paid notes that a thread has sent the times of a file.
func (o *owed) paid(thread uint32, node uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.callers[thread].node == node {
		delete(o.callers, thread)
	}
}

// pending reports whether somebody owes something.
func (o *owed) pending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.callers) > 0
}

// watch calls lost when a thread is gone that owed something, until quit is closed.
func (o *owed) watch(quit <-chan struct{}, lost func()) {
	look := time.NewTicker(owedLook)
	defer look.Stop()
	for {
		select {
		case <-quit:
			return
		case <-o.wake:
		}
		for o.pending() {
			select {
			case <-quit:
				return
			case <-look.C:
			}
			if o.dead() {
				lost()
			}
		}
	}
}

// dead forgets the threads that will not pay, and reports whether there were some.
func (o *owed) dead() (some bool) {
	o.mu.Lock()
	callers := maps.Clone(o.callers)
	o.mu.Unlock()
	for thread, d := range callers {
		if age := time.Since(d.since); age < owedLook || age < owedLimit && !gone(thread) {
			continue
		}
		o.mu.Lock()
		if o.callers[thread] == d {
			delete(o.callers, thread)
			some = true
		}
		o.mu.Unlock()
	}
	return some
}

// gone reports whether a thread does nothing any more.
func gone(thread uint32) bool {
	status, err := statusOf(thread)
	if err != nil {
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
	}
	state := status["State"]
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// owesTimes is for a request that has changed the ctime of an inode.
func (f *fileSystem) owesTimes(thread uint32, n *node) {
	if f.writeback && n != nil && n.isRegular() {
		f.owed.owes(thread, n.id)
	}
}

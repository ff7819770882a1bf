package fs

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierfs/tierfs/tier"
)

const (
	// coldLogEvery is how often reads that go on failing are summed up in the log.
	coldLogEvery = time.Minute
	// coldLogHush is for how long after the end of failing a new beginning is not
	// worth a line: a store that comes and goes is summed up, too.
	coldLogHush = 10 * time.Second
	// coldLogOver is how long nothing may fail for the next failure to be of the same
	// failing: who does not read does not learn that it is over.
	coldLogOver = 10 * time.Minute
)

// coldLog says in few lines that the store does not give its bytes: one when reads
// begin to fail, with the first one's object and reason, a sum once in a while, and
// one when they work again. Its methods may be called in parallel.
type coldLog struct {
	log     *slog.Logger
	failing atomic.Bool // so that a read that works costs nothing while all do

	mu     sync.Mutex // guards what follows
	since  time.Time  // the first failure
	total  int64      // failures since then
	unsaid int64      // of them, since the last line
	spoken bool       // there has been a line about them
	next   time.Time  // no line before that
	last   coldRead   // the last failure
	lastAt time.Time
}

// coldRead is a range of a file.
type coldRead struct {
	node *node
	off  int64
	size int
}

func (r coldRead) overlaps(o coldRead) bool {
	return r.node == o.node && r.off < o.off+int64(o.size) && o.off < r.off+int64(r.size)
}

// failed notes a read that failed, and reports whether it was for want of the
// store, and so is not to be logged by anyone else.
func (l *coldLog) failed(op string, r coldRead, err error, now time.Time) bool {
	if !errors.Is(err, tier.ErrUnavailable) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.failing.Swap(true) || now.Sub(l.lastAt) >= coldLogOver {
		l.since, l.total, l.unsaid, l.spoken = now, 0, 0, false
	}
	l.total++
	l.unsaid++
	l.last, l.lastAt = r, now
	if now.Before(l.next) {
		return true
	}
	if l.total == 1 {
		l.log.Warn("request failed", "op", op, "inode", r.node.String(), "err", err)
	} else {
		l.log.Warn("reads of evicted data go on failing", "reads", l.unsaid, "for", now.Sub(l.since).Round(time.Second), "inode", r.node.String(), "err", err)
	}
	l.spoken, l.unsaid, l.next = true, 0, now.Add(coldLogEvery)
	return true
}

// worked notes a read that was served. Failing is over when the bytes that were
// wanted last are there: others may have come from the cache. If nobody has asked
// for those again for long, any will do.
func (l *coldLog) worked(r coldRead, now time.Time) {
	if !l.failing.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.failing.Load() || !r.overlaps(l.last) && now.Sub(l.lastAt) < coldLogEvery {
		return
	}
	l.failing.Store(false)
	if l.spoken {
		l.log.Info("reads of evicted data work again", "failed", l.total, "after", now.Sub(l.since).Round(time.Second))
		l.next = now.Add(coldLogHush)
	}
}

package chunkcache

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/tierfs/tierfs/objstore"
)

// step is how many bytes arrive between two looks at whether a reader can be served.
const step = 128 << 10

// errCheck marks bytes from the store that Object.Check refused.
var errCheck = errors.New("batch check failed")

// load is the fetching of one extent. Its bytes arrive in order; readers are served from memory as soon as their bytes,
// and the batches that those belong to, are there and checked.
type load struct {
	object     Object
	table      *table
	start, end int64

	class      class         // guarded by Cache.mu
	elem       *list.Element // in a queue; guarded by Cache.mu
	background bool          // was started for no reader; set before it runs
	refs       int           // who uses buf; guarded by Cache.mu
	// fill is the range that the reader asked for, whose chunk is filled behind this load.
	fill [2]int64

	buf []byte // [start, end); what is below ready does not change any more

	mu      sync.Mutex
	ready   int64 // absolute; bytes below it may be read
	done    bool
	err     error // when done
	waiters []waiter
}

type waiter struct {
	need int64
	ch   chan struct{} // closed when ready reaches need, or at the end
}

// poll says whether the wait for the bytes below need is over, and with which result.
func (l *load) poll(need int64) (over bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready >= need || l.done, l.result(need)
}

// wait returns when all bytes below need may be read, or with the load's or the context's error.
func (l *load) wait(ctx context.Context, need int64) error {
	l.mu.Lock()
	if l.ready >= need || l.done {
		defer l.mu.Unlock()
		return l.result(need)
	}
	w := waiter{need, make(chan struct{})}
	l.waiters = append(l.waiters, w)
	l.mu.Unlock()
	select {
	case <-w.ch:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.result(need)
	case <-ctx.Done():
		l.leave(w)
		return context.Cause(ctx)
	}
}

func (l *load) result(need int64) error {
	if l.ready >= need {
		return nil
	}
	return l.err
}

func (l *load) leave(w waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters = slices.DeleteFunc(l.waiters, func(o waiter) bool { return o.ch == w.ch })
}

// publish lets readers have the bytes below pos.
func (l *load) publish(pos int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = pos
	l.wake()
}

// finish ends the load. err is nil when all bytes are there.
func (l *load) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done, l.err = true, err
	l.wake()
}

func (l *load) wake() {
	l.waiters = slices.DeleteFunc(l.waiters, func(w waiter) bool {
		if !l.done && w.need > l.ready {
			return false
		}
		close(w.ch)
		return true
	})
}

// fetch brings the extent's bytes into buf. Bytes that fail their check are fetched a second time: the first time may have
// been an accident on the way.
func (c *Cache) fetch(ctx context.Context, l *load) error {
	err := c.stream(ctx, l)
	if !errors.Is(err, errCheck) {
		return err
	}
	c.opts.Metrics.BadBatch()
	c.log.Warn("bytes from the store fail their check; fetching them again", "key", l.object.Key, "error", err)
	err = c.stream(ctx, l)
	if !errors.Is(err, errCheck) {
		return err
	}
	c.opts.Metrics.BadBatch()
	return fmt.Errorf("%w: %s: %w", ErrBadObject, l.object.Key, err)
}

// stream is one GET, from where the load is to its end.
func (c *Cache) stream(ctx context.Context, l *load) error {
	from := l.ready // only this goroutine changes it
	pos := from
	r, err := c.opts.Store.GetRange(ctx, l.object.Key, from, l.end-from)
	if err != nil {
		return fmt.Errorf("fetch chunk at %d of %s: %w", from, l.object.Key, err)
	}
	defer r.Close()
	defer func() { c.opts.Metrics.Fetched(l.object.Label, pos-from) }()
	for looked := pos; pos < l.end; {
		n, err := r.Read(l.buf[pos-l.start : min(pos+step, l.end)-l.start])
		pos += int64(n)
		if pos-looked >= step || pos == l.end {
			looked = pos
			if err := l.verify(pos); err != nil {
				return err
			}
		}
		if err == io.EOF && pos < l.end {
			err = objstore.ErrShort
		}
		if err != nil && pos < l.end {
			return fmt.Errorf("fetch chunk at %d of %s: %w", pos, l.object.Key, err)
		}
	}
	return nil
}

// verify checks what has arrived below pos, as far as whole batches reach, and publishes it. Where the extent does not
// start at a known batch start nothing can be checked, and where it does not end at one, neither can its last bytes: both
// happen only without a usable index.
func (l *load) verify(pos int64) error {
	if l.object.Check == nil || !l.table.batch(l.start) {
		l.publish(pos)
		return nil
	}
	data := l.buf[l.ready-l.start : pos-l.start]
	covered, err := l.object.Check(data)
	if covered < 0 || covered > int64(len(data)) {
		return fmt.Errorf("%w at %d: %d of %d bytes covered", errCheck, l.ready, covered, len(data))
	}
	checked := l.ready + covered
	if err == nil && pos == l.end && checked < pos {
		if l.table.batch(l.end) {
			l.publish(checked)
			return fmt.Errorf("%w at %d: the batch does not end at %d", errCheck, checked, l.end)
		}
		checked = pos
	}
	if checked > l.ready {
		l.publish(checked)
	}
	if err != nil {
		return fmt.Errorf("%w at %d: %w", errCheck, checked, err)
	}
	return nil
}

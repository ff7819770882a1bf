package chunkcache

import (
	"errors"
	"fmt"
	"time"
)

// class is why something is fetched, the most urgent first.
type class uint8

const (
	waiting class = iota // a reader waits for it
	filling              // the rest of a chunk, behind a read
	ahead                // read ahead
	classes
)

const (
	// bufferLimit bounds the memory of fetches under way, unless a single one needs more.
	bufferLimit = 32 << 20
	// writeLimit bounds the memory of what was fetched and is being written. What would go beyond is not written.
	writeLimit = 24 << 20
	// fillQueue is how many loads may wait per slot for one of the background classes; older ones are forgotten.
	fillQueue = 4
)

// errForgotten is what becomes of a load that nobody waited for and that was given up before it began.
var errForgotten = errors.New("fetch given up before it began")

// add makes an extent and queues its load. c.mu is held; the range must be free.
func (c *Cache) add(obj *object, l *load) *extent {
	e := &extent{obj: obj, start: l.start, end: l.end, load: l, ahead: l.class == ahead, accessed: time.Now().UnixNano()}
	c.nonce++
	e.nonce = c.nonce
	if !obj.insert(e) {
		panic(fmt.Sprintf("chunkcache: %s: [%d, %d) is taken", obj.dir, l.start, l.end))
	}
	l.ready, l.refs = l.start, 1
	obj.loads++
	obj.table = l.table
	if e.ahead {
		c.aheadBytes += e.length()
	}
	c.enqueue(e)
	c.forgetOldest(l.class)
	return e
}

// forgetOldest gives up the oldest load of a background class when too many of them are queued. c.mu is held.
func (c *Cache) forgetOldest(k class) {
	if k != waiting && c.queues[k].Len() > fillQueue*c.opts.Concurrency {
		c.abort(c.queues[k].Front().Value.(*extent), errForgotten)
	}
}

func (c *Cache) enqueue(e *extent) {
	e.load.elem = c.queues[e.load.class].PushBack(e)
}

func (c *Cache) dequeue(e *extent) {
	if e.load.elem != nil {
		c.queues[e.load.class].Remove(e.load.elem)
		e.load.elem = nil
	}
}

// promote makes a queued load one that a reader waits for. c.mu is held.
func (c *Cache) promote(e *extent) {
	if e.state == queued && e.load.class != waiting {
		c.dequeue(e)
		e.load.class = waiting
		c.enqueue(e)
	}
}

// abandon is for a reader who leaves before he has [lo, hi) of an object: what is queued there for nobody else goes behind
// those who wait, and is forgotten like a fill when too much is queued. What is under way goes on.
func (c *Cache) abandon(key string, lo, hi int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	obj := c.byKey[key]
	if obj == nil {
		return
	}
	var left []*extent
	for _, e := range obj.extents[obj.at(lo):] {
		if e.start >= hi {
			break
		}
		if e.state == queued && e.load.class == waiting && e.pins == 0 {
			left = append(left, e)
		}
	}
	for _, e := range left {
		c.dequeue(e)
		e.load.class = filling
		c.enqueue(e)
		c.forgetOldest(filling)
	}
	if len(left) > 0 {
		c.dispatch() // what is behind them may be small enough
	}
}

// abort takes a queued extent out again. c.mu is held.
func (c *Cache) abort(e *extent, err error) {
	c.dequeue(e)
	c.loadEnded(e.obj)
	l := e.load
	c.remove(e)
	c.unref(l)
	l.finish(err)
}

// dispatch starts what may start. c.mu is held.
func (c *Cache) dispatch() {
	for !c.closed {
		e := c.nextLoad()
		if e == nil {
			return
		}
		c.dequeue(e)
		l := e.load
		if e.state != gone { // dropped, but readers wait for it
			e.state = running
		}
		l.background = l.class != waiting
		c.busy++
		c.busyBytes += e.length()
		if l.background {
			c.busyBehind++
			c.busyBehindBytes += e.length()
		}
		c.wg.Go(func() { c.run(e) })
	}
}

// nextLoad picks the next load: readers first, and the background never takes the last quarter of the slots and of the
// memory from them.
func (c *Cache) nextLoad() *extent {
	slots := c.opts.Concurrency
	if front := c.queues[waiting].Front(); front != nil {
		e := front.Value.(*extent)
		if c.busy < slots && (c.busy == 0 || c.busyBytes+e.length() <= bufferLimit) {
			return e
		}
		return nil
	}
	if !c.walked || c.busy >= slots || c.busyBehind > 0 && c.busyBehind >= slots-(slots+3)/4 {
		return nil
	}
	for k := filling; k < classes; k++ {
		if front := c.queues[k].Front(); front != nil {
			e := front.Value.(*extent)
			if c.busyBehind == 0 || c.busyBehindBytes+e.length() <= bufferLimit*3/4 {
				return e
			}
			return nil
		}
	}
	return nil
}

// run fetches one extent and puts it where it stays.
func (c *Cache) run(e *extent) {
	l := e.load
	room := c.reserve(e, l.background)
	if !room && l.background && c.giveUp(e) {
		return
	}
	l.buf = c.buffers.get(int(e.length()))
	err := c.fetch(c.ctx, l)
	if err != nil && c.ctx.Err() != nil {
		err = ErrClosed
	}
	c.mu.Lock()
	c.freeSlot(e)
	if err == nil && l.fill[1] > 0 && e.state == running {
		c.fillBehind(e.obj, l)
	}
	c.dispatch()
	if err != nil {
		c.unreserve(e)
		if e.state != gone {
			c.remove(e)
		}
		c.unref(l)
	}
	c.mu.Unlock()
	l.finish(err)
	if err == nil {
		c.keep(e, l)
	}
}

// giveUp ends a background load that there is no room for, unless a reader has come to wait for it.
func (c *Cache) giveUp(e *extent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.pins > 0 {
		return false
	}
	c.freeSlot(e)
	l := e.load
	if e.state != gone {
		c.remove(e)
	}
	c.unref(l)
	c.dispatch()
	return true
}

// freeSlot gives e's place among the fetches under way to others. c.mu is held.
func (c *Cache) freeSlot(e *extent) {
	c.busy--
	c.busyBytes -= e.length()
	if e.load.background {
		c.busyBehind--
		c.busyBehindBytes -= e.length()
	}
	c.loadEnded(e.obj)
}

// loadEnded counts one extent of obj less that is queued or fetched. c.mu is held.
func (c *Cache) loadEnded(obj *object) {
	obj.loads--
	if obj.loads == 0 {
		obj.table = nil
	}
}

// unref ends one use of l's bytes. c.mu is held.
func (c *Cache) unref(l *load) {
	l.refs--
	if l.refs == 0 && l.buf != nil {
		c.buffers.put(l.buf)
		l.buf = nil
	}
}

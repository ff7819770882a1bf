package chunkcache

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ReadAt fills all of p with the object's bytes from off on, or returns an error. Bytes that the cache has are read from
// it; for others it waits for the store, at most as long as ctx lives: then the error is ctx's cause, and the fetch goes
// on for those who come later. It may be called in parallel. Errors are ErrRange, ErrBadObject, ErrClosed, ctx's cause, or
// those of the store, wrapped; after an error p's content is undefined.
func (c *Cache) ReadAt(ctx context.Context, o Object, p []byte, off int64) error {
	if off < 0 || off > o.Size || int64(len(p)) > o.Size-off {
		return fmt.Errorf("%w: %d bytes at %d of %s, which has %d", ErrRange, len(p), off, o.Key, o.Size)
	}
	c.readers.Add(1)
	defer c.left()
	cold, retried := false, false
	for at := 0; at < len(p); {
		pos := off + int64(at)
		g, err := c.pin(ctx, o, pos, int64(len(p)-at), at == 0 && !retried)
		if err != nil {
			c.abandon(o.Key, pos, off+int64(len(p)))
			return c.readDone(true, err)
		}
		n := int(min(int64(len(p)-at), g.extent.end-pos))
		waited, err := c.copyOut(ctx, &g, p[at:at+n], pos)
		if errors.Is(err, errBadChunk) {
			c.discard(g.extent, err)
		}
		behind := c.unpin(&g)
		cold = cold || waited
		switch {
		case err == nil:
			at += n
		case errors.Is(err, errBadChunk):
		case behind && !retried && ctx.Err() == nil && c.ctx.Err() == nil:
			retried = true // what failed was nobody's read; this reader's own fetch has not been tried
		default:
			c.abandon(o.Key, pos, off+int64(len(p)))
			return c.readDone(true, err)
		}
	}
	return c.readDone(cold, nil)
}

// left is the end of a read.
func (c *Cache) left() {
	if c.readers.Add(-1) == 0 && c.closing.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.freed.Broadcast()
	}
}

// readDone counts one read.
func (c *Cache) readDone(cold bool, err error) error {
	if cold {
		c.misses.Add(1)
		c.opts.Metrics.Miss()
	} else {
		c.hits.Add(1)
		c.opts.Metrics.Hit()
	}
	return err
}

// grip is a reader's hold on an extent.
type grip struct {
	extent *extent
	load   *load      // where the bytes are, or
	file   *chunkFile // nil with load: not open yet
	// need is how far the load must have come before the reader is served.
	need int64
}

// pin finds the extent that holds off, and arranges for all of the n bytes there to be fetched that nobody has or fetches.
// The extent stays as it is until unpin.
func (c *Cache) pin(ctx context.Context, o Object, off, n int64, first bool) (grip, error) {
	var t *table
	planned := false
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		obj := c.byKey[o.Key]
		if obj == nil || obj.scan != nil {
			if err := c.meet(ctx, o.Key); err != nil {
				return grip{}, err
			}
			continue
		}
		if e := obj.find(off); e != nil && c.suits(e, off, n) {
			g := c.grab(e, off, n, planned)
			if first {
				c.advance(obj, o, off, n)
			}
			return g, nil
		}
		if t == nil {
			t = c.cachedTable(obj, o.Size)
		}
		if t == nil {
			var err error
			if t, err = c.awaitTable(ctx, obj, o); err != nil {
				return grip{}, err
			}
			continue
		}
		c.plan(obj, o, t, off, n)
		planned = true
		c.dispatch()
	}
	return grip{}, ErrClosed
}

// grab pins e. c.mu is held.
func (c *Cache) grab(e *extent, off, n int64, planned bool) grip {
	e.pins++
	g := grip{extent: e, load: e.load, file: e.file, need: min(off+n, e.end)}
	if l := e.load; l != nil {
		l.refs++
		if planned {
			// The reader whose fetch this is waits for all that a first fetch brings: see FirstFetch.
			g.need = max(g.need, min(e.end, e.start+c.opts.FirstFetch))
		}
	}
	c.touch(e)
	return g
}

// touch makes e the most recently used. c.mu is held.
func (c *Cache) touch(e *extent) {
	e.recent = true
	if e.ahead {
		e.ahead = false
		c.aheadBytes -= e.length()
	}
	e.accessed = time.Now().UnixNano()
	if e.state == stored && c.lru.first != e {
		e.unlist()
		c.lru.pushFirst(e)
	}
}

// suits says whether a reader of n bytes at off should take what e has or will have. An extent that has not been begun, and
// whose bytes before off the reader would have to wait for, is taken out: the reader's own bytes go first, and what is
// left of the chunk is planned again behind them. c.mu is held.
func (c *Cache) suits(e *extent, off, n int64) bool {
	if e.state != queued || e.load.class == waiting {
		return true
	}
	if min(off+n, e.end)-e.start > c.opts.FirstFetch+n {
		e.obj.users++ // the caller goes on with it
		c.abort(e, errForgotten)
		e.obj.users--
		return false
	}
	c.promote(e)
	c.dispatch()
	return true
}

// awaitTable waits for the index of obj. c.mu is held, but not while waiting.
func (c *Cache) awaitTable(ctx context.Context, obj *object, o Object) (*table, error) {
	call := c.loadTable(obj, o)
	obj.users++
	c.mu.Unlock()
	err := c.await(ctx, call.done)
	c.mu.Lock()
	obj.users--
	if err != nil {
		c.settle(obj)
		return nil, err
	}
	if call.table == nil {
		return nil, ErrClosed
	}
	return call.table, nil
}

// await waits for done, as a reader that waits for the store.
func (c *Cache) await(ctx context.Context, done <-chan struct{}) error {
	defer c.waitingNow()()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitingNow counts a waiting reader until the result is called.
func (c *Cache) waitingNow() func() {
	c.waiting.Add(1)
	c.opts.Metrics.Waiting(1)
	start := time.Now()
	return func() {
		c.waiting.Add(-1)
		c.opts.Metrics.Waiting(-1)
		c.opts.Metrics.ColdRead(time.Since(start).Seconds())
	}
}

// copyOut fills p from the extent that g holds, and says whether it had to wait for that.
func (c *Cache) copyOut(ctx context.Context, g *grip, p []byte, pos int64) (waited bool, err error) {
	e := g.extent
	if l := g.load; l != nil {
		if waited, err = c.awaitLoad(ctx, l, g.need); err != nil {
			// The reader's own bytes may be there and good all the same.
			if over, own := l.poll(pos + int64(len(p))); !over || own != nil {
				return waited, err
			}
		}
		copy(p, l.buf[pos-e.start:])
		return waited, nil
	}
	f := g.file
	if f == nil {
		if f, err = c.openFile(e); err != nil {
			return false, err
		}
	}
	return false, f.readAt(p, pos-e.start, &c.scratch)
}

func (c *Cache) awaitLoad(ctx context.Context, l *load, need int64) (bool, error) {
	if over, err := l.poll(need); over {
		return false, err
	}
	defer c.waitingNow()()
	return true, l.wait(ctx, need)
}

// unpin ends a reader's hold, and says whether what it held was fetched for no reader.
func (c *Cache) unpin(g *grip) (behind bool) {
	c.mu.Lock()
	e := g.extent
	e.pins--
	if g.load != nil {
		behind = g.load.background
		c.unref(g.load)
	}
	var f *chunkFile
	if e.state == gone {
		f = c.closable(e)
	}
	c.mu.Unlock()
	f.close()
	return behind
}

// discard drops a chunk whose file is not what it should be.
func (c *Cache) discard(e *extent, err error) {
	c.mu.Lock()
	if e.state != stored {
		c.mu.Unlock()
		return
	}
	c.remove(e)
	c.mu.Unlock()
	c.opts.Metrics.BadChunk()
	c.log.Warn("chunk dropped; it will be fetched again", "object", e.obj.dir, "chunk", fileName(e), "error", err)
	c.dispose([]*extent{e})
}

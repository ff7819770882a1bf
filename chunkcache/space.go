package chunkcache

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// aheadGrace is for how long bytes that were read ahead are worth as much as others. When nobody has come for them by
	// then they go first.
	aheadGrace = 30 * time.Second
	// heldLimit bounds the memory for complete fetches that cannot go to the disk.
	heldLimit = 16 << 20
)

// space is the accounting of the disk. Guarded by Cache.mu.
type space struct {
	budget     int64
	used       int64 // files, and what is reserved for those to come
	files      int   // likewise
	dying      int64 // part of used: being unlinked
	dyingFiles int
}

// refreshBudget looks at how large the disk is. Without an answer the size alone counts.
func (c *Cache) refreshBudget() {
	budget := c.opts.Size
	var st unix.Statfs_t
	if err := unix.Fstatfs(c.opts.Dir, &st); err == nil {
		budget = min(budget, int64(float64(st.Blocks)*float64(st.Bsize)*float64(c.opts.SizePercent)/100))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.space.budget = budget
	c.kickIfFull()
}

// reserve takes e's size out of the budget and says whether that could be done. It makes room when mayTrim; else it does
// not touch the disk. Nothing can be reserved before it is known what is there.
func (c *Cache) reserve(e *extent, mayTrim bool) bool {
	size := fileSize(e.length())
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		s := &c.space
		if e.state == gone || !c.walked || c.closed || size > s.budget {
			return false
		}
		if s.used+size <= s.budget && s.files < c.opts.MaxObjects {
			s.used += size
			s.files++
			e.size = size
			c.kickIfFull()
			return true
		}
		if !mayTrim {
			return false
		}
		victims := c.victims(s.budget-size, c.opts.MaxObjects-1)
		switch {
		case len(victims) > 0:
			c.mu.Unlock()
			c.dispose(victims)
			c.mu.Lock()
		case s.dying > 0:
			c.freed.Wait()
		default:
			return false
		}
	}
}

// unreserve gives back what was reserved for e. c.mu is held.
func (c *Cache) unreserve(e *extent) {
	if e.size > 0 {
		c.space.used -= e.size
		c.space.files--
		e.size = 0
	}
}

// kickIfFull asks for a trim when little of the room between the low watermark and the budget is left. c.mu is held.
func (c *Cache) kickIfFull() {
	s := &c.space
	high := func(limit int64) int64 { return limit - (limit-c.low(limit))/4 }
	if s.used-s.dying > high(s.budget) || int64(s.files-s.dyingFiles) > high(int64(c.opts.MaxObjects)) {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

func (c *Cache) low(limit int64) int64 { return limit * int64(c.opts.LowWatermarkPercent) / 100 }

// trim drops the least recently used files until the low watermark is reached.
func (c *Cache) trim() {
	c.mu.Lock()
	victims := c.victims(c.low(c.space.budget), int(c.low(int64(c.opts.MaxObjects))))
	c.mu.Unlock()
	c.dispose(victims)
}

// victims takes out of their objects as many unpinned files as must go so that no more than bytes and files stay: first
// what was read ahead in vain, then the least recently used. The caller disposes of them. c.mu is held.
func (c *Cache) victims(bytes int64, files int) []*extent {
	var out []*extent
	s := &c.space
	take := func(l *lru, before int64) {
		for e := l.last; e != nil && (s.used-s.dying > bytes || s.files-s.dyingFiles > files); {
			next := e.up
			if e.accessed > before {
				return
			}
			if e.pins == 0 {
				c.remove(e)
				out = append(out, e)
			}
			e = next
		}
	}
	take(&c.unread, time.Now().Add(-aheadGrace).UnixNano())
	take(&c.lru, math.MaxInt64)
	take(&c.unread, math.MaxInt64)
	c.opts.Metrics.Trimmed(len(out))
	return out
}

// remove takes e out of its object and off all lists, whatever its state; its file stays for dispose. c.mu is held.
func (c *Cache) remove(e *extent) {
	e.obj.remove(e)
	e.unlist()
	if e.ahead {
		e.ahead = false
		c.aheadBytes -= e.length()
	}
	if e.state == stored {
		c.space.dying += e.size
		c.space.dyingFiles++
	}
	e.state = gone
	c.settle(e.obj)
}

// dispose unlinks the files of extents that were stored and have been removed, and gives back their room.
func (c *Cache) dispose(extents []*extent) {
	for _, e := range extents {
		err := c.disk.unlink(e.obj.dir, fileName(e))
		c.mu.Lock()
		f := c.closable(e)
		c.space.dying -= e.size
		c.space.dyingFiles--
		if err == nil {
			c.unreserve(e)
		}
		empty := c.objects[e.obj.hash] == nil
		c.freed.Broadcast()
		c.mu.Unlock()
		f.close()
		if err != nil {
			c.diskFailed("remove chunk", err)
		}
		if empty {
			c.disk.rmdir(e.obj.dir)
		}
	}
}

// settle forgets obj when nothing is left of it and nobody is about to add to it. c.mu is held.
func (c *Cache) settle(obj *object) {
	if len(obj.extents) == 0 && obj.users == 0 && obj.scan == nil && obj.index == nil && c.objects[obj.hash] == obj {
		delete(c.objects, obj.hash)
		delete(c.byKey, obj.key)
	}
}

// keep puts a complete load on the disk, or, where that cannot be done, leaves it in memory for a while.
func (c *Cache) keep(e *extent, l *load) {
	f := c.write(e, l)
	c.mu.Lock()
	var drop []*extent
	switch {
	case e.state == gone && f != nil: // dropped meanwhile
		e.state = stored
		c.remove(e)
		drop = []*extent{e}
	case e.state == gone:
		c.unreserve(e)
	case f != nil:
		e.state, e.load = stored, nil
		if e.ahead {
			c.unread.insert(e)
		} else {
			c.lru.insert(e)
		}
		f = c.adoptFile(e, f)
	default:
		c.unreserve(e)
		c.hold(e)
		l.refs++
	}
	c.unref(l)
	c.mu.Unlock()
	f.close()
	c.dispose(drop)
}

// write makes e's file, and returns nil when there is to be none.
func (c *Cache) write(e *extent, l *load) *chunkFile {
	if !c.diskUsable() || !c.admit(e) {
		c.opts.Metrics.Bypass()
		return nil
	}
	f, err := c.disk.write(e, l.buf)
	c.mu.Lock()
	c.writing -= e.length()
	if errors.Is(err, unix.ENOSPC) {
		// Others take the room that the settings promise. What is there by now is what there is, until the next look.
		c.space.budget = min(c.space.budget, c.space.used-e.size)
	}
	c.mu.Unlock()
	if err != nil {
		c.opts.Metrics.Bypass()
		c.diskFailed("write chunk", err)
		return nil
	}
	c.diskWorked()
	return f
}

// admit says whether e may be written now: its room is reserved, and what waits for a slow disk does not take too much
// memory. It waits until it is known what is on the disk.
func (c *Cache) admit(e *extent) bool {
	c.mu.Lock()
	ok := e.state != gone && (c.writing == 0 || c.writing+e.length() <= writeLimit)
	if ok {
		c.writing += e.length()
	}
	c.mu.Unlock()
	if !ok {
		return false
	}
	select {
	case <-c.walkDone:
	case <-c.ctx.Done():
	}
	if e.size > 0 || c.reserve(e, true) {
		return true
	}
	c.mu.Lock()
	c.writing -= e.length()
	c.mu.Unlock()
	return false
}

// hold keeps a complete load in memory, and lets go of older ones. c.mu is held.
func (c *Cache) hold(e *extent) {
	e.state = held
	c.heldBytes += e.length()
	c.held.pushFirst(e)
	for c.heldBytes > heldLimit {
		c.letGo(c.held.last)
	}
}

// letGo forgets a held extent. c.mu is held.
func (c *Cache) letGo(e *extent) {
	c.heldBytes -= e.length()
	l := e.load
	c.remove(e)
	c.unref(l)
}

// rank sorts extents found on the disk into the LRU, behind all that was used since.
func (c *Cache) rank(found []*extent) {
	slices.SortFunc(found, func(a, b *extent) int { return cmp.Compare(b.accessed, a.accessed) })
	for _, e := range found {
		if e.state == stored && e.list == nil {
			c.lru.pushLast(e)
		}
	}
}

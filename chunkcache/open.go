package chunkcache

import "fmt"

// maxOpen is how many chunk files are kept open; readers may have more open for as long as they read.
const maxOpen = 512

// sums are a chunk's checksums, as they are remembered while its file is closed.
type sums struct {
	nonce uint64
	sums  []uint64
}

// openFile returns the open file of e, which the caller has pinned.
func (c *Cache) openFile(e *extent) (*chunkFile, error) {
	var known []uint64
	if v, ok := c.memory.Get(e.nonce); ok {
		if s, ok := v.(*sums); ok && s.nonce == e.nonce && int64(len(s.sums)) == blocks(e.length()) {
			known = s.sums
		}
	}
	f, err := c.disk.read(e, known)
	if err != nil {
		return nil, fmt.Errorf("open chunk: %w", err)
	}
	if known == nil {
		c.memory.Set(e.nonce, &sums{e.nonce, f.sums}, int64(64+8*len(f.sums)))
	}
	c.mu.Lock()
	surplus := f
	if e.file == nil {
		surplus = c.adoptFile(e, f)
	}
	f = e.file
	c.mu.Unlock()
	surplus.close()
	return f, nil
}

// adoptFile makes f the open file of e, and returns another one that is to be closed for it, or nil. c.mu is held.
func (c *Cache) adoptFile(e *extent, f *chunkFile) *chunkFile {
	e.file, e.recent = f, true
	if e.state == gone {
		return nil // its last reader closes it
	}
	surplus := c.evictFile()
	c.open = append(c.open, e)
	e.slot = len(c.open)
	return surplus
}

// evictFile takes the file of an extent that nobody has read since the clock's hand came by, when there are too many.
// c.mu is held.
func (c *Cache) evictFile() *chunkFile {
	if len(c.open) < maxOpen {
		return nil
	}
	for range 2 * len(c.open) {
		c.hand = (c.hand + 1) % len(c.open)
		e := c.open[c.hand]
		if e.pins == 0 && !e.recent {
			return c.closable(e)
		}
		e.recent = false
	}
	return nil
}

// closable takes the open file from e if nobody reads it. c.mu is held.
func (c *Cache) closable(e *extent) *chunkFile {
	if e.pins > 0 || e.file == nil {
		return nil
	}
	f := e.file
	e.file = nil
	if e.slot > 0 {
		last := c.open[len(c.open)-1]
		c.open[e.slot-1], last.slot = last, e.slot
		c.open = c.open[:len(c.open)-1]
		e.slot = 0
	}
	return f
}

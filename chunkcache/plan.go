package chunkcache

// plan queues fetches for what nobody has of the n bytes at off. Each begins at a cut at or below the first missing byte
// and brings FirstFetch bytes where there is room for them. c.mu is held.
func (c *Cache) plan(obj *object, o Object, t *table, off, n int64) {
	c.dropMisfits(obj, t, off, off+n)
	for pos := off; pos < off+n; {
		if e := obj.find(pos); e != nil {
			pos = e.end
			continue
		}
		lo, hi := obj.gap(pos, o.Size)
		start := max(lo, t.floor(pos))
		end := c.firstEnd(t, start, min(off+n, hi), hi)
		l := &load{object: o, table: t, start: start, end: end, class: waiting, fill: [2]int64{pos, min(off+n, end)}}
		c.add(obj, l)
		pos = end
	}
}

// firstEnd is where a reader's fetch from start ends, if want is the last byte that it wants and hi the next one that is
// there already. A read of more than a chunk is cut into several fetches.
func (c *Cache) firstEnd(t *table, start, want, hi int64) int64 {
	if most := start + max(c.opts.ChunkSize, c.opts.FirstFetch); want > most {
		if cut := t.floor(most); cut > start {
			return min(cut, hi)
		}
		want = start + 1
	}
	return min(hi, t.ceil(min(t.size, max(want, start+c.opts.FirstFetch))))
}

// dropMisfits takes out what borders on [lo, hi) and was cut after another index: what would be fetched between could not
// be checked. c.mu is held.
func (c *Cache) dropMisfits(obj *object, t *table, lo, hi int64) {
	var misfits, drop []*extent
	for i := max(0, obj.at(lo)-1); i < len(obj.extents) && obj.extents[i].start <= hi; i++ {
		if e := obj.extents[i]; e.state >= stored && !(t.fits(e.start) && t.fits(e.end)) {
			misfits = append(misfits, e)
		}
	}
	obj.users++ // the caller goes on with it
	for _, e := range misfits {
		if e.state == held {
			c.letGo(e)
			continue
		}
		c.remove(e)
		drop = append(drop, e)
	}
	obj.users--
	if len(drop) > 0 {
		c.wg.Go(func() { c.dispose(drop) })
	}
}

// fillBehind queues what is missing of the chunks that a reader's fetch was for. What stands after the read comes first:
// brokers read forward. c.mu is held.
func (c *Cache) fillBehind(obj *object, l *load) {
	if c.failing {
		return
	}
	t := l.table
	for k := t.chunkAt(l.fill[0]); k <= t.chunkAt(l.fill[1]-1); k++ {
		lo, hi := t.chunk(k)
		c.dropMisfits(obj, t, lo, hi)
		for _, g := range obj.gaps(lo, hi) {
			cl := filling
			if g[0] < l.fill[0] {
				cl = ahead
			}
			c.addBehind(obj, l.object, t, g, cl)
		}
	}
}

// addBehind queues one range for no reader. Read ahead has a budget of a quarter of the cache; it returns false when that
// is used up. c.mu is held.
func (c *Cache) addBehind(obj *object, o Object, t *table, g [2]int64, cl class) bool {
	if cl == ahead && c.aheadBytes > 0 && c.aheadBytes+g[1]-g[0] > c.space.budget/4 {
		return false
	}
	c.add(obj, &load{object: o, table: t, start: g[0], end: g[1], class: cl})
	return true
}

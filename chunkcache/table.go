package chunkcache

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"time"
)

const (
	// plainStep is the grain of cuts where no batch starts are known.
	plainStep = 4096
	// maxGap is how far apart two known batch starts may be. A wider gap is cut at plain offsets: memory for a chunk must
	// be bounded, and no broker writes batches of that size.
	maxGap = 64 << 20
	// grain thins an index: of batch starts closer together than this, one is kept. A first fetch then takes up to this
	// many bytes more at each end than it must.
	grain = 16 << 10
	// fallbackTime is for how long an index that could not be had is not asked for again.
	fallbackTime = 30 * time.Second
)

// table is where an object may be cut, derived from its index. Immutable.
type table struct {
	hash   hash
	size   int64
	plain  bool    // no index: cut anywhere
	starts []int64 // known batch starts, ascending from 0
	chunks []int64 // where chunks start, ascending from 0; each can be cut at
}

// newTable derives a table from an index. A nil index means plain offsets. An index that does not ascend within the
// object is an error.
func newTable(h hash, index []int64, size, chunk int64) (*table, error) {
	t := &table{hash: h, size: size, plain: len(index) == 0}
	if t.plain || index[0] != 0 {
		index = append([]int64{0}, index...)
	}
	for i := 1; i < len(index); i++ {
		if index[i] <= index[i-1] || index[i] >= size {
			return nil, fmt.Errorf("index entry %d: position %d after %d in an object of %d bytes", i, index[i], index[i-1], size)
		}
	}
	t.starts = index
	t.chunks = t.grid(chunk)
	t.starts = t.thin(index)
	return t, nil
}

// grid places chunk k at the cut nearest to k × chunk; of two equally near, the lower one.
func (t *table) grid(chunk int64) []int64 {
	grid := []int64{0}
	for target := chunk; target < t.size; target += chunk {
		cut, above := t.floor(target), t.ceil(target)
		if above-target < target-cut {
			cut = above
		}
		if cut > grid[len(grid)-1] && cut < t.size {
			grid = append(grid, cut)
		}
	}
	return grid
}

// thin drops batch starts that are close to the one before, but none that a chunk starts at and none whose loss would
// make a gap too wide.
func (t *table) thin(index []int64) []int64 {
	kept := make([]int64, 0, min(int64(len(index)), t.size/grain+1)+int64(len(t.chunks)))
	kept = append(kept, 0)
	for i := 1; i < len(index); i++ {
		last := kept[len(kept)-1]
		next := t.size
		if i+1 < len(index) {
			next = index[i+1]
		}
		_, isChunk := slices.BinarySearch(t.chunks, index[i])
		if isChunk || index[i]-last >= grain || next-last > maxGap {
			kept = append(kept, index[i])
		}
	}
	return slices.Clip(kept)
}

// span returns the two neighbouring batch starts (or the object's end) around off, and whether the range between them
// may be cut anywhere.
func (t *table) span(off int64) (lo, hi int64, open bool) {
	i := sort.Search(len(t.starts), func(i int) bool { return t.starts[i] > off })
	lo, hi = t.starts[i-1], t.size
	if i < len(t.starts) {
		hi = t.starts[i]
	}
	return lo, hi, t.plain || hi-lo > maxGap
}

// floor is the last cut at or below off; ceil is the first at or above it. off is in [0, size].
func (t *table) floor(off int64) int64 {
	lo, _, open := t.span(off)
	if open {
		return lo + (off-lo)/plainStep*plainStep
	}
	return lo
}

func (t *table) ceil(off int64) int64 {
	if off >= t.size {
		return t.size
	}
	lo, hi, open := t.span(off)
	switch {
	case off == lo:
		return off
	case open:
		return min(hi, lo+(off-lo+plainStep-1)/plainStep*plainStep)
	}
	return hi
}

// starts batch: whether a batch is known to start (or the last one to end) at off.
func (t *table) batch(off int64) bool {
	_, ok := slices.BinarySearch(t.starts, off)
	return ok || off == t.size
}

// fits says whether an extent that another table made may border on one of this table at off.
func (t *table) fits(off int64) bool {
	if t.batch(off) {
		return true
	}
	if off > t.size {
		return false
	}
	_, _, open := t.span(off)
	return open
}

// chunk returns chunk k's range, chunkAt the number of the chunk that holds off.
func (t *table) chunk(k int) (lo, hi int64) {
	if k+1 < len(t.chunks) {
		return t.chunks[k], t.chunks[k+1]
	}
	return t.chunks[k], t.size
}

func (t *table) chunkAt(off int64) int {
	return sort.Search(len(t.chunks), func(i int) bool { return t.chunks[i] > off }) - 1
}

// cost is what t takes in memory, in bytes.
func (t *table) cost() int64 { return int64(128 + 8*(cap(t.starts)+cap(t.chunks))) }

// indexCall is one call of Object.Index, shared by all who need its result.
type indexCall struct {
	done  chan struct{}
	table *table // set before done is closed; nil: the cache was closed
	// ahead is what is to be read ahead when the table is there. Guarded by Cache.mu.
	ahead [][2]int64
}

// cachedTable returns the object's table if it is in memory. c.mu is held.
func (c *Cache) cachedTable(obj *object, size int64) *table {
	if obj.table != nil {
		return obj.table
	}
	if v, ok := c.memory.Get(tableKey(obj.hash)); ok {
		if t, ok := v.(*table); ok && t.hash == obj.hash && t.size == size {
			return t
		}
	}
	return nil
}

func tableKey(h hash) uint64 { return binary.LittleEndian.Uint64(h[:8]) }

// loadTable has the index of obj read and decoded, once for all who ask at the same time. c.mu is held.
func (c *Cache) loadTable(obj *object, o Object) *indexCall {
	if obj.index != nil {
		return obj.index
	}
	call := &indexCall{done: make(chan struct{})}
	obj.index = call
	c.wg.Go(func() {
		t, life := c.buildTable(obj.hash, o)
		if t != nil {
			c.memory.SetWithTTL(tableKey(t.hash), t, t.cost(), life)
		}
		c.mu.Lock()
		call.table = t
		obj.index = nil
		for _, r := range call.ahead {
			if t != nil && !c.closed {
				c.readAhead(obj, o, t, r[0], r[1])
			}
		}
		c.settle(obj)
		c.mu.Unlock()
		close(call.done)
	})
	return call
}

// buildTable returns the table of o and for how long it may be remembered (0: for ever). It falls back on plain offsets
// when there is no usable index, and returns nil when the cache is being closed.
func (c *Cache) buildTable(h hash, o Object) (*table, time.Duration) {
	var index []int64
	var err error
	if o.Index != nil {
		index, err = o.Index(c.ctx)
	}
	if c.ctx.Err() != nil {
		return nil, 0
	}
	if err == nil {
		var t *table
		if t, err = newTable(h, index, o.Size, c.opts.ChunkSize); err == nil {
			return t, 0
		}
	}
	c.log.Warn("no usable index; the object is cut at plain offsets", "key", o.Key, "error", err)
	t, err := newTable(h, nil, o.Size, c.opts.ChunkSize)
	if err != nil {
		panic("chunkcache: a table of plain offsets cannot fail: " + err.Error())
	}
	return t, fallbackTime
}

package chunkcache

import (
	"crypto/sha256"
	"slices"
	"sort"
)

// hash identifies an object on disk: the first 16 bytes of its key's SHA-256.
type hash [16]byte

func hashKey(key string) hash {
	sum := sha256.Sum256([]byte(key))
	return hash(sum[:16])
}

// state is where an extent is in its life. It only moves down this list.
type state uint8

const (
	queued  state = iota // waits for a slot
	running              // is fetched or written
	stored               // a file
	held                 // complete, but kept in memory only
	gone                 // no longer in its object; who has pinned it may go on
)

// extent is a range of an object that is in the cache or on its way. The extents of an object never overlap. All of it is
// guarded by Cache.mu but for the fields that never change.
type extent struct {
	obj        *object // never changes
	start, end int64   // never change
	nonce      uint64  // never changes; names the file

	state    state
	pins     int   // readers; a pinned extent is not trimmed and its file not closed
	load     *load // while the bytes are in memory
	size     int64 // bytes of the budget
	accessed int64 // ns since 1970
	ahead    bool  // read ahead, and nobody has read it yet

	file    *chunkFile // while open
	slot    int        // in Cache.open, while open
	recent  bool       // read since the clock's hand came by
	list    *lru       // that it is on
	up, low *extent    // neighbours there
}

func (e *extent) length() int64 { return e.end - e.start }

// object is what the cache knows of one object. It exists while it has extents, or somebody is about to add some.
// Guarded by Cache.mu.
type object struct {
	hash    hash   // never changes
	dir     string // never changes; its directory
	key     string // "" until it is read for the first time
	extents []*extent

	scan    chan struct{} // closed when its directory has been read; nil: it has been
	index   *indexCall    // under way
	table   *table        // while there are loads
	loads   int           // extents queued or running
	users   int           // who is about to add extents
	streams *streams
}

// at returns the index of the extent that holds off, or of the first one after it.
func (o *object) at(off int64) int {
	return sort.Search(len(o.extents), func(i int) bool { return o.extents[i].end > off })
}

// find returns the extent that holds off, or nil.
func (o *object) find(off int64) *extent {
	if i := o.at(off); i < len(o.extents) && o.extents[i].start <= off {
		return o.extents[i]
	}
	return nil
}

// gap returns the range around off that no extent holds, within [0, size).
func (o *object) gap(off, size int64) (lo, hi int64) {
	i := o.at(off)
	hi = size
	if i < len(o.extents) {
		hi = min(hi, o.extents[i].start)
	}
	if i > 0 {
		lo = o.extents[i-1].end
	}
	return lo, hi
}

// gaps returns what of [lo, hi) no extent holds.
func (o *object) gaps(lo, hi int64) [][2]int64 {
	var out [][2]int64
	for i := o.at(lo); lo < hi; i++ {
		if i == len(o.extents) || o.extents[i].start >= hi {
			return append(out, [2]int64{lo, hi})
		}
		if e := o.extents[i]; e.start > lo {
			out = append(out, [2]int64{lo, e.start})
		}
		lo = o.extents[i].end
	}
	return out
}

// insert adds e, and refuses it when it would overlap.
func (o *object) insert(e *extent) bool {
	i := o.at(e.start)
	if i < len(o.extents) && o.extents[i].start < e.end {
		return false
	}
	o.extents = slices.Insert(o.extents, i, e)
	return true
}

func (o *object) remove(e *extent) {
	if i := o.at(e.start); i < len(o.extents) && o.extents[i] == e {
		o.extents = slices.Delete(o.extents, i, i+1)
	}
}

// lru is a list of extents, the most recent first.
type lru struct {
	first, last *extent
}

func (l *lru) pushFirst(e *extent) {
	e.list, e.up, e.low = l, nil, l.first
	if l.first != nil {
		l.first.up = e
	} else {
		l.last = e
	}
	l.first = e
}

// insert puts e among the others by when it was last used. What is new has its place near the first.
func (l *lru) insert(e *extent) {
	at := l.first
	for at != nil && at.accessed > e.accessed {
		at = at.low
	}
	switch {
	case at == nil:
		l.pushLast(e)
	case at == l.first:
		l.pushFirst(e)
	default:
		e.list, e.up, e.low = l, at.up, at
		at.up.low, at.up = e, e
	}
}

func (l *lru) pushLast(e *extent) {
	e.list, e.up, e.low = l, l.last, nil
	if l.last != nil {
		l.last.low = e
	} else {
		l.first = e
	}
	l.last = e
}

// unlist takes e from the list that it is on, if any.
func (e *extent) unlist() {
	l := e.list
	if l == nil {
		return
	}
	if e.up != nil {
		e.up.low = e.low
	} else {
		l.first = e.low
	}
	if e.low != nil {
		e.low.up = e.up
	} else {
		l.last = e.up
	}
	e.list, e.up, e.low = nil, nil, nil
}

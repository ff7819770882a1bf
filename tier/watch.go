package tier

// A Watch collects the partitions in which something changed that uploads or
// evictions may depend on. Each background loop has its own.
type Watch struct {
	v     *Volume
	c     chan struct{}
	dirty map[*Partition]struct{} // guarded by v.mu
}

// Watch starts a watch in which every partition counts as changed.
func (v *Volume) Watch() *Watch {
	w := &Watch{v: v, c: make(chan struct{}, 1), dirty: map[*Partition]struct{}{}}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.partitions {
		w.dirty[p] = struct{}{}
	}
	v.watches = append(v.watches, w)
	w.wake()
	return w
}

// C receives when Take has something to give.
func (w *Watch) C() <-chan struct{} { return w.c }

// Take returns the partitions that changed since the last call, in no order.
func (w *Watch) Take() []*Partition {
	w.v.mu.Lock()
	defer w.v.mu.Unlock()
	out := make([]*Partition, 0, len(w.dirty))
	for p := range w.dirty {
		out = append(out, p)
	}
	clear(w.dirty)
	return out
}

// Close ends the watch.
func (w *Watch) Close() {
	w.v.mu.Lock()
	defer w.v.mu.Unlock()
	for i, x := range w.v.watches {
		if x == w {
			w.v.watches = append(w.v.watches[:i:i], w.v.watches[i+1:]...)
			return
		}
	}
}

func (w *Watch) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// markDirty tells every watch of a partition. The caller holds v.mu.
func (v *Volume) markDirty(p *Partition) {
	for _, w := range v.watches {
		w.dirty[p] = struct{}{}
		w.wake()
	}
}

// touched tells the watches that something about a file of a partition changed.
func (v *Volume) touched(f *File) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	v.touchedLocked(f)
}

// touchedLocked is touched for callers that hold the file's lock.
func (v *Volume) touchedLocked(f *File) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, l := range f.links {
		p := v.partitions[l.dir]
		if p == nil {
			continue
		}
		if start, ok := segmentStart(l.name); ok {
			if i, ok := p.find(start); ok {
				p.lower(i, f.state)
			}
		}
		v.markDirty(p)
	}
}

func (v *Volume) wakeRetirer() {
	select {
	case v.retire <- struct{}{}:
	default:
	}
}

// RetireC receives when a tombstone may have become due.
func (v *Volume) RetireC() <-chan struct{} { return v.retire }

package tier

import "slices"

// A partition that has been tiered for long has many segments that nothing will ever
// be done with again. Its marks say how many of the first those are, so that a look
// at what may be due costs what is above them. They rise by looking, and fall with
// whatever changes below them.

// What the segments below each mark of a partition are.
const (
	markHeld = iota
	markRemote
)

// NotHeld lists the segments, in ascending order, from the oldest on that is not
// held. What it costs depends on those, not on how many are held below.
func (p *Partition) NotHeld() []Segment {
	return p.from(markHeld, Segment.Held)
}

// NotRemote lists the segments, in ascending order, from the oldest on that is not
// remote. What it costs depends on those, not on how many are remote below.
func (p *Partition) NotRemote() []Segment {
	return p.from(markRemote, func(s Segment) bool { return s.State == Remote })
}

// from lists the segments behind a mark and behind those that are done, up to which
// it raises the mark.
func (p *Partition) from(mark int, done func(Segment) bool) []Segment {
	p.v.mu.RLock()
	first, turns := p.marks[mark], p.turns
	entries := slices.Clone(p.segments[first:])
	p.v.mu.RUnlock()
	segs := list(entries)
	n := 0
	for n < len(segs) && done(segs[n]) {
		n++
	}
	if n > 0 {
		p.raise(mark, first+n, turns)
	}
	return segs[n:]
}

// raise lifts a mark after a look at the segments above it, unless one of them may
// have changed since that look began.
func (p *Partition) raise(mark, to, turns int) {
	p.v.mu.Lock()
	defer p.v.mu.Unlock()
	if p.turns == turns {
		p.marks[mark] = max(p.marks[mark], to)
	}
}

// lower takes the marks down to a segment that is of this state now, or was looked
// at under another number. The caller holds v.mu.
func (p *Partition) lower(i int, s State) {
	if s == Remote {
		return
	}
	p.marks[markRemote] = min(p.marks[markRemote], i)
	if !held(s) {
		p.marks[markHeld] = min(p.marks[markHeld], i)
	}
	p.turns++
}

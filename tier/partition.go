package tier

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
)

// Why no segment of a partition is tiered, beside what its layout and its name say.
const (
	// reasonUndecided stands while a volume shows no sign of its broker.
	reasonUndecided layout.Reason = "layout not known yet"
	// ReasonHiddenFile stands until .tierfs-partition is put back or removed.
	ReasonHiddenFile layout.Reason = "its .tierfs-partition cannot be read"
)

// A Partition is a directory that holds segments. Methods may be called in
// parallel; what they return may have changed when the caller looks.
type Partition struct {
	v   *Volume
	dir handle.Handle

	saving sync.Mutex // held while the hidden file is written

	// Guarded by v.mu.
	path     string // relative to the volume's root
	name     layout.Partition
	reason   layout.Reason // why its segments are not tiered; empty: they are
	state    partitionState
	unread   bool           // the hidden file cannot be read: state is not known
	segments []segmentEntry // ascending
	// marks are numbers of segments from the first that are known to need no more
	// looks; turns counts what may have made them wrong.
	marks [2]int
	turns int
	holes map[uint64]hole     // by start offset
	kept  map[uint64]struct{} // holes beside which a record was kept at boot
	gone  map[uint64]struct{} // start offsets of segments that the broker took away, while their indexes may stay
}

// partitionState is the content of the hidden file in a partition's directory.
type partitionState struct {
	Incarnation string        `json:"incarnation,omitempty"`
	Never       layout.Reason `json:"never,omitempty"`
}

// incarnation is zero where there is none.
func (s partitionState) incarnation() marker.Incarnation {
	inc, _ := marker.ParseIncarnation(s.Incarnation)
	return inc
}

type segmentEntry struct {
	start uint64
	file  *File
	known int64 // the tick at which it became known: that of the segment's sealing before it
}

// Segment is one segment of a partition at the time of a look.
type Segment struct {
	File  *File
	Start uint64
	// Next is the start of the next higher segment; without one the segment is
	// the active one.
	Next   uint64
	Active bool
	State  State
	Record marker.Record // valid for states with an object
}

// Name is the segment's name as the broker sees it.
func (s Segment) Name() string { return segmentName(s.Start) }

// Held reports whether the segment belongs to the uploaded prefix: an object has
// its bytes.
func (s Segment) Held() bool { return held(s.State) }

func held(s State) bool { return s != Local && s != Quarantined }

// Path is the partition's directory relative to the volume's root.
func (p *Partition) Path() string {
	p.v.mu.RLock()
	defer p.v.mu.RUnlock()
	return p.path
}

// Topic and number as the broker names them.
func (p *Partition) Name() layout.Partition {
	p.v.mu.RLock()
	defer p.v.mu.RUnlock()
	return p.name
}

// Reason says why the partition's segments are not tiered; empty: they are.
func (p *Partition) Reason() layout.Reason {
	p.v.mu.RLock()
	defer p.v.mu.RUnlock()
	return p.reason
}

// Segments lists the partition's segments in ascending order.
func (p *Partition) Segments() []Segment {
	p.v.mu.RLock()
	entries := slices.Clone(p.segments)
	p.v.mu.RUnlock()
	return list(entries)
}

// list looks at the files of the last segments of a partition.
func list(entries []segmentEntry) []Segment {
	out := make([]Segment, len(entries))
	for i, e := range entries {
		s := Segment{File: e.file, Start: e.start, Active: i == len(entries)-1}
		if !s.Active {
			s.Next = entries[i+1].start
		}
		e.file.mu.RLock()
		s.State, s.Record = e.file.state, e.file.rec
		e.file.mu.RUnlock()
		out[i] = s
	}
	return out
}

// Partitions lists the directories that hold segments, by path.
func (v *Volume) Partitions() []*Partition {
	v.mu.RLock()
	defer v.mu.RUnlock()
	out := make([]*Partition, 0, len(v.partitions))
	for _, p := range v.partitions {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Partition) int { return cmp.Compare(a.path, b.path) })
	return out
}

// PartitionOf returns the partition whose directory has the path.
func (v *Volume) PartitionOf(path string) (*Partition, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, p := range v.partitions {
		if p.path == path {
			return p, true
		}
	}
	return nil, false
}

// partitionAt returns the partition of a directory that is known to have one, and of
// which all is known. The caller holds no lock.
func (v *Volume) partitionAt(dir handle.Handle) *Partition {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if p := v.partitions[dir]; p != nil && !p.unread {
		return p
	}
	return nil
}

// partition returns the partition of a directory, made when it is new. If its hidden
// file cannot be read, it is one that is not tiered; each call reads the file again.
// The caller holds no lock.
func (v *Volume) partition(d Dir, path string) *Partition {
	if p := v.partitionAt(d.Handle); p != nil {
		return p
	}
	state, err := readPartitionState(d.FD)
	v.mu.Lock()
	p := v.partitions[d.Handle]
	isNew := p == nil
	var never layout.Reason
	switch {
	case isNew:
		p = &Partition{v: v, dir: d.Handle, path: path, state: state, unread: err != nil}
		v.partitions[d.Handle] = p
		p.classify()
	case p.unread && err == nil:
		never = p.state.Never
		p.state, p.unread = state, false
		p.classify()
		v.unwait()
		v.markDirty(p)
	}
	v.mu.Unlock()
	if isNew && err != nil {
		v.log.Error("a partition is not tiered until its hidden file is put back from a backup, or removed",
			"partition", path, "err", err)
	}
	if never != "" { // found while it could not be kept
		if err := p.disqualify(never); err != nil {
			v.log.Error("cannot keep that a partition is never tiered", "partition", path, "reason", never, "err", err)
		}
	}
	return p
}

// readPartitionState reads the hidden file of a partition's directory. Without one
// the state is empty.
func readPartitionState(dir int) (partitionState, error) {
	var state partitionState
	err := readJSON(dir, partitionFile, &state)
	if errors.Is(err, fs.ErrNotExist) {
		return partitionState{}, nil
	}
	if err == nil && state.Incarnation != "" {
		_, err = marker.ParseIncarnation(state.Incarnation)
	}
	if err != nil {
		return partitionState{}, err
	}
	return state, nil
}

// classify decides anew whether the partition is tiered. The caller holds v.mu.
func (p *Partition) classify() {
	if p.v.rules == nil {
		p.reason = reasonUndecided
		return
	}
	p.name, p.reason = p.v.rules.Classify(p.path)
	switch {
	case p.reason != "":
	case p.state.Never != "":
		p.reason = p.state.Never
	case p.unread:
		p.reason = ReasonHiddenFile
	}
}

// find returns the place of a start offset. The caller holds v.mu.
func (p *Partition) find(start uint64) (int, bool) {
	return slices.BinarySearchFunc(p.segments, start, func(e segmentEntry, s uint64) int { return cmp.Compare(e.start, s) })
}

// set puts a file into the catalog under a start offset. The caller holds v.mu.
func (p *Partition) set(start uint64, f *File) {
	i, ok := p.find(start)
	switch {
	case !ok:
		p.segments = slices.Insert(p.segments, i, segmentEntry{start, f, p.v.ticks.next()})
	case p.segments[i].file != f:
		p.segments[i] = segmentEntry{start, f, p.v.ticks.next()}
	}
	delete(p.gone, start)
	delete(p.kept, start)
	p.lower(i, Local)
	p.v.markDirty(p)
}

// unset takes a file out of the catalog if the start offset is its own.
func (p *Partition) unset(start uint64, f *File) {
	if i, ok := p.find(start); ok && p.segments[i].file == f {
		p.segments = slices.Delete(p.segments, i, i+1)
		p.went(start)
		p.turns++
		for mark := range p.marks {
			if i < p.marks[mark] {
				p.marks[mark]--
			}
		}
		p.v.markDirty(p)
	}
}

// ensureIncarnation mints the partition's incarnation: the registry's entry first,
// then the hidden file in the directory.
func (p *Partition) ensureIncarnation() (marker.Incarnation, error) {
	v := p.v
	v.mu.RLock()
	state, path, rules := p.state, p.path, v.rules
	v.mu.RUnlock()
	if state.Incarnation != "" {
		inc, err := marker.ParseIncarnation(state.Incarnation)
		if err != nil {
			return inc, err
		}
		v.mu.RLock()
		_, ok := v.registry[inc]
		v.mu.RUnlock()
		if ok {
			return inc, nil
		}
	}
	inc, err := v.register(path, rules.Kind())
	if err != nil {
		return inc, err
	}
	return inc, p.saveState("mint:partition", func(s *partitionState) { s.Incarnation = inc.String() })
}

// disqualify keeps durably that the partition is never tiered.
func (p *Partition) disqualify(why layout.Reason) error {
	return p.saveState("partition:never", func(s *partitionState) { s.Never = cmp.Or(s.Never, why) })
}

func (p *Partition) saveState(step string, change func(*partitionState)) error {
	p.saving.Lock()
	defer p.saving.Unlock()
	p.v.mu.Lock()
	before := p.state
	change(&p.state) // what is known counts, written or not
	state, unread := p.state, p.unread
	p.classify()
	p.v.markDirty(p)
	p.v.mu.Unlock()
	if state == before || unread { // what is there must not be lost
		return nil
	}
	fd, err := p.dir.Open(p.v.root, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC)
	if err == nil {
		defer unix.Close(fd)
		err = p.v.step(step, func() error { return writeJSON(fd, partitionFile, state) })
	}
	if err != nil {
		p.v.mu.Lock()
		p.state.Incarnation = before.Incarnation // not minted
		p.v.mu.Unlock()
	}
	return err
}

// moved renames the catalog's paths after a directory was renamed.
func (v *Volume) moved(oldPath, newPath string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.partitions {
		rest, ok := strings.CutPrefix(p.path, oldPath)
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		p.path = newPath + rest
		p.classify()
		v.markDirty(p)
		if len(p.holes) > 0 {
			v.unwait() // in a directory on its way out there is none
		}
	}
}

// Bounds reads what the broker's checkpoints allow.
func (v *Volume) Bounds() (layout.Bounds, error) {
	rules := v.Layout()
	if rules == nil {
		return nil, refuse(reasonUndecided)
	}
	return rules.Bounds(func(name string) ([]byte, error) { return durable.ReadFile(v.root, name, 64<<20) })
}

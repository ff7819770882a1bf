package tier

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
)

// A hole is a segment that went without its broker: its index is there, and
// neither the segment nor a marker of it. While a partition has one, its tombstones
// wait: what they name may be the only copy of what is missing.

// holeAge is how old a hole is before it is one that people are told of. Brokers
// rename a segment and then its index: for a moment every deletion looks like a hole.
const holeAge = time.Second

// hole is one that was seen.
type hole struct {
	since time.Time // zero: at boot, when no broker is at work
	told  bool
}

func (h hole) sure(now time.Time) bool { return now.Sub(h.since) >= holeAge }

// Holes lists, ascending, the start offsets of the holes among the files of a
// directory, given by their names below (see Counting) and the directory's path from
// the volume's root. rules may be nil while the layout is not known; where it has no index, or the
// directory is no partition or on its way out, there is no hole. Nor is there one
// beside a segment that its broker is about to delete or to replace (N.log.deleted
// and the like): the broker's next start goes on with that.
func Holes(rules layout.Rules, path string, names []string) []uint64 {
	suffix := indexOf(rules)
	if rules != nil {
		if _, why := rules.Classify(path); suffix == "" || why != "" {
			return nil
		}
	}
	there := map[uint64]bool{}
	var indexes []uint64
	for _, below := range names {
		name, visible := Visible(below)
		start, rest, ok := segment.ParseStem(name)
		switch {
		case !visible || !ok:
		case rest == logSuffix || strings.HasPrefix(rest, logSuffix+"."):
			there[start] = true
		case rest == suffix && name == below:
			indexes = append(indexes, start)
		}
	}
	out := slices.DeleteFunc(indexes, func(start uint64) bool { return there[start] })
	slices.Sort(out)
	return out
}

// Counting lists the names of the entries that can be a segment or an index: regular
// files, and links to where somebody keeps one. No marker is a link.
func Counting(entries []fs.DirEntry) (names []string) {
	for _, e := range entries {
		if e.Type().IsRegular() || e.Type()&fs.ModeSymlink != 0 && !Hidden(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// Holes lists the start offsets of the partition's holes, ascending, as they are
// now. A partition in which none was seen costs nothing.
func (p *Partition) Holes() []uint64 {
	p.v.mu.RLock()
	none := len(p.holes) == 0
	p.v.mu.RUnlock()
	if none {
		return nil
	}
	p.holed()
	p.v.mu.RLock()
	defer p.v.mu.RUnlock()
	var out []uint64
	for start, h := range p.holes {
		if h.sure(time.Now()) {
			out = append(out, start)
		}
	}
	slices.Sort(out)
	return out
}

// holed looks at the partition's directory and reports whether it has a hole; one
// that cannot be read may have.
func (p *Partition) holed() bool {
	v := p.v
	v.mu.RLock()
	turns := p.turns
	v.mu.RUnlock()
	names, err := v.countingNames(p)
	if errors.Is(err, unix.ESTALE) {
		return false // the directory is gone
	}
	if err != nil {
		v.log.Warn("cannot look for holes; nothing of the partition is deleted", "partition", p.Path(), "err", err)
		return true
	}
	v.mu.RLock()
	rules, path := v.rules, p.path
	v.mu.RUnlock()
	return p.noteHoles(Holes(rules, path, names), time.Now(), turns)
}

func (v *Volume) countingNames(p *Partition) ([]string, error) {
	dir, err := v.openDir(p.dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	entries, err := readEntries(dir)
	return Counting(entries), err
}

// noteHoles takes over which indexes stand alone, tells people of the holes that are
// not there for a moment only, and reports whether there is any. since is the time of
// the look, zero at boot; turns are the partition's when it began.
func (p *Partition) noteHoles(alone []uint64, since time.Time, turns int) bool {
	v := p.v
	now := time.Now()
	var tell []uint64
	v.mu.Lock()
	before := p.holes
	found := p.unexplained(alone, turns)
	p.holes = make(map[uint64]hole, len(found))
	for _, start := range found {
		h, known := before[start]
		if !known {
			h.since = since
		}
		if h.sure(now) && !h.told {
			h.told = true
			tell = append(tell, start)
		}
		p.holes[start] = h
	}
	if len(before) > 0 && len(found) == 0 {
		v.unwait()
	}
	path := p.path
	v.mu.Unlock()
	for _, start := range tell {
		v.log.Error("a segment is gone, only its index is left; nothing of the partition is deleted from the store until its .log or .remote is back or the index is gone",
			"segment", join(path, segmentName(start)))
	}
	return len(found) > 0
}

// unexplained leaves out the segments that the broker took away itself. The caller
// holds v.mu.
func (p *Partition) unexplained(alone []uint64, turns int) []uint64 {
	gone := p.gone
	if turns == p.turns {
		p.gone = nil // an index that is gone too needs no explanation any more
	}
	return slices.DeleteFunc(alone, func(start uint64) bool {
		_, ok := gone[start]
		if ok {
			p.went(start)
		}
		return ok
	})
}

// went remembers that the broker took a segment away. The caller holds v.mu.
func (p *Partition) went(start uint64) {
	if p.gone == nil {
		p.gone = map[uint64]struct{}{}
	}
	p.gone[start] = struct{}{}
}

// mended notes that a name of the partition came or went: a hole of that start may
// be none any more. The caller holds v.mu.
func (p *Partition) mended(start uint64) {
	if _, ok := p.holes[start]; !ok {
		return
	}
	delete(p.holes, start)
	if len(p.holes) == 0 {
		p.v.unwait()
	}
}

// mayMend is mended for a name in a directory. The caller holds v.mu.
func (v *Volume) mayMend(l link) {
	if p := v.partitions[l.dir]; p != nil && len(p.holes) > 0 {
		if start, suffix, ok := segment.ParseStem(l.name); ok && suffix == indexOf(v.rules) {
			p.mended(start)
		}
	}
}

// indexOf is the suffix of an index under the rules, or while there are none.
func indexOf(rules layout.Rules) string {
	if rules == nil {
		return indexSuffix
	}
	return rules.IndexSuffix()
}

// unwait makes the tombstones due again that waited for a hole or a quarantine to
// go. The caller holds v.mu.
func (v *Volume) unwait() {
	for _, t := range v.tombstones {
		if t.waits {
			t.waits, t.Due = false, time.Now()
		}
	}
	v.wakeRetirer()
}

// waitForHoles notes the partitions that have holes, of those in which some are
// known or that tombstones name, or may name.
func (v *Volume) waitForHoles(u *use, due []Tombstone) {
	asked := map[marker.Incarnation]bool{}
	for _, t := range due {
		asked[t.Record.Incarnation] = true
	}
	look := map[*Partition]marker.Incarnation{}
	v.mu.RLock()
	u.all = u.all || v.unplaced
	for _, p := range v.partitions {
		inc := p.state.incarnation()
		if p.unread || !inc.IsZero() && (asked[inc] || len(p.holes) > 0) {
			look[p] = inc
		}
	}
	v.mu.RUnlock()
	for p, inc := range look {
		switch {
		case !p.holed():
		case inc.IsZero():
			u.all = true
		default:
			u.waits[inc] = true
		}
	}
}

// holes enters the holes of one directory into the catalog.
func (s *scanner) holes(fd int, path string, names []string) {
	v := s.v
	found := Holes(v.Layout(), path, names)
	if len(found) == 0 {
		return
	}
	h, err := handle.At(fd, "")
	if err == nil {
		s.holesOf(v.partition(Dir{fd, h}, path), Dir{fd, h}, found)
		return
	}
	v.log.Error("a partition has holes and cannot be told from others; nothing is deleted from the store until the next start",
		"partition", path, "holes", len(found), "err", err)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unplaced = true
}

// holesOf enters a partition's holes. A tombstone tells that the broker took a
// segment away, unless the record of another upload is there still. The record of one
// that went otherwise stays beside the index: it is all that says where the bytes are.
func (s *scanner) holesOf(p *Partition, d Dir, alone []uint64) {
	if inc := p.state.incarnation(); !inc.IsZero() {
		for _, start := range alone {
			if s.ended[segmentKey{inc, start}] && !s.recorded(d, start) {
				p.went(start)
			}
		}
	}
	p.noteHoles(alone, s.since, p.turns)
	s.leftovers = slices.DeleteFunc(s.leftovers, func(l leftover) bool {
		start, _, ok := segment.ParseStem(l.name)
		_, holed := p.holes[start]
		if !ok || !holed || !l.beside(d, start) {
			return false
		}
		s.live[keyOf(l.rec)] = true
		if p.kept == nil {
			p.kept = map[uint64]struct{}{}
		}
		p.kept[start] = struct{}{}
		return true
	})
}

// recorded reports whether a record stands where a segment was, of an upload that has
// no tombstone.
func (s *scanner) recorded(d Dir, start uint64) bool {
	return slices.ContainsFunc(s.leftovers, func(l leftover) bool { return l.beside(d, start) && !s.buried[keyOf(l.rec)] })
}

// beside reports whether the record stands where a segment was.
func (l leftover) beside(d Dir, start uint64) bool {
	return l.dir == d.Handle && l.name == uploadedName(segmentName(start))
}

// buryKept ends the record that was kept beside a hole: the broker took the name
// away, and that was the index: it knows of no such segment.
func (v *Volume) buryKept(d Dir, name string) {
	start, suffix, ok := segment.ParseStem(name)
	v.mu.Lock()
	if p := v.partitions[d.Handle]; ok && p != nil && suffix == indexOf(v.rules) {
		_, holed := p.holes[start]
		_, ok = p.kept[start]
		if ok = ok && !holed; ok {
			delete(p.kept, start)
		}
	} else {
		ok = false
	}
	v.mu.Unlock()
	if !ok {
		return
	}
	if err := v.buryLeftover(d.FD, uploadedName(segmentName(start))); err != nil && !errors.Is(err, unix.ENOENT) {
		v.log.Error("a record stays beside nothing until the next start", "segment", segmentName(start), "err", err)
	}
}

// segmentKey is a segment in one life of its partition.
type segmentKey struct {
	inc   marker.Incarnation
	start uint64
}

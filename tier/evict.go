package tier

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
)

// Why a segment stays local.
const (
	ReasonActive     layout.Reason = "active"
	ReasonFloor      layout.Reason = "above the uploaded prefix"
	ReasonNotYet     layout.Reason = "not uploaded yet"
	ReasonLinked     layout.Reason = "hard links"
	ReasonChanged    layout.Reason = "changed since its upload"
	ReasonBounds     layout.Reason = "checkpoints cannot be read"
	ReasonGone       layout.Reason = "gone"
	ReasonRemote     layout.Reason = "remote already"
	ReasonQuarantine layout.Reason = "quarantined"
	ReasonLost       layout.Reason = "its object is lost"
)

// Refused says why a step was not taken. It is no failure.
type Refused struct{ Reason layout.Reason }

func (r *Refused) Error() string { return "refused: " + string(r.Reason) }

func refuse(r layout.Reason) error { return &Refused{r} }

// Evictable says why a segment of the partition must stay local now; empty: it
// may go. The catalog's part only: links and changes are looked at by Evict.
// Asking for each segment of a partition takes one pass over it.
func (p *Partition) Evictable(start uint64, bounds layout.Bounds) layout.Reason {
	var room [8]segmentEntry
	p.v.mu.RLock()
	reason, name, floor, turns := p.reason, p.name, p.marks[markHeld], p.turns
	i, ok := p.find(start)
	below := room[:0]
	var own, next segmentEntry
	if ok {
		own = p.segments[i]
		below = append(below, p.segments[min(floor, i):i]...)
	}
	active := i+1 >= len(p.segments)
	if !active {
		next = p.segments[i+1]
	}
	p.v.mu.RUnlock()
	switch {
	case reason != "":
		return reason
	case !ok:
		return ReasonGone
	case active:
		return ReasonActive
	}
	n := 0
	for n < len(below) && held(below[n].file.State()) {
		n++
	}
	if n > 0 {
		p.raise(markHeld, floor+n, turns)
	}
	if n < len(below) {
		return ReasonFloor
	}
	switch own.file.State() {
	case Local:
		return ReasonNotYet
	case Quarantined:
		return ReasonQuarantine
	case Leaving, Remote, Filling:
		return ReasonRemote
	}
	return bounds.Evictable(name, next.start)
}

// sealed is the part of Evictable that other files' locks are not needed for.
func (p *Partition) sealed(start uint64, bounds layout.Bounds) layout.Reason {
	p.v.mu.RLock()
	defer p.v.mu.RUnlock()
	i, ok := p.find(start)
	switch {
	case p.reason != "":
		return p.reason
	case !ok:
		return ReasonGone
	case i+1 >= len(p.segments):
		return ReasonActive
	}
	return bounds.Evictable(p.name, p.segments[i+1].start)
}

// Evict drops the local copy of an uploaded segment, if every condition holds: it
// fails with a [*Refused] that says which does not. It returns when the disk space
// is free; reads under way are waited for, new ones go to the store. Handles that
// the broker holds stay valid. What stopped half way, an eviction or a rehydration, is
// finished.
func (v *Volume) Evict(ctx context.Context, p *Partition, s Segment) error {
	f := s.File
	bounds, err := v.Bounds()
	if err != nil {
		v.log.Warn("cannot evict", "reason", ReasonBounds, "err", err)
		return refuse(ReasonBounds)
	}
	f.mu.RLock()
	state, halfway := f.state, f.halfway()
	f.mu.RUnlock()
	if state == Remote || state == Filling && !halfway {
		return refuse(ReasonRemote)
	}
	fd, err := f.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := pathError("fsync", "", unix.Fsync(fd)); err != nil {
		return err
	}
	defer v.late.check() // behind the small one
	defer v.reserve.take()
	if halfway {
		return v.finish(f, fd)
	}
	if err := v.compareFound(ctx, p, s, fd); err != nil {
		return err
	}
	if reason := p.Evictable(s.Start, bounds); reason != "" {
		return refuse(reason)
	}
	if err := v.point("evict:leave", func() error { return v.leave(p, s, bounds, fd) }); err != nil {
		return err
	}
	return v.emptyLeaving(f, fd)
}

// halfway reports whether the file stopped between local and remote, with nobody
// at work on it. The caller holds mu.
func (f *File) halfway() bool {
	return f.state == Leaving || f.state == Filling && f.fill == nil
}

// finish takes a file that stopped half way on to its end: it is remote.
func (v *Volume) finish(f *File, fd int) error {
	defer v.changed(f.handle)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.halfway() {
		return refuse(ReasonChanged)
	}
	for _, l := range f.links {
		if err := v.step("evict:dirsync", func() error { return v.syncDir(l.dir) }); err != nil {
			return err
		}
	}
	return v.empty("evict", f, fd)
}

// leave renames the segment's file, under its lock and after all conditions were
// looked at again. From here on reads go to the store.
func (v *Volume) leave(p *Partition, s Segment, bounds layout.Bounds, fd int) error {
	f := s.File
	dir, err := v.openDir(p.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pathError("stat", s.Name(), err)
	}
	err = v.step("evict:times", func() error { return timeRecord(dir, s.Name(), timesOf(&st)) })
	if errors.Is(err, unix.ENOENT) {
		return refuse(ReasonChanged) // a mutation was faster
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if reason := f.stays(link{p.dir, s.Name()}, fd, st.Mtim); reason != "" {
		return refuse(reason)
	}
	if reason := p.sealed(s.Start, bounds); reason != "" {
		return refuse(reason)
	}
	err = v.step("evict:rename", func() error {
		return v.swap(p.dir, func() error {
			return renameat(dir, s.Name(), dir, remoteName(s.Name()), unix.RENAME_NOREPLACE)
		})
	})
	if err != nil {
		return err
	}
	f.state = Leaving
	if err := v.step("evict:dirsync", func() error { return durable.SyncDir(dir) }); err != nil {
		return err
	}
	v.touchedLocked(f)
	return nil
}

// stays says why the file itself must stay. The caller holds its lock.
func (f *File) stays(home link, fd int, mtime unix.Timespec) layout.Reason {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ReasonGone
	}
	switch {
	case f.state == Local:
		return ReasonChanged
	case f.state != Uploaded:
		return ReasonRemote
	case f.home != home || st.Nlink == 0:
		return ReasonGone
	case st.Nlink > 1:
		return ReasonLinked
	case st.Size != f.rec.Size || st.Mtim != mtime:
		return ReasonChanged
	}
	return ""
}

// emptyLeaving frees the bytes of a file that is leaving. Taking the lock waits
// for the last local READ. A write in between has renamed the file back: then
// there is nothing to do.
func (v *Volume) emptyLeaving(f *File, fd int) error {
	defer v.changed(f.handle)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != Leaving {
		return refuse(ReasonChanged)
	}
	return v.empty("evict", f, fd)
}

// empty makes the inode of a file that is leaving, or was being filled, its
// marker, and removes the record beside it. If the disk fails it in between, the
// file is one that is filled by nobody. The caller holds the file's lock
// exclusively.
func (v *Volume) empty(op string, f *File, fd int) error {
	defer v.touchedLocked(f)
	if err := v.namedRemote(f); err != nil {
		return err
	}
	if f.state == Leaving {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return pathError("stat", f.home.name, err)
		}
		f.times = timesOf(&st)
	}
	emptied, err := v.markRemote(op+":empty", fd, f.rec, f.times)
	switch {
	case err == nil:
		f.state = Remote
		return v.unlinkRecord(op+":record", f)
	case emptied:
		f.state = Filling // neither bytes nor a record in the inode, the record beside it
	}
	return err
}

// namedRemote makes sure that no name of the file below is the broker's own: a
// file that can be opened as N.log must never become a marker. After a failure the
// catalog may know less than the disk.
func (v *Volume) namedRemote(f *File) error {
	for _, l := range f.links {
		dir, err := v.openDir(l.dir)
		if err != nil {
			return err
		}
		h, err := handle.At(dir, remoteName(l.name))
		_ = unix.Close(dir)
		if err != nil || h != f.handle {
			return fmt.Errorf("%s is not the segment that is to be emptied: %w", remoteName(l.name), cmp.Or(err, error(unix.EIO)))
		}
	}
	return nil
}

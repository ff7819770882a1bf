package tier

import (
	"context"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
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
	ReasonNotOwner   layout.Reason = "not the volume's owner"
)

// Refused says why a step was not taken. It is no failure.
type Refused struct{ Reason layout.Reason }

func (r *Refused) Error() string { return "refused: " + string(r.Reason) }

func refuse(r layout.Reason) error { return &Refused{r} }

// Evictable says why a segment of the partition must stay local now; empty: it
// may go. The catalog's part only: links and changes are looked at by Evict.
func (p *Partition) Evictable(start uint64, bounds layout.Bounds) layout.Reason {
	p.v.mu.RLock()
	reason, name := p.reason, p.name
	i, ok := p.find(start)
	var entries []segmentEntry
	if ok {
		entries = append(entries, p.segments[:min(i+2, len(p.segments))]...)
	}
	p.v.mu.RUnlock()
	switch {
	case reason != "":
		return reason
	case !ok:
		return ReasonGone
	case i+1 >= len(entries):
		return ReasonActive
	}
	for _, e := range entries[:i] {
		if s := e.file.State(); s == Local || s == Quarantined {
			return ReasonFloor
		}
	}
	switch entries[i].file.State() {
	case Local:
		return ReasonNotYet
	case Quarantined:
		return ReasonQuarantine
	case Leaving, Remote, Filling:
		return ReasonRemote
	}
	return bounds.Evictable(name, entries[i+1].start)
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
// the broker holds stay valid. An eviction that failed half way is gone on with.
func (v *Volume) Evict(ctx context.Context, p *Partition, s Segment) error {
	f := s.File
	bounds, err := v.Bounds()
	if err != nil {
		v.log.Warn("cannot evict", "reason", ReasonBounds, "err", err)
		return refuse(ReasonBounds)
	}
	fd, err := f.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := pathError("fsync", "", unix.Fsync(fd)); err != nil {
		return err
	}
	if f.State() == Leaving {
		return v.goOnLeaving(p, f, fd)
	}
	if err := v.compareFound(ctx, f, fd); err != nil {
		return err
	}
	if reason := p.Evictable(s.Start, bounds); reason != "" {
		return refuse(reason)
	}
	if err := v.leave(p, s, bounds, fd); err != nil {
		return err
	}
	return v.emptyLeaving(f, fd)
}

// goOnLeaving takes up an eviction after the rename.
func (v *Volume) goOnLeaving(p *Partition, f *File, fd int) error {
	dir, err := v.openDir(p.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := v.step("evict:dirsync", func() error { return durable.SyncDir(dir) }); err != nil {
		return err
	}
	return v.emptyLeaving(f, fd)
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
	f.mu.Lock()
	defer f.mu.Unlock()
	if reason := f.stays(link{p.dir, s.Name()}, fd); reason != "" {
		return refuse(reason)
	}
	if reason := p.sealed(s.Start, bounds); reason != "" {
		return refuse(reason)
	}
	err = v.step("evict:rename", func() error {
		v.names.Lock()
		err := renameat(dir, s.Name(), dir, remoteName(s.Name()), unix.RENAME_NOREPLACE)
		v.names.Unlock()
		return err
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
func (f *File) stays(home link, fd int) layout.Reason {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return ReasonGone
	}
	have, ok := f.home()
	switch {
	case f.state == Local:
		return ReasonChanged
	case f.state != Uploaded:
		return ReasonRemote
	case !ok || have != home || st.Nlink == 0:
		return ReasonGone
	case st.Nlink > 1:
		return ReasonLinked
	case st.Size != f.rec.Size:
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
	defer v.touchedLocked(f)
	emptied, err := v.markRemote("evict:empty", fd, f.rec)
	switch {
	case err == nil:
		f.state = Remote
		return v.unlinkRecord("evict:record", f)
	case emptied:
		f.state = Filling // neither bytes nor a record in the inode, the record beside it
	}
	return err
}

// compareFound proves a pair that was found at boot: nobody knows what happened
// to the file while no tierfs was there.
func (v *Volume) compareFound(ctx context.Context, f *File, fd int) error {
	f.mu.RLock()
	found, rec, before := f.found, f.rec, f.changes.Load()
	f.mu.RUnlock()
	if !found {
		return nil
	}
	same, err := hasBytes(ctx, fd, rec)
	if err != nil {
		return err
	}
	if same {
		if err := v.headObject(ctx, rec); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != Uploaded || f.rec != rec || f.changes.Load() != before {
		return refuse(ReasonChanged)
	}
	if !same {
		v.log.Warn("a segment differs from the record found beside it; it will be uploaded again", "start", rec.Start)
		if err := v.forgetObject("evict:tombstone", f); err != nil {
			return err
		}
		return refuse(ReasonChanged)
	}
	f.found = false
	return nil
}

// headObject checks that the store has an object of the record's size.
func (v *Volume) headObject(ctx context.Context, rec marker.Record) error {
	key, err := v.key(rec, logSuffix)
	if err != nil {
		return err
	}
	info, err := v.opt.Store.Head(ctx, key)
	if err != nil {
		return err
	}
	if info.Size != rec.Size {
		return fmt.Errorf("object %s has %d bytes, its record says %d: kept the local copy", key, info.Size, rec.Size)
	}
	return nil
}

// hasBytes reports whether a file holds exactly the bytes of a record.
func hasBytes(ctx context.Context, fd int, rec marker.Record) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if st.Size != rec.Size {
		return false, nil
	}
	h := xxh3.New()
	if _, err := io.CopyBuffer(h, &contextReader{ctx, io.NewSectionReader(fdReader(fd), 0, rec.Size)}, make([]byte, 1<<20)); err != nil {
		return false, err
	}
	return h.Sum128().Bytes() == rec.LogHash, nil
}

package tier

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
)

// locked is a name together with its file, whose lock is held exclusively.
type locked struct {
	dir  Dir
	name string
	entry
	file *File // nil for names that are not regular files
}

func (l *locked) link() link { return link{l.dir.Handle, l.name} }

func (l *locked) unlock() {
	if l.file != nil {
		l.file.mu.Unlock()
		l.file.Release()
	}
}

// lock resolves a name and takes its file's lock. The name may change below until
// the lock is there, so it is looked at again.
func (v *Volume) lock(d Dir, name string) (*locked, error) {
	if Hidden(name) {
		return nil, unix.ENOENT
	}
	for {
		e, h, err := v.resolve(d, name)
		if err != nil {
			return nil, err
		}
		l := &locked{dir: d, name: name, entry: e}
		if !e.regular() {
			return l, nil
		}
		l.file = v.FileOf(h)
		l.file.mu.Lock()
		now, nowHandle, err := v.resolve(d, name)
		if err == nil && nowHandle == h {
			l.entry = now
			return l, nil
		}
		l.unlock()
		if err != nil {
			return nil, err
		}
	}
}

// Unlink removes a name of a file that is no directory. The object of an uploaded
// or remote segment goes after the grace, and not before the last open handle. It
// never waits for the store.
func (v *Volume) Unlink(d Dir, name string) error {
	l, err := v.lock(d, name)
	if err != nil {
		return err
	}
	defer l.unlock()
	if l.entry.dir() {
		return unix.EISDIR
	}
	if l.file == nil {
		return unlinkat(d.FD, name, 0)
	}
	return v.drop(l)
}

// drop removes one name of a locked file, with what stands beside it.
func (v *Volume) drop(l *locked) error {
	f := l.file
	if f.state == Leaving {
		if err := v.stay(f); err != nil {
			return err
		}
		l.below = l.name
	}
	home, _ := f.home()
	gone := false
	switch {
	case f.state == Uploaded && home == l.link():
		if err := v.forgetObject("unlink:tombstone", f); err != nil {
			return err
		}
	case f.state == Remote && l.stat.Nlink == 1:
		if err := v.buryMarker("unlink:remote", l.dir.FD, l.below, f.rec); err != nil {
			return err
		}
		gone = true
	case f.state == Filling && home == l.link():
		return v.dropFilling(l)
	}
	if !gone {
		if err := v.step("unlink:name", func() error { return unlinkat(l.dir.FD, l.below, 0) }); err != nil {
			return err
		}
	}
	v.unnamed(f, l.link())
	return nil
}

// dropFilling removes the name that the record of a file stands beside which is
// being brought back. The inode is no marker now, so the name goes first: a record
// beside nothing becomes a tombstone at the next start.
func (v *Volume) dropFilling(l *locked) error {
	f := l.file
	if len(f.links) > 1 { // another name needs the record
		if err := v.handRecordOn(l, f.links[1]); err != nil {
			return err
		}
	}
	if err := v.step("unlink:name", func() error { return unlinkat(l.dir.FD, l.below, 0) }); err != nil {
		return err
	}
	v.unnamed(f, l.link())
	if len(f.links) > 0 {
		return nil
	}
	if err := v.buryMarker("unlink:tombstone", l.dir.FD, uploadedName(l.name), f.rec); err != nil {
		v.log.Error("a record stays beside nothing until the next start", "segment", l.name, "err", err)
	}
	return nil
}

func (v *Volume) handRecordOn(l *locked, next link) error {
	dir, err := v.openDir(next.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return v.step("unlink:record", func() error {
		return durable.Rename(l.dir.FD, uploadedName(l.name), dir, uploadedName(next.name))
	})
}

// forgetObject turns the record beside an uploaded file into a tombstone, after
// which the file is local: the object is not of its bytes any more, or will not
// be. The caller holds the file's lock exclusively.
func (v *Volume) forgetObject(step string, f *File) error {
	home, ok := f.home()
	if !ok {
		return unix.ESTALE
	}
	dir, err := v.openDir(home.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := v.buryMarker(step, dir, uploadedName(home.name), f.rec); err != nil {
		return err
	}
	f.state, f.rec, f.found = Local, marker.Record{}, false
	v.touchedLocked(f)
	return nil
}

// stay takes an eviction back before the inode was emptied: N.remote is N.log
// again, and uploaded. The caller holds the file's lock exclusively.
func (v *Volume) stay(f *File) error { return v.localName("evict:back", f, Uploaded) }

// localName gives a file whose inode has its bytes its own name back, in every
// place where it has one.
func (v *Volume) localName(step string, f *File, state State) error {
	for _, l := range f.links {
		if err := v.step(step, func() error { return v.renameBack(f, l) }); err != nil {
			return err
		}
	}
	// Whatever becomes of the fsyncs: the names are these now.
	f.state = state
	v.touchedLocked(f)
	for _, l := range f.links {
		if err := v.syncDir(l.dir); err != nil {
			return err
		}
	}
	return nil
}

// renameBack gives one name back; one that is back already is no error.
func (v *Volume) renameBack(f *File, l link) error {
	dir, err := v.openDir(l.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	v.names.Lock()
	err = renameat(dir, remoteName(l.name), dir, l.name, unix.RENAME_NOREPLACE)
	v.names.Unlock()
	if errors.Is(err, unix.ENOENT) {
		if h, herr := handle.At(dir, l.name); herr == nil && h == f.handle {
			return nil
		}
	}
	return err
}

func (v *Volume) syncDir(h handle.Handle) error {
	dir, err := v.openDir(h)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return durable.SyncDir(dir)
}

// Rmdir removes a directory in which the broker sees nothing. What tierfs keeps
// in it goes first: records without a file become tombstones.
func (v *Volume) Rmdir(d Dir, name string) error {
	if Hidden(name) {
		return unix.ENOENT
	}
	h, err := handle.At(d.FD, name)
	if err != nil {
		return err
	}
	err = unlinkat(d.FD, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		if err = v.sweepHidden(d, name); err == nil {
			err = v.step("rmdir", func() error { return unlinkat(d.FD, name, unix.AT_REMOVEDIR) })
		}
	}
	if err == nil {
		v.forgetPartition(h)
	}
	return err
}

// sweepHidden empties a directory in which the broker sees nothing of what tierfs
// keeps there; ENOTEMPTY if the broker sees something.
func (v *Volume) sweepHidden(d Dir, name string) error {
	fd, err := openat(d.FD, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	for _, n := range names {
		if _, ok := Visible(n); ok {
			return unix.ENOTEMPTY
		}
	}
	for _, n := range names {
		if _, ok := visibleOfUploaded(n); ok {
			if err := v.buryLeftover(fd, n); err != nil {
				return err
			}
			continue
		}
		if err := v.step("rmdir:hidden", func() error { return unlinkat(fd, n, 0) }); err != nil {
			return err
		}
	}
	return nil
}

// buryLeftover makes a record that stands beside no file a tombstone. One that
// cannot be read names no object, and goes.
func (v *Volume) buryLeftover(dir int, name string) error {
	rec, err := marker.Read(dir, name)
	if err != nil {
		v.log.Warn("dropping a record without a file that cannot be read", "record", name, "err", err)
		return unlinkat(dir, name, 0)
	}
	return v.buryMarker("leftover:tombstone", dir, name, rec)
}

// forgetPartition takes the partition of a removed directory out of the catalog.
func (v *Volume) forgetPartition(h handle.Handle) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.partitions, h)
}

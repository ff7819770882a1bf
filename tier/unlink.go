package tier

import (
	"errors"
	"slices"

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
			v.notLocal(l)
			return l, nil
		}
		l.unlock()
		if err != nil {
			return nil, err
		}
	}
}

// notLocal quarantines a file that has the name of a marker and is known as
// local: its bytes are a record's or nobody's, and not for the broker.
func (v *Volume) notLocal(l *locked) {
	f := l.file
	if f.state != Local || l.below == l.name {
		return
	}
	f.state, f.why = Quarantined, "it turned up beside no segment that is known"
	v.log.Error("a segment is quarantined: reads of it fail", "segment", l.name, "reason", f.why)
	v.named(f, l.dir, l.name)
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
	if err := v.drop(l); err != nil {
		return own(err)
	}
	v.buryKept(d, name)
	return nil
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
	gone := false
	switch {
	case f.state == Uploaded && f.home == l.link():
		if err := v.forgetObject("unlink:tombstone", f); err != nil {
			return err
		}
	case f.state == Remote && l.stat.Nlink == 1:
		if err := v.buryMarker("unlink:remote", l.dir.FD, l.below, f.rec); err != nil {
			return err
		}
		gone = true
	case f.state == Filling && f.home == l.link():
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
	if len(f.links) > 1 {
		if err := v.handRecordOn(l); err != nil {
			return err
		}
	} else {
		v.retain(f)
	}
	if err := v.step("unlink:name", func() error { return unlinkat(l.dir.FD, l.below, 0) }); err != nil {
		v.unretain(f)
		return err
	}
	v.unnamed(f, l.link())
	if len(f.links) > 0 {
		return nil
	}
	err := durable.SyncDir(l.dir.FD)
	if err == nil {
		err = v.buryMarker("unlink:tombstone", l.dir.FD, uploadedName(l.name), f.rec)
	}
	if err != nil {
		v.log.Error("a record stays beside nothing until the next start", "segment", l.name, "err", err)
	}
	return nil
}

// handRecordOn gives the record of a file that is being filled, and that is about
// to lose the name it stands beside, to another name.
func (v *Volume) handRecordOn(l *locked) error {
	f := l.file
	i := slices.IndexFunc(f.links, func(other link) bool { return other != f.home })
	next := f.links[i]
	dir, err := v.openDir(next.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	err = v.step("unlink:record", func() error {
		return durable.Rename(l.dir.FD, uploadedName(l.name), dir, uploadedName(next.name))
	})
	if err == nil {
		f.home = next
	}
	return err
}

// forgetObject turns the record beside an uploaded file into a tombstone, after
// which the file is local: the object is not of its bytes any more, or will not
// be. The caller holds the file's lock exclusively.
func (v *Volume) forgetObject(step string, f *File) error {
	dir, err := v.openDir(f.home.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := v.buryMarker(step, dir, uploadedName(f.home.name), f.rec); err != nil {
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
// place where it has one. The name that the record stands beside comes first: as
// long as it is N.remote, a start may make the inode a marker under all names.
func (v *Volume) localName(step string, f *File, state State) error {
	if i := slices.Index(f.links, f.home); i > 0 {
		f.links[0], f.links[i] = f.links[i], f.links[0]
	}
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
	err = v.swap(l.dir, func() error {
		return renameat(dir, remoteName(l.name), dir, l.name, unix.RENAME_NOREPLACE)
	})
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
	// An upload may be writing the partition's hidden file.
	for try := 0; try < rmdirTries && notEmpty(err); try++ {
		if err = v.sweepHidden(d, name); err != nil {
			break
		}
		err = v.step("rmdir", func() error { return unlinkat(d.FD, name, unix.AT_REMOVEDIR) })
	}
	if err == nil {
		v.forgetPartition(h)
	}
	return err
}

const rmdirTries = 10

func notEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

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
		err := v.sweepName(fd, n)
		if err != nil && !errors.Is(err, unix.ENOENT) { // a temporary file goes by itself
			return own(err)
		}
	}
	return nil
}

func (v *Volume) sweepName(dir int, name string) error {
	if _, ok := visibleOfUploaded(name); ok {
		return v.buryLeftover(dir, name)
	}
	return v.step("rmdir:hidden", func() error { return unlinkat(dir, name, 0) })
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
	p := v.partitions[h]
	if p == nil {
		return
	}
	if len(p.holes) > 0 {
		v.unwait()
	}
	if inc := p.state.incarnation(); !inc.IsZero() {
		v.vacant = append(v.vacant, inc)
	}
	delete(v.partitions, h)
}

package tier

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
)

// Rename is renameat2 for the broker. A segment's marker goes with it, after it:
// a crash between costs a second upload, no more. A segment may be given another
// start; its object keeps the one it was uploaded under. What the new name led to before
// is unlinked as by [Volume.Unlink]. RENAME_EXCHANGE is refused with EINVAL where a
// remote file and anything else are to change places: below that is no single step.
// It never waits for the store.
func (v *Volume) Rename(od Dir, oldName string, nd Dir, newName string, flags uint32) error {
	if Hidden(newName) {
		return unix.EPERM
	}
	if Hidden(oldName) {
		return unix.ENOENT
	}
	err := v.rename(od, oldName, nd, newName, flags)
	if err == nil {
		v.buryKept(od, oldName)
		v.sign(newName)
	}
	return err
}

func (v *Volume) rename(od Dir, oldName string, nd Dir, newName string, flags uint32) error {
	src, dst, err := v.lockPair(od, oldName, nd, newName)
	if err != nil {
		return err
	}
	defer func() {
		if dst != nil && dst.file != src.file {
			dst.unlock()
		}
		src.unlock()
	}()
	switch {
	case flags&unix.RENAME_EXCHANGE != 0:
		return v.exchange(src, dst, flags)
	case dst != nil && flags&unix.RENAME_NOREPLACE != 0:
		return unix.EEXIST
	case src.entry.dir() && dst != nil && !dst.entry.dir():
		return unix.ENOTDIR
	case src.entry.dir():
		return v.renameDir(src, dst, nd, newName, flags)
	case dst != nil && dst.entry.dir():
		return unix.EISDIR
	case dst != nil && src.file != nil && dst.file == src.file:
		return nil // two names of one inode: POSIX has nothing to do
	}
	return v.renameFile(src, dst, nd, newName, flags)
}

// lockPair locks the files of both names, in the order of their handles. dst is
// nil when the new name is free.
func (v *Volume) lockPair(od Dir, oldName string, nd Dir, newName string) (src, dst *locked, err error) {
	for {
		_, oldHandle, err := v.resolve(od, oldName)
		if err != nil {
			return nil, nil, err
		}
		_, newHandle, err := v.resolve(nd, newName)
		if errors.Is(err, unix.ENOENT) {
			src, err = v.lock(od, oldName)
			return src, nil, err
		}
		if err != nil {
			return nil, nil, err
		}
		if newHandle == oldHandle {
			return v.lockSame(od, oldName, nd, newName)
		}
		dstFirst := less(newHandle, oldHandle)
		if dstFirst {
			dst, err = v.lock(nd, newName)
		} else {
			src, err = v.lock(od, oldName)
		}
		if err != nil {
			return nil, nil, err
		}
		if dstFirst {
			src, err = v.lock(od, oldName)
		} else {
			dst, err = v.lock(nd, newName)
		}
		if err == nil && src.same(oldHandle) && dst.same(newHandle) {
			return src, dst, nil
		}
		// A name changed in between: the order may be wrong now.
		for _, l := range []*locked{src, dst} {
			if l != nil {
				l.unlock()
			}
		}
		src, dst = nil, nil
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, nil, err
		}
	}
}

func (v *Volume) lockSame(od Dir, oldName string, nd Dir, newName string) (src, dst *locked, err error) {
	if src, err = v.lock(od, oldName); err != nil {
		return nil, nil, err
	}
	e, _, err := v.resolve(nd, newName)
	if err != nil {
		src.unlock()
		return nil, nil, err
	}
	return src, &locked{dir: nd, name: newName, entry: e, file: src.file}, nil
}

// same reports whether a lock is of the inode; anything but a regular file has no
// lock, and so is what it was.
func (l *locked) same(h handle.Handle) bool { return l.file == nil || l.file.handle == h }

func less(a, b handle.Handle) bool {
	if a.Type != b.Type {
		return a.Type < b.Type
	}
	return strings.Compare(a.Bytes, b.Bytes) < 0
}

func (v *Volume) renameDir(src, dst *locked, nd Dir, newName string, flags uint32) error {
	oldPath, err := v.pathOf(src.dir.FD)
	if err != nil {
		return err
	}
	newPath, err := v.pathOf(nd.FD)
	if err != nil {
		return err
	}
	if dst != nil {
		if err := v.sweepHidden(nd, newName); err != nil {
			return err
		}
	}
	err = v.step("rename:dir", func() error { return renameat(src.dir.FD, src.name, nd.FD, newName, uint(flags)) })
	if err != nil {
		return err
	}
	if dst != nil {
		v.forgetPartition(dst.handle)
	}
	v.moved(join(oldPath, src.name), join(newPath, newName))
	return nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func (v *Volume) renameFile(src, dst *locked, nd Dir, newName string, flags uint32) error {
	if src.file == nil {
		return v.renamePlain(src, dst, nd, newName, flags)
	}
	f := src.file
	if f.state == Leaving {
		if err := v.stay(f); err != nil {
			return own(err)
		}
		src.below = src.name
	}
	newBelow := newName
	if f.state.remoteNamed() {
		newBelow = remoteName(newName)
	}
	if err := v.replaced(dst, newBelow); err != nil {
		return own(err)
	}
	record := f.state == Filling && f.home == src.link()
	if record {
		if err := v.copyRecord(nd, newName, f.rec, f.times); err != nil {
			v.spared(dst)
			return own(err)
		}
	}
	err := v.step("rename:name", func() error { return renameat(src.dir.FD, src.below, nd.FD, newBelow, uint(flags)) })
	if err != nil {
		v.spared(dst)
		return err
	}
	v.cleared(dst, newBelow, record)
	if f.home == src.link() && (f.state == Uploaded || f.state == Filling) {
		v.moveRecord(src, nd, newName)
	}
	v.movedName(f, src.link(), nd, newName)
	return nil
}

// renamePlain renames what is no regular file; the target may be one.
func (v *Volume) renamePlain(src, dst *locked, nd Dir, newName string, flags uint32) error {
	if err := v.replaced(dst, newName); err != nil {
		return own(err)
	}
	if err := renameat(src.dir.FD, src.name, nd.FD, newName, uint(flags)); err != nil {
		v.spared(dst)
		return err
	}
	v.cleared(dst, newName, false)
	return nil
}

// replaced prepares the file that a rename is about to replace: its object gets a
// tombstone first. newBelow is the name below that the rename will take.
func (v *Volume) replaced(dst *locked, newBelow string) error {
	if dst == nil {
		return nil
	}
	f := dst.file
	if f == nil {
		if dst.below == newBelow {
			return nil
		}
		// A symlink and the like, and the new file will be N.remote.
		return v.step("rename:replaced", func() error { return unlinkat(dst.dir.FD, dst.below, 0) })
	}
	if f.state == Leaving {
		if err := v.stay(f); err != nil {
			return err
		}
		dst.below = dst.name
	}
	switch {
	case f.state == Uploaded && f.home == dst.link():
		if err := v.forgetObject("rename:tombstone", f); err != nil {
			return err
		}
	case f.state == Filling && f.home == dst.link() && len(f.links) > 1:
		if err := v.handRecordOn(dst); err != nil {
			return err
		}
	case (f.state == Remote || f.state == Filling) && dst.stat.Nlink == 1:
		if err := v.buryCopy("rename:tombstone", f.rec); err != nil {
			return err
		}
		v.retain(f)
	}
	if dst.below != newBelow && !f.state.remoteNamed() {
		// The old file is N.log and the new one will be N.remote. Both at once would
		// be two segments of one name, so the old one goes first.
		err := v.step("rename:replaced", func() error { return unlinkat(dst.dir.FD, dst.below, 0) })
		if err == nil {
			v.unnamed(f, dst.link())
		}
		return err
	}
	return nil
}

// spared ends what replaced prepared for a file that keeps its name after all.
func (v *Volume) spared(dst *locked) {
	if dst != nil && dst.file != nil && len(dst.file.links) > 0 {
		v.unretain(dst.file)
	}
}

// cleared removes what is left below of a file that a rename has replaced; record:
// the record beside the name is the new file's already.
func (v *Volume) cleared(dst *locked, newBelow string, record bool) {
	if dst == nil || dst.file == nil {
		return
	}
	f := dst.file
	if f.state.remoteNamed() && v.firm(dst.dir) {
		if dst.below != newBelow {
			v.discard(dst.dir.FD, dst.below)
		}
		if f.state == Filling && !record {
			v.discard(dst.dir.FD, uploadedName(dst.name))
		}
	}
	v.unnamed(f, dst.link())
}

// firm makes a rename durable before what stood by the old names is discarded; if
// it cannot, the next start discards that.
func (v *Volume) firm(d Dir) bool {
	err := durable.SyncDir(d.FD)
	if err != nil {
		v.log.Warn("leftovers of a rename stay until the next start", "err", err)
	}
	return err == nil
}

// discard removes a name that means nothing any more; one that stays is found and
// removed at the next start.
func (v *Volume) discard(dir int, name string) {
	err := v.step("rename:discard", func() error { return unlinkat(dir, name, 0) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		v.log.Warn("cannot remove a leftover", "file", name, "err", err)
	}
}

// moveRecord lets the record follow its file. If it cannot, the segment counts as
// not uploaded, and the record left behind becomes a tombstone.
func (v *Volume) moveRecord(src *locked, nd Dir, newName string) {
	f := src.file
	old := uploadedName(src.name)
	if f.state == Filling {
		if v.firm(nd) && (nd.Handle == src.dir.Handle || v.firm(src.dir)) {
			v.discard(src.dir.FD, old) // its copy stands at the new place already
		}
		return
	}
	err := v.step("rename:record", func() error {
		return renameat(src.dir.FD, old, nd.FD, uploadedName(newName), 0)
	})
	if err == nil {
		return
	}
	v.log.Warn("the record of a renamed segment cannot follow it; it will be uploaded again", "segment", newName, "err", err)
	if err := v.buryCopy("rename:tombstone", f.rec); err != nil {
		v.log.Error("the object of a renamed segment is left for the sweep", "segment", newName, "err", err)
	}
	f.state, f.rec, f.found = Local, marker.Record{}, false
}

// copyRecord puts a record beside the place where its file is about to go.
func (v *Volume) copyRecord(nd Dir, newName string, rec marker.Record, t times) error {
	fd, err := openat(nd.FD, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return v.step("rename:copy", func() error { return writeRecord(fd, newName, rec, t) })
}

// movedName moves a name in the catalog. The caller holds the file's lock.
func (v *Volume) movedName(f *File, old link, nd Dir, newName string) {
	v.mu.Lock()
	if start, ok := segmentStart(old.name); ok {
		if p := v.partitions[old.dir]; p != nil {
			p.unset(start, f)
		}
	}
	v.mayMend(old)
	v.mu.Unlock()
	f.moveLink(old, link{nd.Handle, newName})
	v.named(f, nd, newName)
}

// Link gives a file another name. A remote segment's new name is one of its
// marker. EPERM for hidden names.
func (v *Volume) Link(f *File, nd Dir, newName string) (Entry, error) {
	if Hidden(newName) {
		return Entry{}, unix.EPERM
	}
	if _, _, err := v.resolve(nd, newName); err == nil {
		return Entry{}, unix.EEXIST
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == Leaving {
		if err := v.stay(f); err != nil {
			return Entry{}, own(err)
		}
	}
	below := newName
	if f.state.remoteNamed() {
		below = remoteName(newName)
	}
	fd, err := f.open(unix.O_PATH)
	if err != nil {
		return Entry{}, err
	}
	defer unix.Close(fd)
	if err := linkFD(fd, nd.FD, below); err != nil {
		return Entry{}, err
	}
	out := Entry{Handle: f.handle, File: v.FileOf(f.handle)}
	v.named(f, nd, newName)
	if err := unix.Fstat(fd, &out.Stat); err != nil {
		out.File.Release()
		return Entry{}, err
	}
	f.show(&out.Stat)
	return out, nil
}

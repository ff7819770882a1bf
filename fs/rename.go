package fs

import (
	"errors"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// Unlink removes a name of anything but a directory.
func (f *fileSystem) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	defer f.answered(metrics.OpUnlink, time.Now())
	parent, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	lost := f.keep(dir, name)
	if err := f.volume.Unlink(dir, name); err != nil && !alreadyGone(in, err) {
		f.unkeep(lost)
		f.failedName()
		return f.status("unlink", parent, err)
	}
	return fuse.OK
}

// Rmdir removes a directory that is empty for the broker's eyes.
func (f *fileSystem) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	defer f.answered(metrics.OpRmdir, time.Now())
	parent, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	lost := f.keep(dir, name)
	if err := f.volume.Rmdir(dir, name); err != nil && !alreadyGone(in, err) {
		f.unkeep(lost)
		return f.status("rmdir", parent, err)
	}
	return fuse.OK
}

// Rename moves a name, with the flags of renameat2(2). RENAME_WHITEOUT is refused:
// it is for the upper layer of an overlay, which a broker's directory never is.
func (f *fileSystem) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	defer f.answered(metrics.OpRename, time.Now())
	if in.Flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 {
		return fuse.EINVAL
	}
	parent, oldDir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	newDir := oldDir
	if in.Newdir != in.NodeId {
		_, d, other, code := f.directory(in.Newdir)
		if !code.Ok() {
			return code
		}
		defer other.release()
		newDir = d
	}
	renamed := f.nodeAt(oldDir, oldName)
	if err := f.rename(in, oldDir, oldName, newDir, newName); err != nil {
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) { // those come before any step
			f.failedName()
		}
		return f.status("rename", parent, err)
	}
	f.owesTimes(in.Pid, renamed)
	return fuse.OK
}

// nodeAt is what a name leads to, if the kernel knows it, and may owe its times.
func (f *fileSystem) nodeAt(dir tier.Dir, name string) *node {
	if !f.writeback {
		return nil
	}
	h, err := f.handleOf(dir, name)
	if err != nil {
		return nil
	}
	return f.inodes.find(h)
}

func (f *fileSystem) rename(in *fuse.RenameIn, oldDir tier.Dir, oldName string, newDir tier.Dir, newName string) error {
	if in.Flags&unix.RENAME_EXCHANGE != 0 {
		return f.exchange(in, oldDir, oldName, newDir, newName)
	}
	if resent(in.Unique) && f.renamedBefore(oldDir, oldName, newDir, newName) {
		return nil
	}
	lost := f.keep(newDir, newName)
	err := f.volume.Rename(oldDir, oldName, newDir, newName, in.Flags)
	if err != nil {
		f.unkeep(lost)
	}
	return err
}

package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// OpenDir opens a directory for reading it.
func (f *fileSystem) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	defer f.answered(metrics.OpOpenDir, time.Now())
	n := f.inodes.get(in.NodeId)
	if n == nil {
		return fuse.Status(unix.ESTALE)
	}
	if f.openedBefore(&in.InHeader, out) != nil {
		return fuse.OK
	}
	fd, err := f.reopen(n, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return f.status("opendir", n, err)
	}
	o, err := f.addHandle(n, fd, in.Flags&^unix.O_ACCMODE, in.Unique)
	if err != nil {
		return f.status("opendir", n, err)
	}
	*out = fuse.OpenOut{Fh: o.id}
	return fuse.OK
}

// ReleaseDir ends a handle of OpenDir.
func (f *fileSystem) ReleaseDir(in *fuse.ReleaseIn) {
	defer f.answered(metrics.OpReleaseDir, time.Now())
	f.handles.remove(in.Fh)
}

// FsyncDir makes the names in a directory durable.
func (f *fileSystem) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	defer f.answered(metrics.OpFsyncDir, time.Now())
	o, code := f.handle(in.Fh)
	if !code.Ok() {
		return code
	}
	return f.status("fsyncdir", o.node, f.sync(o, in))
}

// ReadDir gives the next names from an offset on.
func (f *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	defer f.answered(metrics.OpReadDir, time.Now())
	o, code := f.handle(in.Fh)
	if !code.Ok() {
		return code
	}
	names, err := f.list(o, in.Offset)
	if err != nil {
		return f.status("readdir", o.node, err)
	}
	for i := range names {
		if !out.AddDirEntry(names[i].dirent()) {
			break
		}
	}
	return fuse.OK
}

// ReadDirPlus is ReadDir with a lookup of each name. A name that cannot be looked
// up is listed all the same, and whoever wants more of it gets the error.
func (f *fileSystem) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	defer f.answered(metrics.OpReadDirPlus, time.Now())
	o, code := f.handle(in.Fh)
	if !code.Ok() {
		return code
	}
	names, err := f.list(o, in.Offset)
	if err != nil {
		return f.status("readdirplus", o.node, err)
	}
	dir := tier.Dir{FD: o.fd, Handle: o.node.handle}
	for i := range names {
		slot := out.AddDirLookupEntry(names[i].dirent())
		if slot == nil {
			break
		}
		if isDots(names[i].Name) {
			continue // the kernel knows both, and takes no lookup for them
		}
		if _, err := f.lookup(dir, names[i].Name, slot); err != nil {
			*slot = fuse.EntryOut{}
		}
	}
	return fuse.OK
}

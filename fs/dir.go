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
	fd, err := f.reopen(n, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return f.status("opendir", n, err)
	}
	o := f.handles.add(n, fd, in.Flags&^unix.O_ACCMODE)
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
	o := f.handles.get(in.Fh)
	if o == nil {
		return fuse.EBADF
	}
	return f.status("fsyncdir", o.node, syncFD(o.fd, in.FsyncFlags))
}

// ReadDir gives the next names from an offset on.
func (f *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	defer f.answered(metrics.OpReadDir, time.Now())
	o := f.handles.get(in.Fh)
	if o == nil {
		return fuse.EBADF
	}
	names, err := f.list(o, in.Offset)
	if err != nil {
		return f.status("readdir", o.node, err)
	}
	for i := range names {
		if !out.AddDirEntry(direntOf(names[i], in.Offset+uint64(i)+1)) {
			break
		}
	}
	return fuse.OK
}

// ReadDirPlus is ReadDir with a lookup of each name. A name that cannot be looked
// up is listed all the same, and whoever wants more of it gets the error.
func (f *fileSystem) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	defer f.answered(metrics.OpReadDirPlus, time.Now())
	o := f.handles.get(in.Fh)
	if o == nil {
		return fuse.EBADF
	}
	names, err := f.list(o, in.Offset)
	if err != nil {
		return f.status("readdirplus", o.node, err)
	}
	dir := tier.Dir{FD: o.fd, Handle: o.node.handle}
	for i := range names {
		slot := out.AddDirLookupEntry(direntOf(names[i], in.Offset+uint64(i)+1))
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

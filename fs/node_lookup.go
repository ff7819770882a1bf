package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// Lookup finds a name in a directory. That a name is missing is an answer too, and
// the kernel keeps it: nobody makes names behind its back.
func (f *fileSystem) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	defer f.answered(metrics.OpLookup, time.Now())
	parent, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	_, err := f.lookup(dir, name, out)
	switch errnoOf(err) {
	case 0:
		return fuse.OK
	case unix.ENOENT:
		*out = fuse.EntryOut{}
		out.SetEntryTimeout(cacheTime)
		return fuse.OK
	}
	return f.status("lookup", parent, err)
}

// lookup enters the inode of a name into the table, with one lookup, and describes
// it in out.
func (f *fileSystem) lookup(dir tier.Dir, name string, out *fuse.EntryOut) (*node, error) {
	e, err := f.volume.Lookup(dir, name)
	if err != nil {
		return nil, err
	}
	return f.enter(e, out)
}

// enter is lookup for an entry that is at hand.
func (f *fileSystem) enter(e tier.Entry, out *fuse.EntryOut) (*node, error) {
	if e.Stat.Dev != f.rootDev { // something is mounted there; handles do not reach it
		if e.File != nil {
			e.File.Release()
		}
		return nil, unix.EXDEV
	}
	n, err := f.inodes.enter(e)
	if err != nil {
		return nil, err
	}
	fillEntry(n, &e.Stat, out)
	f.stillFull(n)
	return n, nil
}

func fillEntry(n *node, st *unix.Stat_t, out *fuse.EntryOut) {
	*out = fuse.EntryOut{NodeId: n.id, Generation: generation}
	fillAttr(st, &out.Attr)
	out.SetEntryTimeout(cacheTime)
	out.SetAttrTimeout(cacheTime)
}

// Forget takes lookups back.
func (f *fileSystem) Forget(id, count uint64) {
	defer f.answered(metrics.OpForget, time.Now())
	f.inodes.forget(id, count)
}

// Readlink reads a symlink's target.
func (f *fileSystem) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	defer f.answered(metrics.OpReadlink, time.Now())
	n := f.inodes.get(in.NodeId)
	if n == nil {
		return nil, fuse.Status(unix.ESTALE)
	}
	l, err := f.descriptor(n, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, f.status("readlink", n, err)
	}
	defer l.release()
	target := make([]byte, unix.PathMax)
	size, err := unix.Readlinkat(l.fd, "", target)
	if err != nil {
		return nil, f.status("readlink", n, err)
	}
	return target[:size], fuse.OK
}

// Access is not sent, because the kernel checks permissions (default_permissions).
func (f *fileSystem) Access(_ <-chan struct{}, _ *fuse.AccessIn) fuse.Status {
	defer f.answered(metrics.OpAccess, time.Now())
	return fuse.OK
}

// StatFs describes the file system below.
func (f *fileSystem) StatFs(_ <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	defer f.answered(metrics.OpStatFs, time.Now())
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.root, &st); err != nil {
		return f.status("statfs", f.inodes.get(in.NodeId), err)
	}
	*out = fuse.StatfsOut{
		Blocks:  st.Blocks,
		Bfree:   st.Bfree,
		Bavail:  st.Bavail,
		Files:   st.Files,
		Ffree:   st.Ffree,
		Bsize:   uint32(st.Bsize),
		Frsize:  uint32(st.Frsize),
		NameLen: uint32(st.Namelen),
	}
	return fuse.OK
}

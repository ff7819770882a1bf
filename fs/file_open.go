package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
)

// flagsBelow turns the broker's open flags into ours. A file that is written is
// opened for reading too: the kernel may have to read around what it writes. Offsets
// are given with each request, so there is no O_APPEND; what truncates or creates is
// done elsewhere, under the segment's rules; the page cache below is always used.
func flagsBelow(flags uint32) int {
	below := unix.O_RDONLY
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		below = unix.O_RDWR
	}
	return below | int(flags)&unix.O_SYNC | unix.O_NOFOLLOW | unix.O_CLOEXEC
}

// Open opens a regular file. The kernel has done the permissions, and truncates by
// SetAttr. Pages stay valid from one open to the next.
func (f *fileSystem) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	defer f.answered(metrics.OpOpen, time.Now())
	n := f.inodes.get(in.NodeId)
	if n == nil {
		return fuse.Status(unix.ESTALE)
	}
	code := f.open(n, &in.InHeader, in.Flags, out)
	if code.Ok() && in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		n.file.OpenedBy(in.Pid)
	}
	return code
}

func (f *fileSystem) open(n *node, in *fuse.InHeader, flags uint32, out *fuse.OpenOut) fuse.Status {
	if !n.isRegular() { // the kernel opens all others itself
		return fuse.Status(unix.ENXIO)
	}
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		defer f.stillFull(n) // the kernel may know its attributes since before
	}
	if f.openedBefore(in, out) != nil {
		return fuse.OK
	}
	fd, err := f.reopen(n, flagsBelow(flags))
	if err != nil {
		return f.status("open", n, err)
	}
	o, err := f.addHandle(n, fd, flags, in.Unique)
	if err != nil {
		return f.status("open", n, err)
	}
	*out = fuse.OpenOut{Fh: o.id, OpenFlags: fuse.FOPEN_KEEP_CACHE}
	return fuse.OK
}

// reopen makes a new descriptor of an inode, which the caller owns.
func (f *fileSystem) reopen(n *node, flags int) (int, error) {
	if n.isRoot() {
		return unix.Openat(f.root, ".", flags, 0)
	}
	return n.handle.Open(f.root, flags)
}

// Release ends a handle, after the last request on it.
func (f *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	defer f.answered(metrics.OpRelease, time.Now())
	f.handles.remove(in.Fh)
}

// Flush is sent at each close(2), when the kernel has written what was mapped. An
// answer costs less than it saves: without it, pages of a mapping would be written
// after the close. The handle itself may live on: a mapping holds it, and Java
// keeps those of an index until it collects them.
func (f *fileSystem) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	defer f.answered(metrics.OpFlush, time.Now())
	o, code := f.handle(in.Fh)
	if !code.Ok() {
		return code
	}
	if o.file != nil {
		o.file.Synced()
	}
	return f.status("flush", o.node, f.reserved(o))
}

// fsyncData is the flag of fdatasync(2) in a FSYNC.
const fsyncData = 1

// Fsync makes what was written durable below. The kernel has sent all of it.
func (f *fileSystem) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	defer f.answered(metrics.OpFsync, time.Now())
	o, code := f.handle(in.Fh)
	if !code.Ok() {
		return code
	}
	if o.file == nil {
		return f.status("fsync", o.node, f.sync(o, in))
	}
	sent := o.file.Syncing()
	err := f.sync(o, in)
	sent.Done(err == nil)
	if err == nil {
		err = f.reserved(o)
	}
	return f.status("fsync", o.node, err)
}

func syncFD(fd int, flags uint32) error {
	if flags&fsyncData != 0 {
		return unix.Fdatasync(fd)
	}
	return unix.Fsync(fd)
}

// Lseek answers SEEK_DATA and SEEK_HOLE. A remote segment is all data, and so is a
// file that somebody may write: pages of a mapping that the kernel has not handed on
// yet may lie in what is a hole below. Where the kernel gathers writes, only it knows
// where a file ends: this is the one request that gets ENOSYS, on which it answers by
// itself, from then on, that everything is data.
func (f *fileSystem) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	defer f.answered(metrics.OpLseek, time.Now())
	o, code := f.fileHandle(in.Fh)
	if !code.Ok() {
		return code
	}
	if f.writeback {
		return fuse.ENOSYS
	}
	src := o.file.Source()
	defer src.Release()
	size := src.Size()
	if src.Local() {
		if !o.file.Writable() {
			off, err := unix.Seek(o.fd, int64(in.Offset), int(in.Whence))
			out.Offset = uint64(off)
			return f.status("lseek", o.node, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(o.fd, &st); err != nil {
			return f.status("lseek", o.node, err)
		}
		size = st.Size
	}
	return allData(in, out, size)
}

// allData answers for a file without holes.
func allData(in *fuse.LseekIn, out *fuse.LseekOut, size int64) fuse.Status {
	if in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE {
		return fuse.EINVAL
	}
	if in.Offset >= uint64(size) {
		return fuse.Status(unix.ENXIO)
	}
	out.Offset = in.Offset
	if in.Whence == unix.SEEK_HOLE {
		out.Offset = uint64(size)
	}
	return fuse.OK
}

package fs

import (
	"strconv"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

const (
	timeNow  = 1<<30 - 1 // UTIME_NOW
	timeOmit = 1<<30 - 2 // UTIME_OMIT
)

// SetAttr changes mode, owner, size and times. The kernel has done the permissions.
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	defer f.answered(metrics.OpSetAttr, time.Now())
	f.owed.paid(in.Pid, in.NodeId)
	n := f.inodes.get(in.NodeId)
	if n == nil {
		return fuse.Status(unix.ESTALE)
	}
	l, err := f.forSetAttr(n, in)
	if err != nil {
		f.failedChange(n)
		return f.changeStatus("setattr", n, err)
	}
	defer l.release()
	if err := f.mutateAttr(cancel, n, l.fd, in); err != nil {
		f.failedChange(n)
		return f.changeStatus("setattr", n, err)
	}
	st, err := f.attributesOf(n, l.fd)
	if err != nil {
		return f.changeStatus("setattr", n, err)
	}
	answerAttr(&st, out)
	f.stillFull(n)
	return fuse.OK
}

// forSetAttr returns a descriptor that will do: one that may write to change the
// size, preferably the caller's own.
func (f *fileSystem) forSetAttr(n *node, in *fuse.SetAttrIn) (lent, error) {
	if _, ok := in.GetSize(); !ok {
		return f.descriptor(n, unix.O_PATH|unix.O_NOFOLLOW)
	}
	if !n.isRegular() {
		return lent{}, unix.EINVAL
	}
	return f.descriptor(n, unix.O_RDWR)
}

func (f *fileSystem) mutateAttr(cancel <-chan struct{}, n *node, fd int, in *fuse.SetAttrIn) error {
	if n.isRoot() {
		return f.changeRoot(fd, in)
	}
	if n.file == nil {
		return f.change(n, fd, in)
	}
	m := tier.Mutation{Kind: tier.Attr}
	if size, ok := in.GetSize(); ok {
		m = tier.Mutation{Kind: tier.Truncate, Size: int64(size)}
	}
	req := f.requestOf(cancel, &in.InHeader)
	defer req.stop()
	done, err := n.file.Mutate(req, m)
	if err != nil {
		return err
	}
	defer done()
	return f.change(n, fd, in)
}

// nothing are the bits of a SETATTR that change nothing by themselves. One with no
// other is how the kernel says that set-id bits must go, before a write by a caller
// without CAP_FSETID and at a chown that leaves both ids.
const nothing = fuse.FATTR_FH | fuse.FATTR_LOCKOWNER | fuse.FATTR_CTIME | fuse.FATTR_KILL_SUIDGID

// change does the system calls, times last: the others move them.
func (f *fileSystem) change(n *node, fd int, in *fuse.SetAttrIn) error {
	if in.Valid&^nothing == 0 && n.isRegular() {
		return dropSetID(fd)
	}
	uid, setUID := in.GetUID()
	gid, setGID := in.GetGID()
	if setUID || setGID {
		// An id that is not set is -1, "leave it", in both places.
		err := unix.Fchownat(fd, "", int(int32(uid)), int(int32(gid)), unix.AT_EMPTY_PATH)
		if err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		if err := chmod(fd, mode); err != nil {
			return err
		}
	}
	if size, ok := in.GetSize(); ok {
		if err := retry(func() error { return unix.Ftruncate(fd, int64(size)) }); err != nil {
			return err
		}
		if in.Valid&fuse.FATTR_KILL_SUIDGID != 0 {
			if err := dropSetID(fd); err != nil {
				return err
			}
		}
	}
	return setTimes(fd, in)
}

// chmod works on a descriptor with O_PATH too, which fchmod refuses.
func chmod(fd int, mode uint32) error {
	return unix.Chmod(procPath(fd), mode)
}

// procPath names the inode of a descriptor for calls that take none with O_PATH.
// It is not a path into any tree: nothing on it can be renamed or covered.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func setTimes(fd int, in *fuse.SetAttrIn) error {
	times := []unix.Timespec{
		timeOf(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec),
		timeOf(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec),
	}
	if times[0].Nsec == timeOmit && times[1].Nsec == timeOmit {
		return nil
	}
	return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
}

func timeOf(valid, set, now uint32, sec uint64, nsec uint32) unix.Timespec {
	switch {
	case valid&set == 0:
		return unix.Timespec{Nsec: timeOmit}
	case valid&now != 0:
		return unix.Timespec{Nsec: timeNow}
	}
	return unix.Timespec{Sec: int64(sec), Nsec: int64(nsec)}
}

// changeRoot keeps mode and owner of the root beside the volume; the directory
// below stays closed. Its times are those of the directory below.
func (f *fileSystem) changeRoot(fd int, in *fuse.SetAttrIn) error {
	f.rootMu.Lock()
	defer f.rootMu.Unlock()
	a := f.rootAttr
	if mode, ok := in.GetMode(); ok {
		a.Mode = mode
	}
	if uid, ok := in.GetUID(); ok {
		a.UID = uid
	}
	if gid, ok := in.GetGID(); ok {
		a.GID = gid
	}
	if a != f.rootAttr {
		if f.setRoot == nil {
			return unix.EPERM
		}
		if err := f.setRoot(a); err != nil {
			return err
		}
		f.rootAttr = a
	}
	return setTimes(fd, in)
}

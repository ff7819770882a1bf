package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
)

// cacheTime is how long the kernel may believe a name, a missing name or an
// attribute. Nobody else changes the tree, so it is only a bound on mistakes.
const cacheTime = time.Hour

// generation of every inode number: numbers are never used twice.
const generation = 1

// attributesOf reads the attributes of n as the broker sees them.
func (f *fileSystem) attributesOf(n *node, fd int) (unix.Stat_t, error) {
	var st unix.Stat_t
	if n.file != nil {
		err := n.file.Stat(fd, &st)
		return st, err
	}
	err := unix.Fstat(fd, &st)
	if n.isRoot() {
		f.showRoot(&st)
	}
	return st, err
}

// showRoot puts the broker's attributes of the root in place of those below.
func (f *fileSystem) showRoot(st *unix.Stat_t) {
	f.rootMu.Lock()
	defer f.rootMu.Unlock()
	st.Mode = st.Mode&unix.S_IFMT | f.rootAttr.Mode&0o7777
	st.Uid, st.Gid = f.rootAttr.UID, f.rootAttr.GID
}

// GetAttr answers stat(2) when the kernel has no attributes.
func (f *fileSystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	defer f.answered(metrics.OpGetAttr, time.Now())
	n := f.inodes.get(in.NodeId)
	if n == nil {
		return fuse.Status(unix.ESTALE)
	}
	if in.Flags()&fuse.FUSE_GETATTR_FH != 0 && f.full() && f.handles.writes(in.Fh()) {
		return fuse.Status(unix.ENOSPC) // of a write(2)
	}
	l, err := f.descriptor(n, unix.O_PATH)
	if err != nil {
		return f.status("getattr", n, err)
	}
	defer l.release()
	st, err := f.attributesOf(n, l.fd)
	if err != nil {
		return f.status("getattr", n, err)
	}
	answerAttr(&st, out)
	f.stillFull(n)
	return fuse.OK
}

func answerAttr(st *unix.Stat_t, out *fuse.AttrOut) {
	fillAttr(st, &out.Attr)
	out.SetTimeout(cacheTime)
}

func fillAttr(st *unix.Stat_t, a *fuse.Attr) {
	*a = fuse.Attr{
		Ino:       st.Ino,
		Size:      uint64(st.Size),
		Blocks:    uint64(st.Blocks),
		Atime:     uint64(st.Atim.Sec),
		Mtime:     uint64(st.Mtim.Sec),
		Ctime:     uint64(st.Ctim.Sec),
		Atimensec: uint32(st.Atim.Nsec),
		Mtimensec: uint32(st.Mtim.Nsec),
		Ctimensec: uint32(st.Ctim.Nsec),
		Mode:      st.Mode,
		Nlink:     uint32(st.Nlink),
		Owner:     fuse.Owner{Uid: st.Uid, Gid: st.Gid},
		Rdev:      uint32(st.Rdev),
		Blksize:   uint32(st.Blksize),
	}
}

// Statx answers statx(2) where it asks for more than stat(2): the time of birth.
func (f *fileSystem) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	defer f.answered(metrics.OpStatx, time.Now())
	n := f.inodes.get(in.NodeId)
	if n == nil {
		return fuse.Status(unix.ESTALE)
	}
	l, err := f.descriptor(n, unix.O_PATH)
	if err != nil {
		return f.status("statx", n, err)
	}
	defer l.release()
	var below unix.Statx_t
	if err := unix.Statx(l.fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &below); err != nil {
		return f.status("statx", n, err)
	}
	st, err := f.attributesOf(n, l.fd)
	if err != nil {
		return f.status("statx", n, err)
	}
	fillStatx(&st, &below, &out.Statx)
	out.SetTimeout(cacheTime)
	f.stillFull(n)
	return fuse.OK
}

func fillStatx(st *unix.Stat_t, below *unix.Statx_t, out *fuse.Statx) {
	*out = fuse.Statx{
		Mask:           unix.STATX_BASIC_STATS | below.Mask&unix.STATX_BTIME,
		Blksize:        uint32(st.Blksize),
		Attributes:     below.Attributes,
		AttributesMask: below.Attributes_mask,
		Nlink:          uint32(st.Nlink),
		Uid:            st.Uid,
		Gid:            st.Gid,
		Mode:           uint16(st.Mode),
		Ino:            st.Ino,
		Size:           uint64(st.Size),
		Blocks:         uint64(st.Blocks),
		Atime:          fuse.SxTime{Sec: uint64(st.Atim.Sec), Nsec: uint32(st.Atim.Nsec)},
		Mtime:          fuse.SxTime{Sec: uint64(st.Mtim.Sec), Nsec: uint32(st.Mtim.Nsec)},
		Ctime:          fuse.SxTime{Sec: uint64(st.Ctim.Sec), Nsec: uint32(st.Ctim.Nsec)},
		Btime:          fuse.SxTime{Sec: uint64(below.Btime.Sec), Nsec: below.Btime.Nsec},
		RdevMajor:      unix.Major(st.Rdev),
		RdevMinor:      unix.Minor(st.Rdev),
	}
}

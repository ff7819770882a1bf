package fs

import (
	"errors"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// Create makes a regular file and opens it.
func (f *fileSystem) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	defer f.answered(metrics.OpCreate, time.Now())
	if code, ok := f.createdBefore(&in.InHeader, out); ok {
		return code
	}
	if f.noRoom(&in.InHeader) {
		return fuse.Status(unix.ENOSPC)
	}
	parent, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	n, fd, err := f.create(dir, name, in.Flags, in.Mode, in.Owner, &out.EntryOut)
	if errors.Is(err, unix.EEXIST) && in.Flags&unix.O_EXCL == 0 || alreadyThere(&in.InHeader, err) {
		return f.openExisting(dir, name, in, out)
	}
	if err != nil {
		return f.status("create", parent, err)
	}
	return f.answerCreate(n, fd, in, out)
}

// answerCreate makes a handle of fd, which it takes over, and of the lookup of n.
func (f *fileSystem) answerCreate(n *node, fd int, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	o, err := f.addHandle(n, fd, in.Flags, in.Unique)
	if err != nil {
		f.inodes.forget(n.id, 1)
		return f.status("create", n, err)
	}
	out.OpenOut = fuse.OpenOut{Fh: o.id, OpenFlags: fuse.FOPEN_KEEP_CACHE}
	return fuse.OK
}

// openExisting is Create for a name that is there. The kernel looks names up before,
// so it takes a request that is resent; with O_EXCL it always does.
func (f *fileSystem) openExisting(dir tier.Dir, name string, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	n, err := f.lookup(dir, name, &out.EntryOut)
	if err != nil {
		return f.status("create", nil, err)
	}
	code := fuse.OK
	switch {
	case n.isRegular() && resent(in.Unique):
		code = f.status("create", n, f.finishNew(dir, n, in.Mode, in.Owner, &out.EntryOut))
	case in.Flags&unix.O_EXCL != 0:
		code = fuse.Status(unix.EEXIST)
	}
	if code.Ok() {
		code = f.open(n, &in.InHeader, in.Flags, &out.OpenOut)
	}
	if !code.Ok() {
		f.inodes.forget(n.id, 1)
	}
	return code
}

// create makes a regular file that belongs to owner. The caller owns fd.
func (f *fileSystem) create(dir tier.Dir, name string, flags, mode uint32, owner fuse.Owner, out *fuse.EntryOut) (*node, int, error) {
	fd, e, err := f.volume.Create(dir, name, flagsBelow(flags), mode&0o7777)
	if err != nil {
		return nil, -1, err
	}
	e.Stat, err = f.own(dir, fd, mode, owner)
	if err != nil {
		_ = unix.Close(fd)
		e.File.Release()
		return nil, -1, errors.Join(err, f.volume.Unlink(dir, name))
	}
	n, err := f.enter(e, out)
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, errors.Join(err, f.volume.Unlink(dir, name))
	}
	return n, fd, nil
}

// own gives a new inode, which nobody else can see yet, to its creator, and
// returns its attributes. The daemon is root with a umask of its own; the creator's
// umask is in mode. In a set-gid directory the group is the directory's.
func (f *fileSystem) own(dir tier.Dir, fd int, mode uint32, owner fuse.Owner) (unix.Stat_t, error) {
	group, setgid, err := f.groupOf(dir)
	if err != nil {
		return unix.Stat_t{}, err
	}
	if setgid {
		owner.Gid = group
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return st, err
	}
	if setgid && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		mode |= unix.S_ISGID
	}
	if st.Uid == owner.Uid && st.Gid == owner.Gid && st.Mode&0o7777 == mode&0o7777 {
		return st, nil
	}
	// In this order: a change of owner clears set-id bits.
	if err := unix.Fchownat(fd, "", int(owner.Uid), int(owner.Gid), unix.AT_EMPTY_PATH); err != nil {
		return st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := chmod(fd, mode&0o7777); err != nil {
			return st, err
		}
	}
	err = unix.Fstat(fd, &st)
	return st, err
}

// groupOf returns the group of a directory and whether new inodes in it get it.
func (f *fileSystem) groupOf(dir tier.Dir) (group uint32, setgid bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir.FD, &st); err != nil {
		return 0, false, err
	}
	if n := f.inodes.find(dir.Handle); n != nil && n.isRoot() {
		f.showRoot(&st)
	}
	return st.Gid, st.Mode&unix.S_ISGID != 0, nil
}

// Mkdir makes a directory.
func (f *fileSystem) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	defer f.answered(metrics.OpMkdir, time.Now())
	return f.make("mkdir", &in.InHeader, name, in.Mode, out, maker{
		do:   func(dir int) error { return unix.Mkdirat(dir, name, in.Mode&0o7777) },
		undo: func(dir int) { _ = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) },
		made: func(_ int, st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR },
	})
}

// Symlink makes a symlink.
func (f *fileSystem) Symlink(_ <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	defer f.answered(metrics.OpSymlink, time.Now())
	return f.make("symlink", in, name, 0, out, maker{
		do:   func(dir int) error { return unix.Symlinkat(target, dir, name) },
		undo: func(dir int) { _ = unix.Unlinkat(dir, name, 0) },
		made: func(dir int, _ *unix.Stat_t) bool {
			b := make([]byte, len(target)+1)
			n, err := unix.Readlinkat(dir, name, b)
			return err == nil && string(b[:n]) == target
		},
	})
}

// Mknod makes a file of any type. The kernel has checked that the caller may make
// devices; on the mount they cannot be opened (MS_NODEV).
func (f *fileSystem) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	defer f.answered(metrics.OpMknod, time.Now())
	if format := in.Mode & unix.S_IFMT; format == unix.S_IFREG || format == 0 {
		return f.mknodRegular(in, name, out)
	}
	return f.make("mknod", &in.InHeader, name, in.Mode, out, maker{
		do:   func(dir int) error { return unix.Mknodat(dir, name, in.Mode, int(in.Rdev)) },
		undo: func(dir int) { _ = unix.Unlinkat(dir, name, 0) },
		made: func(_ int, st *unix.Stat_t) bool {
			return st.Mode&unix.S_IFMT == in.Mode&unix.S_IFMT && uint32(st.Rdev) == in.Rdev
		},
	})
}

func (f *fileSystem) mknodRegular(in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if f.noRoom(&in.InHeader) {
		return fuse.Status(unix.ENOSPC)
	}
	parent, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	_, fd, err := f.create(dir, name, unix.O_RDONLY, in.Mode, in.Owner, out)
	if alreadyThere(&in.InHeader, err) {
		return f.status("mknod", parent, f.mknodBefore(dir, in, name, out))
	}
	if err != nil {
		return f.status("mknod", parent, err)
	}
	_ = unix.Close(fd)
	return fuse.OK
}

// maker makes an inode in a directory, takes that back, and tells whether what stands
// there is what it makes.
type maker struct {
	do   func(dir int) error
	undo func(dir int)
	made func(dir int, st *unix.Stat_t) bool
}

// make makes anything but a regular file.
func (f *fileSystem) make(op string, in *fuse.InHeader, name string, mode uint32, out *fuse.EntryOut, m maker) fuse.Status {
	if tier.Hidden(name) {
		return fuse.EPERM
	}
	if f.noRoom(in) {
		return fuse.Status(unix.ENOSPC)
	}
	parent, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	err := m.do(dir.FD)
	if alreadyThere(in, err) {
		var st unix.Stat_t
		if unix.Fstatat(dir.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && m.made(dir.FD, &st) {
			err = nil
		}
	}
	if err != nil {
		return f.status(op, parent, err)
	}
	if err := f.enterNew(dir, name, mode, in.Owner, out); err != nil {
		m.undo(dir.FD)
		return f.status(op, parent, err)
	}
	return fuse.OK
}

func (f *fileSystem) enterNew(dir tier.Dir, name string, mode uint32, owner fuse.Owner, out *fuse.EntryOut) error {
	fd, err := unix.Openat(dir.FD, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := f.own(dir, fd, mode, owner)
	if err != nil {
		return err
	}
	h, err := handle.At(fd, "")
	if err != nil {
		return err
	}
	_, err = f.enter(tier.Entry{Stat: st, Handle: h}, out)
	return err
}

// Link gives an inode another name. It works on any inode, and on one without a
// name (O_TMPFILE) it makes the first.
func (f *fileSystem) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	defer f.answered(metrics.OpLink, time.Now())
	n := f.inodes.get(in.Oldnodeid)
	if n == nil {
		return fuse.Status(unix.ESTALE)
	}
	_, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	e, err := f.link(n, dir, name)
	if alreadyThere(&in.InHeader, err) {
		e, err = f.linkedBefore(n, dir, name)
	}
	if err == nil {
		_, err = f.enter(e, out)
		f.owesTimes(in.Pid, n)
	}
	return f.status("link", n, err)
}

func (f *fileSystem) link(n *node, dir tier.Dir, name string) (tier.Entry, error) {
	if n.file != nil {
		return f.volume.Link(n.file, dir, name)
	}
	if tier.Hidden(name) {
		return tier.Entry{}, unix.EPERM
	}
	l, err := f.descriptor(n, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return tier.Entry{}, err
	}
	defer l.release()
	if err := unix.Linkat(l.fd, "", dir.FD, name, unix.AT_EMPTY_PATH); err != nil {
		return tier.Entry{}, err
	}
	return f.volume.Lookup(dir, name)
}

// Tmpfile makes a regular file without a name and opens it.
func (f *fileSystem) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	defer f.answered(metrics.OpCreate, time.Now())
	if code, ok := f.createdBefore(&in.InHeader, out); ok {
		return code
	}
	if f.noRoom(&in.InHeader) {
		return fuse.Status(unix.ENOSPC)
	}
	parent, dir, l, code := f.directory(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	// With O_EXCL it never gets a name.
	flags := flagsBelow(in.Flags) | unix.O_TMPFILE | int(in.Flags)&unix.O_EXCL
	fd, err := unix.Openat(dir.FD, ".", flags, in.Mode&0o7777)
	if err != nil {
		return f.status("tmpfile", parent, err)
	}
	n, err := f.enterNameless(dir, fd, in, &out.EntryOut)
	if err != nil {
		_ = unix.Close(fd)
		return f.status("tmpfile", parent, err)
	}
	f.keepNode(n) // it has lost its last name before it had any
	return f.answerCreate(n, fd, in, out)
}

func (f *fileSystem) enterNameless(dir tier.Dir, fd int, in *fuse.CreateIn, out *fuse.EntryOut) (*node, error) {
	st, err := f.own(dir, fd, in.Mode, in.Owner)
	if err != nil {
		return nil, err
	}
	h, err := handle.At(fd, "")
	if err != nil {
		return nil, err
	}
	return f.enter(tier.Entry{Stat: st, Handle: h, File: f.volume.FileOf(h)}, out)
}

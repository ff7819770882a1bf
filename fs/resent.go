package fs

import (
	"errors"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/tier"
)

// A request that a dead daemon did not answer is resent to its successor. It may
// have been carried out, in part or in full; it is answered as the first time.
//
// What makes that possible: whoever asked still waits, and the kernel holds the locks
// of the directories and inodes that the request is about, so no other request has
// changed them since. The kernel asks for a new name only where it knows that there
// is none, and for a change of a name only where there is one, and nobody but tierfs
// changes the tree. So a resent request that finds its work done has done it. What it
// finds half done, package tier has finished or undone when it was opened.

// alreadyGone reports whether a resent request may have failed because the name that
// it takes away is gone by itself.
func alreadyGone(in *fuse.InHeader, err error) bool {
	return resent(in.Unique) && errnoOf(err) == unix.ENOENT
}

// alreadyThere is the same for a name that the request makes.
func alreadyThere(in *fuse.InHeader, err error) bool {
	return resent(in.Unique) && errors.Is(err, unix.EEXIST)
}

// openedBefore answers a resent request with the handle that it made the first time;
// nil: it made none.
func (f *fileSystem) openedBefore(in *fuse.InHeader, out *fuse.OpenOut) *openFile {
	o := f.handles.claim(in.Unique)
	if o == nil {
		return nil
	}
	*out = fuse.OpenOut{Fh: o.id}
	if o.node.isRegular() {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	}
	return o
}

// createdBefore is openedBefore for a request that made the file as well: it has a
// handle, so it was finished.
func (f *fileSystem) createdBefore(in *fuse.InHeader, out *fuse.CreateOut) (fuse.Status, bool) {
	o := f.openedBefore(in, &out.OpenOut)
	if o == nil {
		return fuse.OK, false
	}
	if o.fd < 0 {
		return fuse.EIO, true
	}
	st, err := f.attributesOf(o.node, o.fd)
	if err != nil {
		return f.status("create", o.node, err), true
	}
	f.inodes.enterAgain(o.node)
	fillEntry(o.node, &st, &out.EntryOut)
	return fuse.OK, true
}

// finishNew gives a regular file to its creator that a resent request finds, if that
// may not have been done: it is as new as the kernel believes it to be.
func (f *fileSystem) finishNew(dir tier.Dir, n *node, mode uint32, owner fuse.Owner, out *fuse.EntryOut) error {
	l, err := f.descriptor(n, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer l.release()
	st, err := f.attributesOf(n, l.fd)
	if err != nil || st.Size > 0 || st.Nlink != 1 {
		return err
	}
	if st, err = f.own(dir, l.fd, mode, owner); err != nil {
		return err
	}
	fillEntry(n, &st, out)
	return nil
}

// mknodBefore answers a resent MKNOD of a regular file that finds the file.
func (f *fileSystem) mknodBefore(dir tier.Dir, in *fuse.MknodIn, name string, out *fuse.EntryOut) error {
	n, err := f.lookup(dir, name, out)
	if err != nil {
		return err
	}
	if err = unix.EEXIST; n.isRegular() {
		err = f.finishNew(dir, n, in.Mode, in.Owner, out)
	}
	if err != nil {
		f.inodes.forget(n.id, 1)
	}
	return err
}

// linkedBefore returns the entry of a name that a resent LINK finds, if it leads to
// the inode that it should lead to.
func (f *fileSystem) linkedBefore(n *node, dir tier.Dir, name string) (tier.Entry, error) {
	e, err := f.volume.Lookup(dir, name)
	if err != nil || e.Handle == n.handle {
		return e, err
	}
	if e.File != nil {
		e.File.Release()
	}
	return tier.Entry{}, unix.EEXIST
}

// renamedBefore reports whether a resent RENAME has been done: the old name is gone,
// and the new one is there.
func (f *fileSystem) renamedBefore(oldDir tier.Dir, oldName string, newDir tier.Dir, newName string) bool {
	if _, err := f.handleOf(oldDir, oldName); errnoOf(err) != unix.ENOENT {
		return false
	}
	_, err := f.handleOf(newDir, newName)
	return err == nil
}

func (f *fileSystem) handleOf(dir tier.Dir, name string) (handle.Handle, error) {
	e, err := f.volume.Lookup(dir, name)
	if err == nil && e.File != nil {
		e.File.Release()
	}
	return e.Handle, err
}

// exchange lets two names change places, once: what they led to is noted before.
// Two of 64 exchanges that are under way at the same time would have to be resent
// after 64 younger ones to be taken for each other's.
func (f *fileSystem) exchange(in *fuse.RenameIn, oldDir tier.Dir, oldName string, newDir tier.Dir, newName string) error {
	first, err1 := f.handleOf(oldDir, oldName)
	second, err2 := f.handleOf(newDir, newName)
	if err1 == nil && err2 == nil {
		now := [2]handle.Handle{first, second}
		e, noted := f.memory.ExchangeOf(plain(in.Unique))
		if resent(in.Unique) && noted && e.Before == [2]handle.Handle{second, first} {
			return nil
		}
		if err := f.memory.NoteExchange(holder.Exchange{Unique: plain(in.Unique), Before: now}); err != nil {
			return err
		}
	}
	return f.volume.Rename(oldDir, oldName, newDir, newName, in.Flags)
}

// syncNote is an error of an fsync of a node whose caller may not have been told: the
// disk below reports it once. It is in memory too.
type syncNote struct {
	errno unix.Errno
	since time.Time
}

// noteLasts is longer than it takes to send an answer, and to send a request again.
const noteLasts = 10 * time.Second

// syncedBefore returns the error that a resent fsync met the first time, or 0. One
// that is not resent forgets what is older than any answer under way.
func (t *inodeTable) syncedBefore(n *node, unique uint64) unix.Errno {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case n.sync.errno == 0:
	case resent(unique):
		return n.sync.errno
	case time.Since(n.sync.since) > noteLasts:
		n.sync = syncNote{}
		t.memory.SetSyncError(n.slot, 0)
	}
	return 0
}

// syncFailed notes an error before it is answered.
func (t *inodeTable) syncFailed(n *node, err error) {
	if n.isRoot() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n.sync = syncNote{errno: errnoOf(err), since: time.Now()}
	t.memory.SetSyncError(n.slot, n.sync.errno)
}

// sync is an fsync of a handle; flags are those of FSYNC.
func (f *fileSystem) sync(o *openFile, in *fuse.FsyncIn) error {
	if errno := f.inodes.syncedBefore(o.node, in.Unique); errno != 0 {
		return errno
	}
	err := syncFD(o.fd, in.FsyncFlags)
	if err != nil {
		f.inodes.syncFailed(o.node, err)
	}
	return err
}

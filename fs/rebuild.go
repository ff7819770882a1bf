package fs

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/tier"
)

// rebuild makes the tables of a predecessor anew, from memory and from what the
// holder keeps, before any request is answered. Nothing of the predecessor runs any
// more, and the volume was opened after its end.
//
// An inode that is gone below is known all the same, and answers ESTALE as it would
// have before. A handle that cannot be opened again answers EIO; that is logged here.
func (f *fileSystem) rebuild() {
	needed := map[uint64]bool{}
	for _, o := range f.memory.Handles() {
		needed[o.Node] = true
	}
	began := time.Now()
	for slot, in := range f.memory.Inodes() {
		if in.Lookups == 0 && !needed[in.Number] {
			f.dropSlot(slot, in) // its end was under way
			continue
		}
		f.rebuildNode(slot, in, began)
	}
	f.dropStrays()
	for slot, o := range f.memory.Handles() {
		f.rebuildHandle(slot, o)
	}
}

func (f *fileSystem) dropSlot(slot holder.InodeSlot, in holder.Inode) {
	if in.Kept {
		f.inodes.drop(in.Number)
	}
	f.memory.DropInode(slot)
}

func (f *fileSystem) rebuildNode(slot holder.InodeSlot, in holder.Inode, now time.Time) {
	n := &node{
		id: in.Number, handle: in.Handle, format: in.Format, slot: slot,
		lookups: in.Lookups, spare: -1, inexact: true,
		sync: syncNote{errno: in.SyncError, since: now},
	}
	if in.Kept {
		n.spare, n.kept = f.takeKept(n)
		if !n.kept { // the name was not taken yet
			f.memory.SetKept(slot, false)
		}
	}
	if n.isRegular() {
		n.file = f.volume.FileOf(n.handle)
	}
	t := f.inodes
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byID[n.id] = n
	if old := t.byHandle[n.handle]; old == nil || old.lookups == 0 {
		t.byHandle[n.handle] = n
	}
	t.questions[n.id] = struct{}{}
}

func (f *fileSystem) takeKept(n *node) (fd int, ok bool) {
	if f.inodes.keeper == nil {
		return -1, false
	}
	if fd, ok = f.inodes.keeper.Take(keptName(n.id)); !ok {
		fd = -1
	}
	return fd, ok
}

// dropStrays lets go of what the holder keeps for no node: a predecessor had put it
// there, or not dropped it yet, when it died.
func (f *fileSystem) dropStrays() {
	if f.inodes.keeper == nil {
		return
	}
	kept := map[string]bool{}
	for id, n := range f.inodes.byID { // nobody else has the table yet
		if n.kept {
			kept[keptName(id)] = true
		}
	}
	for _, name := range f.inodes.keeper.Names() {
		if strings.HasPrefix(name, keptPrefix) && !kept[name] {
			_ = f.inodes.keeper.Drop(name)
		}
	}
}

func (f *fileSystem) rebuildHandle(slot holder.HandleSlot, h holder.Open) {
	n := f.inodes.get(h.Node)
	o := &openFile{id: h.Number, node: n, flags: h.Flags, slot: slot, unique: h.Unique, refs: 1}
	flags := flagsBelow(h.Flags)
	if n.isDir() {
		flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	}
	var err error
	if o.fd, err = f.openAgain(n, flags); err != nil {
		o.fd = -1
		f.log.Error("an open file cannot be opened again after the takeover: requests on it fail with EIO",
			"handle", o.id, "inode", n.String(), "err", err)
	}
	f.inodes.opened(n)
	f.handles.enter(o, (*tier.File).Reopened)
}

// openAgain is reopen for a node that may have lost its last name.
func (f *fileSystem) openAgain(n *node, flags int) (int, error) {
	if n.spare < 0 {
		return f.reopen(n, flags)
	}
	// The last part of the path is a link of procfs, which is to be followed.
	return unix.Open(procPath(n.spare), flags&^unix.O_NOFOLLOW, 0)
}

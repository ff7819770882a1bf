package fs

import (
	"maps"
	"slices"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/tier"
)

// An openFile is one open of a file or of a directory by the broker: a descriptor
// and plain data.
type openFile struct {
	id     uint64
	node   *node
	flags  uint32 // as the kernel gave them at open
	fd     int    // -1: a predecessor's, which could not be opened again; see rebuild
	slot   holder.HandleSlot
	unique uint64 // of the request that opened it, if a predecessor got it; else 0

	refs int // guarded by node.mu: the handle itself, and whoever has borrowed fd

	// file is node.file with a reference of the handle's own: the kernel may forget
	// an inode while the release of its last handle is still under way.
	file    *tier.File
	listing listing // of a directory
}

func (o *openFile) writes() bool { return o.flags&unix.O_ACCMODE != unix.O_RDONLY }

// put gives back one reference; the last one closes the descriptor.
func (o *openFile) put() {
	o.node.mu.Lock()
	o.refs--
	last := o.refs == 0
	o.node.mu.Unlock()
	if last && o.fd >= 0 {
		_ = unix.Close(o.fd) // what close could report was reported by fsync or never asked for
	}
}

// handleTable maps the kernel's numbers of open files. A number is never given
// twice. What a successor has to know of a handle is in memory before the kernel
// learns of it.
type handleTable struct {
	volume *tier.Volume
	inodes *inodeTable
	memory *holder.Table

	mu       sync.RWMutex
	byID     map[uint64]*openFile
	byUnique map[uint64]*openFile // those of a predecessor, by the request that opened them
}

func newHandleTable(v *tier.Volume, inodes *inodeTable, m *holder.Table) *handleTable {
	return &handleTable{volume: v, inodes: inodes, memory: m, byID: map[uint64]*openFile{}, byUnique: map[uint64]*openFile{}}
}

// addHandle makes a handle of fd, which it owns from now on, and lends fd to the node.
// unique is the number of the request.
func (f *fileSystem) addHandle(n *node, fd int, flags uint32, unique uint64) (*openFile, error) {
	t := f.handles
	if f.inodes.opened(n) {
		f.keepWithHolder(n)
	}
	o := &openFile{node: n, fd: fd, flags: flags, refs: 1, id: t.memory.NextHandle()}
	var err error
	o.slot, err = t.memory.AddHandle(holder.Open{Number: o.id, Node: n.id, Flags: flags, Unique: plain(unique)})
	if err != nil {
		_ = unix.Close(fd)
		f.inodes.closed(n)
		return nil, err
	}
	t.enter(o, (*tier.File).Opened)
	return o, nil
}

// enter puts a handle into the tables that has its slot, and tells the file by opened.
func (t *handleTable) enter(o *openFile, opened func(f *tier.File, write bool)) {
	n := o.node
	if n.isRegular() {
		o.file = t.volume.FileOf(n.handle)
		opened(o.file, o.writes())
	}
	t.mu.Lock()
	t.byID[o.id] = o
	if o.unique != 0 {
		t.byUnique[o.unique] = o
	}
	t.mu.Unlock()
	if o.fd < 0 {
		return
	}
	n.mu.Lock()
	n.open = append(n.open, o)
	n.mu.Unlock()
}

// all returns the handles that are open now.
func (t *handleTable) all() []*openFile {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.byID))
}

// writes reports whether a handle is one for writing.
func (t *handleTable) writes(id uint64) bool {
	o := t.get(id)
	return o != nil && o.file != nil && o.writes()
}

// get returns an open handle, or nil. The kernel releases a handle only after the
// last request on it, so its descriptor stays open.
func (t *handleTable) get(id uint64) *openFile {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// handle returns the open handle of a request.
func (f *fileSystem) handle(id uint64) (*openFile, fuse.Status) {
	o := f.handles.get(id)
	switch {
	case o == nil:
		return nil, fuse.EBADF
	case o.fd < 0:
		return nil, fuse.EIO
	}
	return o, fuse.OK
}

// fileHandle is handle for what only regular files have.
func (f *fileSystem) fileHandle(id uint64) (*openFile, fuse.Status) {
	o, code := f.handle(id)
	if code.Ok() && o.file == nil {
		return nil, fuse.EBADF
	}
	return o, code
}

// claim returns the handle that a predecessor made for a request that it did not
// answer, once; nil if there is none.
func (t *handleTable) claim(unique uint64) *openFile {
	if !resent(unique) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.byUnique[plain(unique)]
	delete(t.byUnique, plain(unique))
	return o
}

// remove ends a handle. One that is not there has been released before the release
// was resent.
func (t *handleTable) remove(id uint64) {
	t.mu.Lock()
	o := t.byID[id]
	delete(t.byID, id)
	if o != nil && t.byUnique[o.unique] == o {
		delete(t.byUnique, o.unique)
	}
	t.mu.Unlock()
	if o != nil {
		t.memory.DropHandle(o.slot) // before its node's slot, which it refers to
		o.end()
		t.inodes.closed(o.node)
	}
}

// clear ends all handles, when the mount is gone.
func (t *handleTable) clear() {
	for _, o := range t.takeAll() {
		t.memory.DropHandle(o.slot)
		o.end()
		t.inodes.closed(o.node)
	}
}

// abandon closes the descriptors of all handles, which stay in memory.
func (t *handleTable) abandon() map[uint64]*openFile {
	open := t.takeAll()
	for _, o := range open {
		o.put()
	}
	return open
}

func (t *handleTable) takeAll() map[uint64]*openFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := t.byID
	t.byID, t.byUnique = nil, nil
	return open
}

func (t *handleTable) size() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byID)
}

func (o *openFile) end() {
	n := o.node
	n.mu.Lock()
	for i := range n.open {
		if n.open[i] == o {
			n.open = append(n.open[:i], n.open[i+1:]...)
			break
		}
	}
	n.mu.Unlock()
	o.put()
	o.closeFile()
}

// closeFile tells the volume that the handle is closed.
func (o *openFile) closeFile() {
	if o.file != nil {
		o.file.Closed(o.writes())
		o.file.Release()
	}
}

// A lent descriptor is valid until it is returned.
type lent struct {
	fd    int
	owner *openFile // whose descriptor it is; nil: opened for this request
	keep  bool      // the volume's root: not ours to close
}

func (l lent) release() {
	switch {
	case l.owner != nil:
		l.owner.put()
	case !l.keep:
		_ = unix.Close(l.fd)
	}
}

// descriptor opens the inode of n, or lends the descriptor of an open handle: that
// saves two system calls, and needs no handle of an inode that has lost its last
// name. flags are those of open(2); with O_PATH any descriptor will do.
func (f *fileSystem) descriptor(n *node, flags int) (lent, error) {
	if n.isRoot() {
		return lent{fd: f.root, keep: true}, nil
	}
	if o := n.borrow(flags&unix.O_ACCMODE != unix.O_RDONLY); o != nil {
		return lent{fd: o.fd, owner: o}, nil
	}
	fd, err := n.handle.Open(f.root, flags)
	if err != nil {
		return lent{}, err
	}
	return lent{fd: fd}, nil
}

func (n *node) borrow(write bool) *openFile {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.open {
		if !write || o.writes() {
			o.refs++
			return o
		}
	}
	return nil
}

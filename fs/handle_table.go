package fs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// An openFile is one open of a file or of a directory by the broker: a descriptor
// and plain data.
type openFile struct {
	id    uint64
	node  *node
	flags uint32 // as the kernel gave them at open
	fd    int

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
	if last {
		_ = unix.Close(o.fd) // what close could report was reported by fsync or never asked for
	}
}

// handleTable maps the kernel's numbers of open files. A number is never given
// twice.
type handleTable struct {
	volume *tier.Volume

	mu   sync.RWMutex
	last uint64
	byID map[uint64]*openFile
}

func newHandleTable(v *tier.Volume) *handleTable {
	return &handleTable{volume: v, byID: map[uint64]*openFile{}}
}

// add makes a handle of fd, which it owns from now on, and lends fd to the node.
func (t *handleTable) add(n *node, fd int, flags uint32) *openFile {
	o := &openFile{node: n, fd: fd, flags: flags, refs: 1}
	if n.isRegular() {
		o.file = t.volume.FileOf(n.handle)
		o.file.Opened(o.writes())
	}
	t.mu.Lock()
	t.last++
	o.id = t.last
	t.byID[o.id] = o
	t.mu.Unlock()

	n.mu.Lock()
	n.open = append(n.open, o)
	n.mu.Unlock()
	return o
}

// get returns an open handle; nil is answered with EBADF. The kernel releases a
// handle only after the last request on it, so its descriptor stays open.
func (t *handleTable) get(id uint64) *openFile {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// remove ends a handle.
func (t *handleTable) remove(id uint64) {
	t.mu.Lock()
	o := t.byID[id]
	delete(t.byID, id)
	t.mu.Unlock()
	if o != nil {
		o.end()
	}
}

// clear ends all handles, when the mount is gone.
func (t *handleTable) clear() {
	t.mu.Lock()
	open := t.byID
	t.byID = nil
	t.mu.Unlock()
	for _, o := range open {
		o.end()
	}
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

package fs

import (
	"fmt"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/tier"
)

// Lock order: inodeTable.mu, node.mu and handleTable.mu are leaves; none is held
// while another is taken, nor across a call of tier or of the kernel.

// A node is an inode that the kernel knows.
type node struct {
	id     uint64
	handle handle.Handle
	format uint32     // S_IFMT bits: an inode never changes its type
	file   *tier.File // of a regular file, with one reference; else nil

	// Guarded by inodeTable.mu.
	lookups uint64
	spare   int // a descriptor once the last name is gone, or -1: see keep

	mu   sync.Mutex
	open []*openFile // guarded by mu: descriptors that may be lent
}

func (n *node) isRoot() bool    { return n.id == fuse.FUSE_ROOT_ID }
func (n *node) isDir() bool     { return n.format == unix.S_IFDIR }
func (n *node) isRegular() bool { return n.format == unix.S_IFREG }

func (n *node) String() string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprintf("%d (%s)", n.id, n.handle)
}

// inodeTable maps the kernel's numbers and the handles below to nodes.
type inodeTable struct {
	mu       sync.RWMutex
	last     uint64 // highest number given so far
	byID     map[uint64]*node
	byHandle map[handle.Handle]*node
}

func newInodeTable(root handle.Handle) *inodeTable {
	n := &node{id: fuse.FUSE_ROOT_ID, handle: root, format: unix.S_IFDIR, spare: -1}
	return &inodeTable{
		last:     fuse.FUSE_ROOT_ID,
		byID:     map[uint64]*node{n.id: n},
		byHandle: map[handle.Handle]*node{root: n},
	}
}

// get returns the node of a number that the kernel has not forgotten. nil is
// answered with ESTALE: it can only be a number of an earlier life.
func (t *inodeTable) get(id uint64) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// find returns the node of an inode, or nil when the kernel does not know it.
func (t *inodeTable) find(h handle.Handle) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byHandle[h]
}

// enter returns the node of e, adds one lookup to it and takes over the reference
// to e.File.
func (t *inodeTable) enter(e tier.Entry) *node {
	n, known := t.enterLocked(e)
	if known && e.File != nil {
		e.File.Release() // the node has its own
	}
	return n
}

func (t *inodeTable) enterLocked(e tier.Entry) (n *node, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n = t.byHandle[e.Handle]; n == nil {
		t.last++
		n = &node{id: t.last, handle: e.Handle, format: e.Stat.Mode & unix.S_IFMT, file: e.File, spare: -1}
		t.byID[n.id] = n
		t.byHandle[n.handle] = n
		known = false
	} else {
		known = true
	}
	n.lookups++
	return n, known
}

// forget takes count lookups back and drops the node with the last one.
func (t *inodeTable) forget(id, count uint64) {
	if n := t.forgetLocked(id, count); n != nil {
		n.end()
	}
}

// end gives back what a node holds that is in no table any more.
func (n *node) end() {
	if n.spare >= 0 {
		_ = unix.Close(n.spare)
	}
	if n.file != nil {
		n.file.Release()
	}
}

func (t *inodeTable) forgetLocked(id, count uint64) (dropped *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil || n.isRoot() {
		return nil
	}
	n.lookups -= min(count, n.lookups)
	if n.lookups > 0 {
		return nil
	}
	delete(t.byID, id)
	delete(t.byHandle, n.handle)
	return n
}

// clear forgets everything, when the mount is gone.
func (t *inodeTable) clear() {
	t.mu.Lock()
	nodes := t.byID
	t.byID, t.byHandle = nil, nil
	t.mu.Unlock()
	for _, n := range nodes {
		n.end()
	}
}

// size is how many inodes the kernel knows, the root included.
func (t *inodeTable) size() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byID)
}

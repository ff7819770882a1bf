package fs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/tier"
)

// Lock order: node.keeping comes first. inodeTable.mu, node.mu and handleTable.mu are
// leaves; none is held while another is taken, nor across a call of tier or of the
// kernel.

// A node is an inode that the kernel knows, or that has an open handle.
type node struct {
	id     uint64
	handle handle.Handle
	format uint32           // S_IFMT bits: an inode never changes its type
	file   *tier.File       // of a regular file, with one reference; else nil
	slot   holder.InodeSlot // in memory; the root has none

	keeping sync.Mutex // held while the holder is told to keep or to drop a descriptor

	// Guarded by inodeTable.mu.
	lookups uint64
	opens   int       // handles of it
	spare   int       // a descriptor once the last name is gone, or -1: see keep
	kept    bool      // the holder has it as well, or is about to get it
	inexact bool      // lookups may be too high: see inexact.go
	raised  time.Time // of an inexact one: the last lookup in this life
	sync    syncNote

	onReserve atomic.Bool // a late WRITE has taken room from the reserve since the last fsync

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

// inodeTable maps the kernel's numbers and the handles below to nodes. What a
// successor has to know of a node is in memory before the kernel learns of it, and
// until the kernel has forgotten it.
type inodeTable struct {
	memory *holder.Table
	keeper Keeper

	mu        sync.RWMutex
	byID      map[uint64]*node
	byHandle  map[handle.Handle]*node
	questions map[uint64]struct{} // numbers of inexact nodes that the kernel is to be asked about
}

func newInodeTable(root handle.Handle, m *holder.Table, k Keeper) *inodeTable {
	n := &node{id: fuse.FUSE_ROOT_ID, handle: root, format: unix.S_IFDIR, spare: -1}
	return &inodeTable{
		memory:    m,
		keeper:    k,
		byID:      map[uint64]*node{n.id: n},
		byHandle:  map[handle.Handle]*node{root: n},
		questions: map[uint64]struct{}{},
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
// to e.File. It fails when there is no room for another node.
func (t *inodeTable) enter(e tier.Entry) (*node, error) {
	n, known, err := t.enterLocked(e)
	if (known || err != nil) && e.File != nil {
		e.File.Release() // the node has its own
	}
	return n, err
}

func (t *inodeTable) enterLocked(e tier.Entry) (n *node, known bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n = t.byHandle[e.Handle]; n != nil {
		t.raise(n)
		return n, true, nil
	}
	n = &node{
		id: t.memory.NextNode(), handle: e.Handle, format: e.Stat.Mode & unix.S_IFMT,
		file: e.File, lookups: 1, spare: -1,
	}
	n.slot, err = t.memory.AddInode(holder.Inode{Number: n.id, Handle: n.handle, Format: n.format, Lookups: n.lookups})
	if err != nil {
		return nil, false, err
	}
	t.byID[n.id] = n
	t.byHandle[n.handle] = n
	return n, false, nil
}

// raise adds a lookup. The caller holds mu.
func (t *inodeTable) raise(n *node) {
	if n.isRoot() {
		return
	}
	n.lookups++
	t.memory.SetLookups(n.slot, n.lookups)
	if n.inexact {
		n.raised = time.Now()
	}
}

// enterAgain adds a lookup to a node that is at hand.
func (t *inodeTable) enterAgain(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.raise(n)
}

// forget takes count lookups back and drops the node with the last one.
func (t *inodeTable) forget(id, count uint64) {
	t.mu.Lock()
	n := t.byID[id]
	if n == nil || n.isRoot() {
		t.mu.Unlock()
		return
	}
	n.lookups -= min(count, n.lookups)
	t.memory.SetLookups(n.slot, n.lookups)
	if n.lookups > 0 && n.inexact {
		t.questions[n.id] = struct{}{}
	}
	dropped := t.dropUnused(n)
	t.mu.Unlock()
	if dropped {
		t.end(n)
	}
}

// dropUnused takes a node out of the table that nobody needs, and reports whether it
// did: the caller, who holds mu, ends it then.
func (t *inodeTable) dropUnused(n *node) bool {
	if n.lookups > 0 || n.opens > 0 || n.isRoot() || t.byID[n.id] != n {
		return false
	}
	delete(t.byID, n.id)
	delete(t.byHandle, n.handle)
	delete(t.questions, n.id)
	return true
}

// end gives back what a node holds that is in no table any more. Its slot, which
// says that the holder has a descriptor, goes after that descriptor: a successor
// finds it without a lookup and does the rest.
func (t *inodeTable) end(n *node) {
	if n.kept {
		t.drop(n.id)
	}
	t.memory.DropInode(n.slot)
	n.closeSpare()
	n.releaseFile()
}

func (n *node) closeSpare() {
	if n.spare >= 0 {
		_ = unix.Close(n.spare)
	}
}

func (n *node) releaseFile() {
	if n.file != nil {
		n.file.Release()
	}
}

// opened counts a handle of a node. keep: the node has lost its last name, and the
// holder is to have a descriptor of it before anybody knows of the handle.
func (t *inodeTable) opened(n *node) (keep bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.opens++
	return n.spare >= 0 && !n.kept
}

// closed undoes opened. The kernel may have forgotten the inode already: the release
// of its last handle was under way then.
func (t *inodeTable) closed(n *node) {
	t.mu.Lock()
	n.opens--
	dropped := t.dropUnused(n)
	t.mu.Unlock()
	if dropped {
		t.end(n)
	}
}

// clear forgets everything, when the mount is gone.
func (t *inodeTable) clear() {
	for _, n := range t.takeAll() {
		if n.isRoot() {
			continue
		}
		t.end(n)
	}
}

// abandon closes the descriptors of all nodes, which stay in memory.
func (t *inodeTable) abandon() map[uint64]*node {
	nodes := t.takeAll()
	for _, n := range nodes {
		n.closeSpare()
	}
	return nodes
}

func (t *inodeTable) takeAll() map[uint64]*node {
	t.mu.Lock()
	defer t.mu.Unlock()
	nodes := t.byID
	t.byID, t.byHandle = nil, nil
	clear(t.questions)
	return nodes
}

// size is how many inodes the kernel knows, the root included.
func (t *inodeTable) size() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.byID)
}

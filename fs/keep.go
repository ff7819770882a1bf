package fs

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/tier"
)

// keptName is what the descriptor of a node is called that has lost its last name.
func keptName(id uint64) string { return keptPrefix + strconv.FormatUint(id, 10) }

const keptPrefix = "unlinked."

// keep is for a request that may take the last name of what a name leads to. The
// kernel may be about to open that inode, or be in it as a directory: on any other
// file system it lives on until the kernel lets it go, but its file handle would be
// stale. So a descriptor keeps it alive until it is forgotten; if it is open, the
// holder has one too, before the name goes. A request that fails gives what keep
// returned to unkeep.
func (f *fileSystem) keep(dir tier.Dir, name string) handle.Handle {
	e, err := f.volume.Lookup(dir, name)
	if err != nil {
		return handle.Handle{} // nothing is lost, or the request finds out what is wrong
	}
	if e.File != nil {
		e.File.Release()
	}
	isDir := e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR
	n := f.inodes.find(e.Handle)
	if e.Stat.Nlink > 1 && !isDir || n == nil || !f.keepNode(n) {
		return handle.Handle{}
	}
	return e.Handle
}

// keepNode keeps the inode of a node alive; false if it was kept already, or cannot
// be.
func (f *fileSystem) keepNode(n *node) bool {
	fd, err := n.handle.Open(f.root, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return false
	}
	ok, open := f.inodes.setSpare(n, fd)
	if !ok {
		_ = unix.Close(fd)
		return false
	}
	if open {
		f.keepWithHolder(n)
	}
	return true
}

// keepWithHolder gives a node's spare descriptor to the holder, unless it has it. The
// slot says so before: a successor that finds no descriptor knows that the name was
// not taken.
func (f *fileSystem) keepWithHolder(n *node) {
	n.keeping.Lock()
	defer n.keeping.Unlock()
	fd := f.inodes.setKept(n)
	if fd < 0 || f.inodes.keeper == nil {
		return
	}
	if err := f.inodes.keeper.Put(keptName(n.id), fd); err != nil {
		f.log.Warn("an open file that loses its name would not outlive this daemon", "inode", n.String(), "err", err)
	}
}

func (f *fileSystem) unkeep(h handle.Handle) {
	n := f.inodes.find(h)
	if n == nil {
		return
	}
	n.keeping.Lock()
	defer n.keeping.Unlock()
	fd, kept := f.inodes.takeSpare(n)
	if kept {
		f.inodes.drop(n.id)
		f.inodes.unsetKept(n)
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// drop lets the holder close its descriptor. One that it cannot be told of stays
// with it, and so does the inode.
func (t *inodeTable) drop(id uint64) {
	if t.keeper != nil {
		_ = t.keeper.Drop(keptName(id)) // the holder is gone then, with what it kept
	}
}

// setSpare gives fd to a node; ok is false if it has one. open: the node has handles.
func (t *inodeTable) setSpare(n *node, fd int) (ok, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.spare >= 0 || t.byID[n.id] != n {
		return false, false
	}
	n.spare = fd
	return true, n.opens > 0
}

// setKept notes that the holder gets the spare descriptor, and returns it; -1 if it
// has it, or if there is none.
func (t *inodeTable) setKept(n *node) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.kept || n.spare < 0 {
		return -1
	}
	n.kept = true
	t.memory.SetKept(n.slot, true)
	return n.spare
}

func (t *inodeTable) unsetKept(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.kept = false
	t.memory.SetKept(n.slot, false)
}

// takeSpare takes the descriptor back; -1 if there is none.
func (t *inodeTable) takeSpare(n *node) (fd int, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fd = n.spare
	n.spare = -1
	return fd, n.kept
}

package fs

import (
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/tier"
)

// keep is for a request that may take the last name of what a name leads to. The
// kernel may be about to open that inode, or be in it as a directory: on any other
// file system it lives on until the kernel lets it go, but its file handle would be
// stale. So a descriptor keeps it alive until it is forgotten. A request that fails
// gives what keep returned to unkeep.
func (f *fileSystem) keep(dir tier.Dir, name string) handle.Handle {
	e, err := f.volume.Lookup(dir, name)
	if err != nil {
		return handle.Handle{} // nothing is lost, or the request finds out what is wrong
	}
	if e.File != nil {
		e.File.Release()
	}
	isDir := e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR
	if e.Stat.Nlink > 1 && !isDir || f.inodes.find(e.Handle) == nil {
		return handle.Handle{}
	}
	fd, err := e.Handle.Open(f.root, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return handle.Handle{}
	}
	if !f.inodes.setSpare(e.Handle, fd) {
		_ = unix.Close(fd)
		return handle.Handle{}
	}
	return e.Handle
}

func (f *fileSystem) unkeep(h handle.Handle) {
	if fd := f.inodes.takeSpare(h); fd >= 0 {
		_ = unix.Close(fd)
	}
}

// setSpare gives fd to the node of an inode; false if it needs none.
func (t *inodeTable) setSpare(h handle.Handle, fd int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byHandle[h]
	if n == nil || n.spare >= 0 {
		return false
	}
	n.spare = fd
	return true
}

// takeSpare takes it back; -1 if there is none.
func (t *inodeTable) takeSpare(h handle.Handle) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byHandle[h]
	if n == nil {
		return -1
	}
	fd := n.spare
	n.spare = -1
	return fd
}

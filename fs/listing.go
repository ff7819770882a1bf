package fs

import (
	"slices"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// A listing is what one open directory showed when it was read from its start: "."
// and "..", then the visible names in their order. An offset is a place in it, so
// that seekdir works. Names do not move when a segment is evicted or comes back, and
// who has to make the listing again finds the same places in it.
type listing struct {
	mu    sync.Mutex
	names []tier.ListEntry // guarded by mu; nil: not read yet. The content never changes.
}

func direntOf(e tier.ListEntry, off uint64) fuse.DirEntry {
	return fuse.DirEntry{Name: e.Name, Ino: e.Ino, Mode: e.Type, Off: off}
}

func isDots(name string) bool { return name == "." || name == ".." }

// list returns the names of an open directory from an offset on. Offset 0 reads
// the directory anew.
func (f *fileSystem) list(o *openFile, off uint64) ([]tier.ListEntry, error) {
	l := &o.listing
	l.mu.Lock()
	defer l.mu.Unlock()
	if off == 0 || l.names == nil {
		names, err := f.readNames(o)
		if err != nil {
			return nil, err
		}
		l.names = names
	}
	return l.names[min(off, uint64(len(l.names))):], nil
}

func (f *fileSystem) readNames(o *openFile) ([]tier.ListEntry, error) {
	names, err := f.volume.List(tier.Dir{FD: o.fd, Handle: o.node.handle})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(names, func(a, b tier.ListEntry) int { return strings.Compare(a.Name, b.Name) })
	var self, up unix.Stat_t
	if err := unix.Fstat(o.fd, &self); err != nil {
		return nil, err
	}
	up = self // of the root; what is above it is not ours to show
	if !o.node.isRoot() {
		if err := unix.Fstatat(o.fd, "..", &up, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, err
		}
	}
	return slices.Insert(names, 0,
		tier.ListEntry{Name: ".", Type: unix.S_IFDIR, Ino: self.Ino},
		tier.ListEntry{Name: "..", Type: unix.S_IFDIR, Ino: up.Ino}), nil
}

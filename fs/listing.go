package fs

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// A listing is what one open directory showed when it was read from its start: "."
// and "..", then the visible names in the order of their offsets. An offset is made of
// the name alone, and stands for what comes after it. So whoever has to make the
// listing again, after names came and went, finds each name that was there all the
// time on the same side of it: none is skipped, none is given twice.
type listing struct {
	mu    sync.Mutex
	names []listed // guarded by mu; nil: not read yet. The content never changes.
}

type listed struct {
	tier.ListEntry
	off uint64
}

func (e listed) dirent() fuse.DirEntry {
	return fuse.DirEntry{Name: e.Name, Ino: e.Ino, Mode: e.Type, Off: e.off}
}

// The offsets of "." and "..". Those of names are 56 bits of the name's hash, of which
// none is 0, above a count of those with the same hash: 63 bits, as seekdir(3) takes.
const (
	dotOffset    = 1
	dotDotOffset = 2
	countBits    = 7
)

func isDots(name string) bool { return name == "." || name == ".." }

// list returns the names of an open directory behind an offset. Offset 0 reads the
// directory anew.
func (f *fileSystem) list(o *openFile, off uint64) ([]listed, error) {
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
	i, found := slices.BinarySearchFunc(l.names, off, func(e listed, off uint64) int { return cmp.Compare(e.off, off) })
	if found {
		i++
	}
	return l.names[i:], nil
}

func (f *fileSystem) readNames(o *openFile) ([]listed, error) {
	names, err := f.volume.List(tier.Dir{FD: o.fd, Handle: o.node.handle})
	if err != nil {
		return nil, err
	}
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
	return slices.Insert(inOrder(names, xxh3.HashString), 0,
		listed{tier.ListEntry{Name: ".", Type: unix.S_IFDIR, Ino: self.Ino}, dotOffset},
		listed{tier.ListEntry{Name: "..", Type: unix.S_IFDIR, Ino: up.Ino}, dotDotOffset}), nil
}

// inOrder gives names their offsets, and sorts them by these.
func inOrder(names []tier.ListEntry, hash func(string) uint64) []listed {
	out := make([]listed, len(names))
	for i, e := range names {
		out[i] = listed{e, max(hash(e.Name)>>8, 1) << countBits}
	}
	slices.SortFunc(out, func(a, b listed) int {
		if a.off != b.off {
			return cmp.Compare(a.off, b.off)
		}
		return strings.Compare(a.Name, b.Name)
	})
	for i := 1; i < len(out); i++ {
		if out[i].off <= out[i-1].off { // of the same hash
			out[i].off = out[i-1].off + 1
		}
	}
	return out
}

package upload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
)

// lifeFile is an inode as the broker made it.
type lifeFile struct {
	data    []byte // never changed in place
	names   int
	batches []lifeBatch // of a segment
	garbage bool        // a segment that is not what a broker writes
	// mtime is what the broker saw last; zero: it has changed the file since.
	mtime unix.Timespec
}

// lifeBatch is the end of a batch: in the file, and the offset behind it.
type lifeBatch struct {
	at   int
	next uint64
}

// lifeDir is a directory with its files.
type lifeDir struct {
	files map[string]*lifeFile
	never bool // a compaction was seen
}

// lifeTree is the volume as the broker made it, by path of the directory; "" is the
// root.
type lifeTree map[string]*lifeDir

// save remembers the tree and everything in it. What it returns brings it back.
func (t lifeTree) save() func() {
	dirs := maps.Clone(t)
	was := map[*lifeDir]lifeDir{}
	files := map[*lifeFile]lifeFile{}
	for _, d := range t {
		was[d] = lifeDir{maps.Clone(d.files), d.never}
		for _, f := range d.files {
			files[f] = *f
		}
	}
	return func() {
		clear(t)
		maps.Copy(t, dirs)
		for d, before := range was {
			*d = lifeDir{maps.Clone(before.files), before.never}
		}
		for f, before := range files {
			*f = before
		}
	}
}

// paths are those of the directories that hold partitions, in order.
func (t lifeTree) paths(ok func(path string) bool) []string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(t)) {
		if p != "" && (ok == nil || ok(p)) {
			out = append(out, p)
		}
	}
	return out
}

// living reports whether a directory is a partition that the broker serves.
func living(path string) bool { return !strings.Contains(path, ".") }

// starts are those of the segments in a directory, in order.
func (d *lifeDir) starts() []uint64 {
	var out []uint64
	for name := range d.files {
		if start, suffix, ok := segment.ParseStem(name); ok && suffix == ".log" {
			out = append(out, start)
		}
	}
	slices.Sort(out)
	return out
}

func lifeName(start uint64, suffix string) string { return fmt.Sprintf("%020d%s", start, suffix) }

func (d *lifeDir) segment(start uint64) *lifeFile { return d.files[lifeName(start, ".log")] }

// next is the offset behind a segment's last batch.
func (f *lifeFile) next(start uint64) uint64 {
	if len(f.batches) == 0 {
		return start
	}
	return f.batches[len(f.batches)-1].next
}

// put gives a file new bytes.
func (f *lifeFile) put(data []byte) {
	f.data = data
	f.mtime = unix.Timespec{}
}

// cut shortens a segment.
func (f *lifeFile) cut(size int) {
	f.put(f.data[:size:size])
	f.batches = slices.DeleteFunc(slices.Clone(f.batches), func(b lifeBatch) bool { return b.at > size })
	whole := 0
	if len(f.batches) > 0 {
		whole = f.batches[len(f.batches)-1].at
	}
	f.garbage = f.garbage && size > 0 || whole != size
}

func (d *lifeDir) add(name string, f *lifeFile) {
	d.files[name] = f
	f.names++
}

func (d *lifeDir) remove(name string) {
	if f := d.files[name]; f != nil {
		f.names--
		delete(d.files, name)
	}
}

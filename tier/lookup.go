package tier

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/segment"
)

// Dir is an open directory of the source: a descriptor for *at calls (O_PATH is
// enough) and the handle that identifies it.
type Dir struct {
	FD     int
	Handle handle.Handle
}

// Entry is what a name leads to.
type Entry struct {
	Stat   unix.Stat_t // as the broker sees it
	Handle handle.Handle
	// File is set for regular files and carries a reference: Release it.
	File *File
}

// openDir opens a directory of the source for *at calls and for its fsync.
func (v *Volume) openDir(h handle.Handle) (int, error) {
	return h.Open(v.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
}

// entry is a name resolved below.
type entry struct {
	below  string // the name below: N.log or N.remote
	stat   unix.Stat_t
	handle handle.Handle
}

func (e entry) regular() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFREG }
func (e entry) dir() bool     { return e.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// resolve finds a visible name below. A local file wins over a remote one.
func (v *Volume) resolve(d Dir, name string) (entry, handle.Handle, error) {
	v.names.RLock()
	defer v.names.RUnlock()
	e := entry{below: name}
	err := fstatat(d.FD, name, &e.stat)
	if errors.Is(err, unix.ENOENT) {
		e.below = remoteName(name)
		if err = fstatat(d.FD, e.below, &e.stat); errors.Is(err, unix.ENAMETOOLONG) {
			err = unix.ENOENT // too long for a marker, not for a name
		}
	}
	if err != nil {
		return entry{}, handle.Handle{}, err
	}
	e.handle, err = handle.At(d.FD, e.below)
	return e, e.handle, err
}

// Lookup resolves a name. It fails with ENOENT for names that are hidden or
// missing; it never waits for the store.
func (v *Volume) Lookup(d Dir, name string) (Entry, error) {
	if Hidden(name) {
		return Entry{}, unix.ENOENT
	}
	for {
		e, h, err := v.resolve(d, name)
		if err != nil {
			return Entry{}, err
		}
		out := Entry{Stat: e.stat, Handle: h}
		if !e.regular() {
			return out, nil
		}
		out.File = v.FileOf(h)
		v.learn(out.File, d, name)
		if v.settle(d, name, e, &out) {
			return out, nil
		}
		out.File.Release()
	}
}

// settle makes the attributes of a file one with where its bytes are. A segment
// that came back after it was looked at has shown the size of its record; it is
// looked at again, under its lock. false: the name leads to another file by now.
func (v *Volume) settle(d Dir, name string, e entry, out *Entry) bool {
	f := out.File
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.state.readRemotely():
		out.Stat.Size = f.rec.Size
	case e.below != name:
		now, h, err := v.resolve(d, name)
		if err != nil || h != out.Handle {
			return false
		}
		out.Stat = now.stat
	}
	return true
}

// learn notes a name of the file if the name is a segment's or of a file beside
// one: a change of the file then tells the partition.
func (v *Volume) learn(f *File, d Dir, name string) {
	if _, _, ok := segment.ParseStem(name); !ok {
		return
	}
	l := link{d.Handle, name}
	f.mu.RLock()
	known := slices.Contains(f.links, l)
	f.mu.RUnlock()
	if known {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// A rename or an unlink may have overtaken the lookup.
	if _, h, err := v.resolve(d, name); err == nil && h == f.handle {
		f.addLink(l)
	}
}

// Create makes a regular file that must not exist yet, opened with flags, and
// enters it into the catalog if it is a segment. EPERM for hidden names.
func (v *Volume) Create(d Dir, name string, flags int, mode uint32) (int, Entry, error) {
	if Hidden(name) {
		return -1, Entry{}, unix.EPERM
	}
	if e, _, err := v.resolve(d, name); err == nil && e.below != name {
		return -1, Entry{}, unix.EEXIST
	}
	fd, err := openat(d.FD, name, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return -1, Entry{}, err
	}
	out := Entry{}
	if out.Handle, err = handle.At(fd, ""); err == nil {
		err = unix.Fstat(fd, &out.Stat)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, Entry{}, err
	}
	out.File = v.FileOf(out.Handle)
	out.File.mu.Lock()
	defer out.File.mu.Unlock()
	v.named(out.File, d, name)
	return fd, out, nil
}

// named enters a new name of a file. The caller holds the file's lock. A failure
// to read the partition's hidden file costs only tiering, so it is logged.
func (v *Volume) named(f *File, d Dir, name string) {
	l := link{d.Handle, name}
	start, suffix, ok := segment.ParseStem(name)
	if !ok && f.state == Local {
		v.look(d, name)
		return
	}
	f.addLink(l)
	if ok && suffix == logSuffix {
		if v.Layout() == nil {
			if err := v.decideLayout(); err != nil {
				v.log.Error("cannot decide the layout", "err", err)
			}
		}
		v.enter(f, d, start)
	}
	v.look(d, name)
	v.recount(f)
}

// enter puts a segment into its partition, which is made if it is new.
func (v *Volume) enter(f *File, d Dir, start uint64) {
	path, err := v.pathOf(d.FD)
	if err != nil {
		v.log.Error("cannot name a directory, its segments are not tiered", "err", err)
		return
	}
	p, err := v.partition(d, path)
	if err != nil {
		v.log.Error("partition is not tiered", "partition", path, "err", err)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	p.set(start, f)
}

// look notices names that mean that a partition is never tiered.
func (v *Volume) look(d Dir, name string) {
	rules := v.Layout()
	if rules == nil {
		return
	}
	why := rules.Disqualifies(name)
	if why == "" {
		return
	}
	path, err := v.pathOf(d.FD)
	if err == nil {
		var p *Partition
		if p, err = v.partition(d, path); err == nil {
			err = p.disqualify(why)
		}
	}
	if err != nil {
		v.log.Error("cannot keep that a partition is never tiered", "partition", path, "reason", why, "err", err)
	}
}

// unnamed takes a name of a file away. The caller holds the file's lock.
func (v *Volume) unnamed(f *File, l link) {
	f.removeLink(l)
	v.mu.Lock()
	defer v.mu.Unlock()
	if start, ok := segmentStart(l.name); ok {
		if p := v.partitions[l.dir]; p != nil {
			p.unset(start, f)
		}
	}
	v.recountLocked(f)
}

// recount keeps a file in the table while the catalog needs it: it is a segment,
// or a name of it has a marker.
func (v *Volume) recount(f *File) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.recountLocked(f)
}

func (v *Volume) recountLocked(f *File) {
	f.catalogued = f.state != Local && len(f.links) > 0
	for _, l := range f.links {
		if _, ok := segmentStart(l.name); ok {
			f.catalogued = true
		}
	}
	v.dropIfUnused(f)
}

// pathOf returns the path of a directory relative to the root.
func (v *Volume) pathOf(fd int) (string, error) {
	root, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", v.root))
	if err != nil {
		return "", err
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", err
	}
	if path == root {
		return "", nil
	}
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/")+"/")
	if !ok {
		return "", fmt.Errorf("directory %s is not below %s", path, root)
	}
	return rest, nil
}

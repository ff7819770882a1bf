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
//
// It holds no lock. A file that is at neither name when it is looked for there has
// been swapped in between; it is back at the first then, unless it was swapped
// twice, which the count tells.
func (v *Volume) resolve(d Dir, name string) (entry, handle.Handle, error) {
	for {
		begun := v.swaps.begun.Load()
		e, err := below(d, name)
		switch {
		case err == nil:
			e.handle, err = handle.At(d.FD, e.below)
			if !errors.Is(err, unix.ENOENT) {
				return e, e.handle, err
			}
		case !errors.Is(err, unix.ENOENT) || v.swaps.begun.Load() == begun:
			return entry{}, handle.Handle{}, err
		}
	}
}

// below tries the names that a visible name may have below.
func below(d Dir, name string) (e entry, err error) {
	for _, e.below = range [...]string{name, remoteName(name), name} {
		err = fstatat(d.FD, e.below, &e.stat)
		if e.below != name && err == nil && !e.regular() {
			err = unix.ENOENT // no marker, and a name that the broker cannot use
		}
		if e.below != name && errors.Is(err, unix.ENAMETOOLONG) {
			err = unix.ENOENT // too long for a marker, not for a name
		}
		if !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	return e, err
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
		ok, err := v.settle(d, name, e, &out)
		if ok {
			return out, nil
		}
		out.File.Release()
		if err != nil {
			return Entry{}, err
		}
	}
}

// settle makes the attributes of a file one with where its bytes are. Those of a
// file that is not simply local are looked at again, under its lock. false: the
// name has to be resolved again.
func (v *Volume) settle(d Dir, name string, e entry, out *Entry) (bool, error) {
	f := out.File
	f.mu.RLock()
	if e.below == name && !f.state.remoteNamed() {
		f.mu.RUnlock()
		return true, nil
	}
	now, h, err := v.resolve(d, name)
	same := err == nil && h == out.Handle
	stray := same && now.below != name && !f.state.remoteNamed()
	if same && !stray {
		out.Stat = now.stat
		f.show(&out.Stat)
	}
	f.mu.RUnlock()
	if stray {
		l, err := v.lock(d, name) // which sees to it
		if err != nil {
			return false, err
		}
		l.unlock()
	}
	return same && !stray, nil
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
	v.named(out.File, d, name)
	out.File.mu.Unlock()
	v.sign(name)
	return fd, out, nil
}

// sign decides the layout if it is undecided and a new name may be a sign of it.
// It reads directories: the caller holds no lock.
func (v *Volume) sign(name string) {
	if _, ok := segmentStart(name); !ok || v.Layout() != nil {
		return
	}
	if err := v.decideLayout(); err != nil {
		v.log.Error("cannot decide the layout", "err", err)
	}
}

// named enters a new name of a file. The caller holds the file's lock.
func (v *Volume) named(f *File, d Dir, name string) {
	l := link{d.Handle, name}
	start, suffix, ok := segment.ParseStem(name)
	if !ok && f.state == Local {
		f.removeLink(l)
		v.look(d, name)
		v.recount(f)
		return
	}
	f.addLink(l)
	if ok && suffix == logSuffix {
		v.enter(f, d, start)
	}
	v.look(d, name)
	v.recount(f)
}

// enter puts a segment into its partition, which is made if it is new.
func (v *Volume) enter(f *File, d Dir, start uint64) {
	p := v.partitionAt(d.Handle)
	if p == nil {
		path, err := v.pathOf(d.FD)
		if err != nil {
			v.log.Error("cannot name a directory, its segments are not tiered", "err", err)
			return
		}
		p = v.partition(d, path)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	p.set(start, f)
	p.mended(start)
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
		err = v.partition(d, path).disqualify(why)
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
	v.mayMend(l)
	if f.state == Quarantined {
		v.unwait()
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

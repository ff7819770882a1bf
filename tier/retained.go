package tier

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
)

// A broker may have a segment open that has lost its last name. Where its bytes are
// then stands nowhere but in this process: its inode is the record, or half filled. So
// that a successor knows, such an inode gets a name of tierfs' own as long as it is
// open, .tierfs/unlinked/{upload}; the record is the tombstone of the same name. An
// inode that is the tombstone itself needs none.
//
// The name is for the time after a process, not after the machine: nothing is synced,
// and a start without a broker removes what it finds.
const unlinkedDir = "unlinked"

// nameless is what is known of an inode that a predecessor may have left open.
type nameless struct {
	state    State // Remote, Filling or Quarantined
	rec      marker.Record
	times    times  // of one that is being filled
	why      string // for Quarantined
	retained string // its name below .tierfs/unlinked; empty: none
}

// enter makes a file of it.
func (n nameless) enter(f *File) {
	f.state, f.rec, f.times, f.why = n.state, n.rec, n.times, n.why
	if n.retained != "" {
		f.retained.Store(&n.retained)
	}
}

// retained is the directory of such names, made when the first is needed. Its lock is a
// leaf.
type retained struct {
	mu  sync.Mutex
	dir int // -1: not open
}

func (r *retained) open(base int, create bool) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir >= 0 {
		return r.dir, nil
	}
	if create {
		if err := retry(func() error { return unix.Mkdirat(base, unlinkedDir, 0o700) }); err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, pathError("mkdir", unlinkedDir, err)
		}
	}
	fd, err := openat(base, unlinkedDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		r.dir = fd
	}
	return fd, err
}

func (r *retained) close() {
	if r.dir >= 0 {
		_ = unix.Close(r.dir)
	}
}

// drop removes a name; the empty one is none.
func (r *retained) drop(log *slog.Logger, name string) {
	r.mu.Lock()
	dir := r.dir
	r.mu.Unlock()
	if name == "" || dir < 0 {
		return
	}
	if err := unlinkat(dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		log.Warn("an unlinked segment keeps its bytes until the next start", "file", stateDir+"/"+unlinkedDir+"/"+name, "err", err)
	}
}

// retain gives a file that has a record, and is about to lose its last name, a name of
// tierfs' own, if it is open. The caller holds the file's lock exclusively.
func (v *Volume) retain(f *File) {
	if f.opens.Load() == 0 || f.retained.Load() != nil {
		return
	}
	name := uploadFile(f.rec)
	if err := v.reserve.during(func() error { return v.linkRetained(f, name) }); err != nil {
		v.log.Warn("an unlinked segment that is open would be lost to it if tierfs died", "upload", name, "err", err)
		return
	}
	f.retained.Store(&name)
	if f.opens.Load() == 0 { // closed in between
		v.unretain(f)
	}
}

func (v *Volume) linkRetained(f *File, name string) error {
	dir, err := v.retained.open(v.dirs.base, true)
	if err != nil {
		return err
	}
	fd, err := f.open(unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = linkFD(fd, dir, name)
	if errors.Is(err, unix.EEXIST) { // left there by a failure
		if err = unlinkat(dir, name, 0); err == nil {
			err = linkFD(fd, dir, name)
		}
	}
	return err
}

// unretain takes that name away: the file has bytes of its own, or is closed, or kept
// its name.
func (v *Volume) unretain(f *File) {
	if name := f.retained.Swap(nil); name != nil {
		v.retained.drop(v.log, *name)
	}
}

// unmarkNameless keeps the record of a file without a name, whose inode is about to be
// overwritten: that inode may be the tombstone. The caller holds the file's lock
// exclusively.
func (v *Volume) unmarkNameless(step string, f *File) error {
	name := uploadFile(f.rec)
	h, err := handle.At(v.dirs.tombstones, name)
	if errors.Is(err, unix.ENOENT) || err == nil && h != f.handle {
		return nil
	}
	if err != nil {
		return err
	}
	v.retain(f)
	return v.step(step, func() error { return marker.Write(v.dirs.tombstones, name, f.rec) })
}

// loadRetained enters the inodes that a predecessor retained, at boot; those of a life
// that no broker outlived go. alone are records that stood beside nothing.
func (v *Volume) loadRetained(alone map[string]marker.Record) error {
	dir, err := v.retained.open(v.dirs.base, false)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := v.loadNameless(dir, name, alone); err != nil {
			return fmt.Errorf("%s/%s/%s: %w", stateDir, unlinkedDir, name, err)
		}
	}
	return nil
}

func (v *Volume) loadNameless(dir int, name string, alone map[string]marker.Record) error {
	h, err := handle.At(dir, name)
	if err != nil {
		return err
	}
	// One with a name was not unlinked after all: that comes again.
	if f := v.known(h); !v.opt.Takeover || f != nil && len(f.links) > 0 {
		return durable.Unlink(dir, name)
	}
	n := v.namelessOf(dir, name, alone)
	if n.state == Quarantined {
		v.log.Error("an unlinked segment that may be open is quarantined: reads of it fail", "upload", name, "reason", n.why)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unlinked[h] = n
	if t := v.tombstones[name]; t != nil {
		t.inode = h
	}
	return nil
}

// namelessOf looks at a retained inode and at its record.
func (v *Volume) namelessOf(dir int, name string, alone map[string]marker.Record) nameless {
	n := nameless{state: Filling, retained: name}
	rec, err := marker.Read(v.dirs.tombstones, name)
	if err != nil {
		var ok bool
		if rec, ok = alone[name]; !ok {
			n.state, n.why = Quarantined, "its record cannot be read"
			return n
		}
	}
	n.rec = rec
	own, err := marker.Read(dir, name)
	if err == nil && keyOf(own) == keyOf(rec) {
		n.state = Remote
		return n
	}
	var st unix.Stat_t
	if fstatat(v.dirs.tombstones, name, &st) != nil {
		_ = fstatat(dir, name, &st) // better than none
	}
	n.times = timesOf(&st)
	return n
}

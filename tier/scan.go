package tier

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
)

// The boot scan reads every directory's names and every record, and brings each
// name to one of the states that a running volume knows. No step of it needs the
// store.
type scanner struct {
	v      *Volume
	ctx    context.Context
	dev    uint64
	buried map[uploadKey]bool // uploads that have a tombstone
	live   map[uploadKey]bool // uploads that a marker names

	unmarked  []unmarked // decided when every other name is
	leftovers []leftover // records beside nothing: decided when live is whole
}

type leftover struct {
	dir  handle.Handle
	name string
	rec  marker.Record
}

type unmarked struct {
	dir        handle.Handle
	path, name string
	cause      error
}

// names of one visible file below.
type names struct{ local, remote, uploaded bool }

func (v *Volume) scan(ctx context.Context) error {
	s := &scanner{v: v, ctx: ctx, buried: map[uploadKey]bool{}, live: map[uploadKey]bool{}}
	var st unix.Stat_t
	if err := unix.Fstat(v.root, &st); err != nil {
		return fmt.Errorf("stat of the source: %w", err)
	}
	s.dev = st.Dev
	buried, err := readNames(v.dirs.tombstones)
	if err != nil {
		return err
	}
	for _, name := range buried {
		if rec, err := uploadOf(name); err == nil {
			s.buried[keyOf(rec)] = true
		}
	}
	if err := s.dir(v.root, ""); err != nil {
		return err
	}
	if err := s.settleUnmarked(); err != nil {
		return err
	}
	if err := s.settleLeftovers(); err != nil {
		return err
	}
	return s.settleIntents()
}

// dir scans one directory and those below it.
func (s *scanner) dir(fd int, path string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	entries, err := readEntries(fd)
	if err != nil {
		return fmt.Errorf("scan of %q: %w", path, err)
	}
	files := map[string]*names{}
	of := func(name string) *names {
		if files[name] == nil {
			files[name] = &names{}
		}
		return files[name]
	}
	hidden := false
	for _, e := range entries {
		name := e.Name()
		switch {
		case e.IsDir():
			if !Hidden(name) {
				if err := s.subdir(fd, path, name); err != nil {
					return err
				}
			}
		case !e.Type().IsRegular():
		case Hidden(name):
			if vis, ok := visibleOfRemote(name); ok {
				of(vis).remote = true
			} else if vis, ok := visibleOfUploaded(name); ok {
				of(vis).uploaded = true
			}
			hidden = true
		default:
			if _, _, ok := segment.ParseStem(name); ok || s.disqualifies(name) {
				of(name).local = true
			}
		}
	}
	if hidden {
		// The names seen may have been made by a process that died before it made
		// them durable; what is built on them must not outlive them.
		if err := durable.SweepTemp(fd); err != nil {
			return err
		}
	}
	return s.files(fd, path, files)
}

func (s *scanner) disqualifies(name string) bool {
	rules := s.v.Layout()
	return rules != nil && rules.Disqualifies(name) != ""
}

func (s *scanner) subdir(parent int, path, name string) error {
	fd, err := openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("scan of %q: %w", join(path, name), err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != s.dev {
		return nil // another file system: not ours
	}
	return s.dir(fd, join(path, name))
}

// files enters one directory's files into the catalog.
func (s *scanner) files(fd int, path string, files map[string]*names) error {
	if len(files) == 0 {
		return nil
	}
	h, err := handle.At(fd, "")
	if err != nil {
		return fmt.Errorf("handle of %q: %w", path, err)
	}
	d := Dir{fd, h}
	for name, n := range files {
		if err := s.file(d, path, name, *n); err != nil {
			return fmt.Errorf("%s: %w", join(path, name), err)
		}
	}
	return nil
}

// file decides the state of one visible name by what stands below for it.
func (s *scanner) file(d Dir, path, name string, n names) error {
	v := s.v
	switch {
	case n.local && n.remote:
		return s.twins(d, path, name, n)
	case n.remote:
		return s.remote(d, path, name, n.uploaded)
	case !n.local:
		return s.leftover(d, name)
	}
	h, err := handle.At(d.FD, name)
	if err != nil {
		return err
	}
	f := v.FileOf(h)
	defer f.Release()
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.uploaded {
		if err := s.pair(d, name, f); err != nil {
			return err
		}
	}
	v.named(f, d, name)
	return nil
}

// pair takes a local file with a record beside it for uploaded, if the record can
// be of these bytes. Before an eviction the bytes are compared.
func (s *scanner) pair(d Dir, name string, f *File) error {
	v := s.v
	rec, err := marker.Read(d.FD, uploadedName(name))
	if err != nil {
		v.log.Warn("a record cannot be used; the segment will be uploaded again", "segment", name, "err", err)
		return nil
	}
	var st unix.Stat_t
	if err := fstatat(d.FD, name, &st); err != nil {
		return err
	}
	if st.Size != rec.Size || s.buried[keyOf(rec)] || s.live[keyOf(rec)] || !s.explained(name, rec) {
		return v.buryMarker("boot:tombstone", d.FD, uploadedName(name), rec)
	}
	f.state, f.rec, f.found = Uploaded, rec, true
	f.addHome(link{d.Handle, name})
	s.live[keyOf(rec)] = true
	return nil
}

// explained reports whether a record can be the name's: the registry knows its
// partition, and a segment's own name agrees with its start.
func (s *scanner) explained(name string, rec marker.Record) bool {
	if start, ok := segmentStart(name); ok && start != rec.Start {
		return false
	}
	_, ok := s.v.registry[rec.Incarnation]
	return ok
}

// remote enters a file whose name below is N.remote: a marker, or an eviction or a
// rehydration that a crash interrupted.
func (s *scanner) remote(d Dir, path, name string, uploaded bool) error {
	v := s.v
	below := remoteName(name)
	h, err := handle.At(d.FD, below)
	if err != nil {
		return err
	}
	f := v.FileOf(h)
	defer f.Release()
	f.mu.Lock()
	defer f.mu.Unlock()
	rec, err := marker.Read(d.FD, below)
	switch {
	case err == nil && s.explained(name, rec):
		f.state, f.rec = Remote, rec
		s.live[keyOf(rec)] = true
		if err = s.unbury(rec); err == nil && uploaded {
			err = s.settleRecord(d, name, rec)
		}
	case err == nil:
		s.quarantine(f, path, name, "its record is of another segment or of an unknown partition")
		err = nil
	case uploaded:
		err = s.unfinished(d, path, name, f)
	default:
		s.unmarked = append(s.unmarked, unmarked{d.Handle, path, name, err})
		return nil
	}
	if err != nil {
		return err
	}
	v.named(f, d, name)
	return nil
}

// unbury removes the tombstone of an upload that a valid marker names: it was
// written for a truncation or a rename that never came to change the marker, and
// the object is the only copy.
func (s *scanner) unbury(rec marker.Record) error {
	if !s.buried[keyOf(rec)] {
		return nil
	}
	return s.v.step("boot:unbury", func() error { return durable.Unlink(s.v.dirs.tombstones, uploadFile(rec)) })
}

// settleRecord removes the record beside a marker that says the same.
func (s *scanner) settleRecord(d Dir, name string, rec marker.Record) error {
	beside, err := marker.Read(d.FD, uploadedName(name))
	if err == nil && keyOf(beside) != keyOf(rec) {
		return s.v.buryMarker("boot:tombstone", d.FD, uploadedName(name), beside)
	}
	return s.v.step("boot:record", func() error { return durable.Unlink(d.FD, uploadedName(name)) })
}

// unfinished ends an eviction, or undoes it: when the inode still has all bytes,
// the file is local and uploaded; otherwise the object has them, and the inode
// becomes the marker.
func (s *scanner) unfinished(d Dir, path, name string, f *File) error {
	v := s.v
	rec, err := marker.Read(d.FD, uploadedName(name))
	if err != nil || !s.explained(name, rec) {
		s.quarantine(f, path, name, "neither its own record nor the one beside it is valid")
		return nil
	}
	fd, err := f.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	f.rec = rec
	f.addHome(link{d.Handle, name})
	s.live[keyOf(rec)] = true
	whole, err := hasBytes(s.ctx, fd, rec)
	if err != nil && !errors.Is(err, unix.EIO) {
		return err
	}
	if whole {
		v.log.Info("an eviction is undone: the local copy is whole", "segment", join(path, name))
		return v.localName("boot:back", f, Uploaded)
	}
	v.log.Info("an eviction is finished", "segment", join(path, name))
	if _, err := v.markRemote("boot:empty", fd, rec); err != nil {
		return err
	}
	f.state = Remote
	return v.unlinkRecord("boot:record", f)
}

// settleUnmarked decides about each N.remote that is no marker and has no record
// beside it. The record may stand beside another name of its inode: then it is as
// that one is. An empty one with a tombstone was being truncated. Anything else is
// a quarantine.
func (s *scanner) settleUnmarked() error {
	for _, u := range s.unmarked {
		fd, err := s.v.openDir(u.dir)
		if err != nil {
			return err
		}
		err = s.settle(Dir{fd, u.dir}, u)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("%s: %w", join(u.path, u.name), err)
		}
	}
	return nil
}

func (s *scanner) settle(d Dir, u unmarked) error {
	v := s.v
	var st unix.Stat_t
	if err := fstatat(d.FD, remoteName(u.name), &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // came back with another name of its inode
		}
		return err
	}
	h, err := handle.At(d.FD, remoteName(u.name))
	if err != nil {
		return err
	}
	f := v.FileOf(h)
	defer f.Release()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addLink(link{d.Handle, u.name})
	switch {
	case f.state == Remote:
	case f.state == Uploaded:
		err = v.localName("boot:back", f, Uploaded)
	case st.Size == 0 && s.truncated(d, u.name):
		err = v.localName("boot:truncated", f, Local)
	default:
		s.quarantine(f, u.path, u.name, u.cause.Error())
	}
	if err != nil {
		return err
	}
	v.named(f, d, u.name)
	return nil
}

// truncated reports whether a tombstone explains an empty N.remote.
func (s *scanner) truncated(d Dir, name string) bool {
	start, ok := segmentStart(name)
	if !ok {
		return false
	}
	var state partitionState
	if err := readJSON(d.FD, partitionFile, &state); err != nil {
		return false
	}
	buried, err := readNames(s.v.dirs.tombstones)
	if err != nil {
		return false
	}
	for _, b := range buried {
		if rec, err := uploadOf(b); err == nil && rec.Start == start && rec.Incarnation.String() == state.Incarnation {
			return true
		}
	}
	return false
}

// twins handles a name that has both a local and a remote file: a rename over a
// remote segment was interrupted after its tombstone. Without that tombstone
// somebody else made the local file; it is served, and the marker is left alone.
func (s *scanner) twins(d Dir, path, name string, n names) error {
	rec, err := marker.Read(d.FD, remoteName(name))
	if err != nil && n.uploaded { // it was being brought back
		rec, err = marker.Read(d.FD, uploadedName(name))
	}
	if err == nil && s.buried[keyOf(rec)] {
		err = s.v.step("boot:twin", func() error { return durable.Unlink(d.FD, remoteName(name)) })
		if err != nil {
			return err
		}
	} else {
		aside := ".tierfs-twin-" + remoteName(name)
		s.v.log.Error("a segment is there twice, local and remote; the local one is served",
			"segment", join(path, name), "other", aside)
		if err := renameat(d.FD, remoteName(name), d.FD, aside, unix.RENAME_NOREPLACE); err != nil {
			return err
		}
	}
	n.remote = false
	return s.file(d, path, name, n)
}

func (s *scanner) quarantine(f *File, path, name, why string) {
	f.state, f.why = Quarantined, why
	s.v.log.Error("a segment is quarantined: reads of it fail", "segment", join(path, name), "reason", why)
}

// leftover notes a record that stands beside nothing.
func (s *scanner) leftover(d Dir, name string) error {
	rec, err := marker.Read(d.FD, uploadedName(name))
	if err != nil {
		s.v.log.Warn("a record without a file cannot be read; left alone", "record", uploadedName(name), "err", err)
		return nil
	}
	s.leftovers = append(s.leftovers, leftover{d.Handle, uploadedName(name), rec})
	return nil
}

// settleLeftovers turns records beside nothing into tombstones, unless another
// marker names the same upload: then it is a copy that a rename left.
func (s *scanner) settleLeftovers() error {
	for _, l := range s.leftovers {
		dir, err := s.v.openDir(l.dir)
		if err != nil {
			return err
		}
		if s.live[keyOf(l.rec)] {
			err = durable.Unlink(dir, l.name)
		} else {
			err = s.v.buryMarker("boot:tombstone", dir, l.name, l.rec)
		}
		_ = unix.Close(dir)
		if err != nil {
			return err
		}
	}
	return nil
}

// settleIntents turns uploads that never ended into tombstones; one that a marker
// names had ended.
func (s *scanner) settleIntents() error {
	v := s.v
	intents, err := readNames(v.dirs.intents)
	if err != nil {
		return err
	}
	for _, name := range intents {
		rec, err := uploadOf(name)
		if err != nil {
			v.log.Warn("stranger among the intents", "file", stateDir+"/intents/"+name)
			continue
		}
		if s.live[keyOf(rec)] {
			err = durable.Unlink(v.dirs.intents, name)
		} else {
			err = v.buryMarker("boot:tombstone", v.dirs.intents, name, rec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

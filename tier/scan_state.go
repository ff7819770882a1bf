package tier

import (
	"cmp"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
)

// file decides the state of one visible name by what stands below for it.
func (s *scanner) file(d Dir, path, name string, n names) error {
	v := s.v
	switch {
	case n.local && n.remote:
		return s.twins(d, path, name, n)
	case n.remote:
		return s.remote(d, path, name, n)
	case !n.local:
		return s.leftover(d, name)
	}
	f, unlock, err := s.lock(d, name)
	if err != nil {
		return err
	}
	defer unlock()
	if n.uploaded {
		if err := s.pair(d, name, f); err != nil {
			return err
		}
	}
	v.named(f, d, name)
	return nil
}

// lock takes the lock of the file that a name below leads to.
func (s *scanner) lock(d Dir, below string) (f *File, unlock func(), err error) {
	h, err := handle.At(d.FD, below)
	if err != nil {
		return nil, nil, err
	}
	f = s.v.FileOf(h)
	f.mu.Lock()
	return f, func() {
		f.mu.Unlock()
		f.Release()
	}, nil
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
	if st.Size != rec.Size || s.buried[keyOf(rec)] || s.live[keyOf(rec)] || !s.explained(rec) {
		return v.buryMarker("boot:tombstone", d.FD, uploadedName(name), rec)
	}
	f.state, f.rec, f.found, f.home = Uploaded, rec, true, link{d.Handle, name}
	s.live[keyOf(rec)] = true
	return nil
}

// explained reports whether the registry knows where a record's object is. The
// broker may have given the segment another name since, also another start's.
func (s *scanner) explained(rec marker.Record) bool {
	_, ok := s.v.registry[rec.Incarnation]
	return ok
}

// remote enters a file whose name below is N.remote: a marker, or an eviction or a
// rehydration that a crash interrupted.
func (s *scanner) remote(d Dir, path, name string, n names) error {
	v := s.v
	below := remoteName(name)
	f, unlock, err := s.lock(d, below)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := n.record(d, below)
	switch {
	case err == nil && s.explained(rec):
		f.state, f.rec = Remote, rec
		s.live[keyOf(rec)] = true
		if err = s.unbury(rec); err == nil && n.uploaded {
			err = s.settleRecord(d, name, rec)
		}
	case err == nil:
		s.quarantine(f, path, name, "its record is of an unknown partition")
		err = nil
	case n.uploaded:
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

// record is that of the remote file.
func (n names) record(d Dir, below string) (marker.Record, error) {
	if n.rec != nil {
		return *n.rec, nil
	}
	return marker.Read(d.FD, below)
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
	if err := firmMarker(d, name); err != nil {
		return err
	}
	return s.v.step("boot:record", func() error { return durable.Unlink(d.FD, uploadedName(name)) })
}

// quickSize is how many bytes a successor reads while a broker waits.
const quickSize = 16 << 20

// unfinished ends an eviction, or undoes it: when the inode still has all bytes,
// the file is local and uploaded; otherwise the object has them, and the inode
// becomes the marker. Where a broker waits, what is long is left as a file that nobody
// fills: reads go to the store, a write finds the bytes or fetches them, the evictor
// ends it.
func (s *scanner) unfinished(d Dir, path, name string, f *File) error {
	v := s.v
	rec, err := marker.Read(d.FD, uploadedName(name))
	if err != nil || !s.explained(rec) {
		s.quarantine(f, path, name, "neither its own record nor the one beside it is valid")
		return nil
	}
	fd, err := f.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	kept, err := recordTimes(d.FD, name)
	if err != nil {
		return err
	}
	f.rec, f.home = rec, link{d.Handle, name}
	f.addLink(f.home)
	s.live[keyOf(rec)] = true
	if v.opt.Takeover && rec.Size > cmp.Or(v.opt.quick, quickSize) {
		f.state, f.times = Filling, kept
		return s.unbury(rec)
	}
	whole, err := hasBytes(s.ctx, fd, rec)
	if err == nil && whole {
		// Who was killed may not have come to its fsync.
		if err = putBack(fd, kept); err == nil {
			err = durable.SyncFile(fd)
		}
	}
	if err != nil && !errors.Is(err, unix.EIO) {
		return err
	}
	if whole && err == nil {
		v.log.Info("an eviction is undone: the local copy is whole", "segment", join(path, name))
		if err := v.localName("boot:back", f, Uploaded); err != nil || !s.buried[keyOf(rec)] {
			return err
		}
		return v.forgetObject("boot:tombstone", f)
	}
	v.log.Info("an eviction is finished", "segment", join(path, name))
	if err := s.unbury(rec); err != nil {
		return err
	}
	f.state, f.times = Filling, kept
	return v.empty("boot", f, fd)
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
		aside := twinPrefix + remoteName(name)
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

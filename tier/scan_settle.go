package tier

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/marker"
)

// settleUnmarked decides about each N.remote that is no marker and has no record
// beside it. The record may stand beside another name of its inode: then it is as
// that one is. Anything else is a quarantine.
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
	f, unlock, err := s.lock(d, remoteName(u.name))
	if err != nil {
		return err
	}
	defer unlock()
	f.addLink(link{d.Handle, u.name})
	switch {
	case f.state == Remote, f.state == Filling:
	case f.state == Uploaded, f.state == Local && len(f.links) > 1: // the other name is its own already
		err = v.localName("boot:back", f, f.state)
	default:
		s.quarantine(f, u.path, u.name, u.cause.Error())
	}
	if err != nil {
		return err
	}
	v.named(f, d, u.name)
	return nil
}

// leftover notes a record that stands beside nothing.
func (s *scanner) leftover(d Dir, name string) error {
	rec, err := marker.Read(d.FD, uploadedName(name))
	if err != nil {
		s.blind = true
		s.v.log.Warn("a record without a file cannot be read; left alone", "record", uploadedName(name), "err", err)
		return nil
	}
	s.alone[uploadFile(rec)] = rec
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
			err = s.v.step("boot:leftover", func() error { return durable.Unlink(dir, l.name) })
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
			err = v.step("boot:intent", func() error { return durable.Unlink(v.dirs.intents, name) })
		} else {
			err = v.buryMarker("boot:tombstone", v.dirs.intents, name, rec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sweepRegistry drops the entries of partitions that are gone and that no record
// names, unless there is something that cannot be read.
func (s *scanner) sweepRegistry() {
	if s.blind {
		return
	}
	v := s.v
	minted := map[marker.Incarnation]bool{}
	for _, inc := range s.minted {
		minted[inc] = true
	}
	var of []marker.Incarnation
	for inc := range v.registry {
		if !minted[inc] {
			of = append(of, inc)
		}
	}
	v.forgetIncarnations(of)
}

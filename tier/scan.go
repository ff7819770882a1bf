package tier

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	buried map[uploadKey]bool  // uploads that have a tombstone
	live   map[uploadKey]bool  // uploads that a marker names
	ended  map[segmentKey]bool // segments of which an upload has a tombstone

	unmarked  []unmarked // decided when every other name is
	leftovers []leftover // records beside nothing: decided when live is whole

	minted []marker.Incarnation // those of partitions without a segment
	blind  bool                 // something that may hold a record was not read

	since time.Time                // of the holes: zero when no broker is at work
	alone map[string]marker.Record // records that stood beside nothing, by upload
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
type names struct {
	local, remote, uploaded bool
	rec                     *marker.Record // of the remote one, if it was read and is valid
}

// scanReaders is how many records are read at once: a disk that has to be asked
// answers many as fast as one.
const scanReaders = 16

func (v *Volume) scan(ctx context.Context) error {
	s := &scanner{v: v, ctx: ctx, buried: map[uploadKey]bool{}, live: map[uploadKey]bool{}, ended: map[segmentKey]bool{}}
	s.alone = map[string]marker.Record{}
	if v.opt.Takeover {
		s.since = time.Now()
	}
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
			s.ended[segmentKey{rec.Incarnation, rec.Start}] = true
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
	if err := s.settleIntents(); err != nil {
		return err
	}
	if err := v.loadTombstones(); err != nil {
		return err
	}
	if err := v.loadRetained(s.alone); err != nil {
		return err
	}
	s.sweepRegistry()
	return nil
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
			s.hidden(fd, name)
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
	if err := s.files(fd, path, files); err != nil {
		return err
	}
	s.holes(fd, path, Counting(entries))
	return nil
}

// hidden looks at a file that tierfs keeps beside the broker's.
func (s *scanner) hidden(dir int, name string) {
	switch {
	case name == partitionFile:
		state, err := readPartitionState(dir)
		if err != nil {
			s.blind = true
		}
		if inc := state.incarnation(); !inc.IsZero() {
			s.minted = append(s.minted, inc)
		}
	case strings.HasPrefix(name, twinPrefix):
		s.blind = true
	}
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
		s.blind = true
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
	s.readRecords(d, files)
	for name, n := range files {
		if s.plain(name, *n) {
			continue
		}
		if err := s.file(d, path, name, *n); err != nil {
			return fmt.Errorf("%s: %w", join(path, name), err)
		}
	}
	return nil
}

// plain reports whether a name is that of a file beside a segment, such as its
// index, of which nothing is known before the broker looks it up.
func (s *scanner) plain(name string, n names) bool {
	rules := s.v.Layout()
	if rules == nil || !n.local || n.remote || n.uploaded {
		return false
	}
	_, suffix, ok := segment.ParseStem(name)
	return ok && slices.Contains(rules.SideSuffixes(), suffix)
}

// readRecords reads the records of a directory's remote segments. What cannot be
// read is looked at again, when it is that file's turn.
func (s *scanner) readRecords(d Dir, files map[string]*names) {
	var of []string
	for name, n := range files {
		if n.remote {
			of = append(of, name)
		}
	}
	var next atomic.Int64
	var readers sync.WaitGroup
	for range min(scanReaders, len(of)) {
		readers.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(of) && s.ctx.Err() == nil; i = next.Add(1) - 1 {
				if rec, err := marker.Read(d.FD, remoteName(of[i])); err == nil {
					files[of[i]].rec = &rec
				}
			}
		})
	}
	readers.Wait()
}

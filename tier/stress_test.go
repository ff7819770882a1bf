package tier

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
)

const stressFiles = 4 // segments that change; one more is the active one

var seedFlag = flag.Uint64("seed", 0, "of the random tests; 0: another one each time")

// seed is what random tests begin with. It is printed, for -seed.
func seed(t *testing.T) uint64 {
	n := *seedFlag
	if n == 0 {
		n = rand.Uint64()
	}
	t.Logf("-seed %d", n)
	return n
}

// TestStress lets many hands at few segments at once: readers, a broker that
// writes, truncates, punches, renames, links, unlinks and makes anew, handles that
// are kept over all of it, uploads, evictions, rehydrations, retirements, listings.
// What the broker did is held against a model of each segment and of each inode, and
// the store's objects against the bytes that they stand for.
func TestStress(t *testing.T) {
	s, seed := newStress(t), seed(t)
	length := 2 * time.Second
	if soak() {
		length = time.Minute
	}
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var all sync.WaitGroup
	for i, hand := range []func(*rand.Rand) error{
		s.change, s.change, s.read, s.read, s.hold, s.upload, s.upload, s.evict, s.rehydrate, s.retire, s.list,
	} {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil {
				if err := hand(random); err != nil {
					t.Error(err)
					stop()
				}
			}
		})
	}
	all.Wait()
	s.done.Range(func(what, n any) bool {
		t.Logf("%s: %d", what, n.(*atomic.Int64).Load())
		return true
	})
	s.closeHeld()
	s.settled()
	s.w.reopen()
	s.d = s.w.dir("t-0")
	s.settled()
	for _, key := range []string{"change", "upload", "evict", "rehydrate", "retire", "read of a handle"} {
		if n, ok := s.done.Load(key); !ok || n.(*atomic.Int64).Load() < 5 {
			t.Errorf("hardly any %s", key)
		}
	}
}

// model is one file as the broker made it. Its lock stands for the kernel's: of
// the inode and of the names.
type model struct {
	sync.RWMutex
	start uint64
	name  string // where it is now; empty: unlinked
	turn  int
	*inode
}

// inode is what a model's name leads to: another one when it was replaced.
type inode struct{ bytes []byte }

type stress struct {
	w     *world
	d     Dir
	files []*model
	done  sync.Map // of *atomic.Int64

	holding sync.Mutex // guards held
	held    []heldFile
}

func newStress(t *testing.T) *stress {
	w := newWorld(t, stressFiles+1)
	s := &stress{w: w, d: w.dir("t-0")}
	for _, start := range w.starts[:stressFiles] {
		s.files = append(s.files, &model{start: start, name: name(start), inode: &inode{w.logs[start]}})
	}
	return s
}

// count counts what was done, and passes errors that say that something was not
// to be done now.
func (s *stress) count(what string, err error) error {
	if err != nil {
		if overtaken(err) {
			return nil
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	n, _ := s.done.LoadOrStore(what, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	return nil
}

func (s *stress) pick(r *rand.Rand) *model { return s.files[r.IntN(len(s.files))] }

// segment picks one of the catalog's that is in one of the states.
func (s *stress) segment(r *rand.Rand, in ...State) (*Partition, Segment, bool) {
	p, ok := s.w.v.PartitionOf("t-0")
	if !ok {
		return nil, Segment{}, false
	}
	segs := slices.DeleteFunc(p.Segments(), func(seg Segment) bool { return seg.Active || !slices.Contains(in, seg.State) })
	if len(segs) == 0 {
		runtime.Gosched()
		return nil, Segment{}, false
	}
	return p, segs[r.IntN(len(segs))], true
}

func (s *stress) upload(r *rand.Rand) error {
	p, seg, ok := s.segment(r, Local)
	if !ok {
		return nil
	}
	u, err := s.w.v.Prepare(context.Background(), p, seg)
	if err != nil {
		return s.count("prepare", s.gone(seg.File, err))
	}
	defer u.Close()
	for _, o := range u.Objects {
		if err := s.w.store.Put(context.Background(), o.Key, o.Body, objstore.PutOptions{IfAbsent: true}); err != nil {
			return s.count("upload", errors.Join(err, u.Abort()))
		}
	}
	return s.count("upload", u.Commit())
}

func (s *stress) evict(r *rand.Rand) error {
	p, seg, ok := s.segment(r, Uploaded, Leaving, Filling)
	if !ok {
		return nil
	}
	return s.count("evict", s.gone(seg.File, s.w.v.Evict(context.Background(), p, seg)))
}

func (s *stress) rehydrate(r *rand.Rand) error {
	time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	_, seg, ok := s.segment(r, Remote)
	if !ok {
		return nil
	}
	return s.count("rehydrate", s.gone(seg.File, s.w.v.Rehydrate(context.Background(), seg.File)))
}

// gone forgives what fails because the file was unlinked meanwhile.
func (s *stress) gone(f *File, err error) error {
	fd, oerr := f.open(unix.O_PATH)
	if oerr == nil {
		_ = unix.Close(fd)
		return err
	}
	return nil
}

func (s *stress) retire(*rand.Rand) error {
	time.Sleep(time.Millisecond)
	due, _ := s.w.v.Due(time.Now().Add(time.Hour), 100)
	_, err := s.w.v.Retire(context.Background(), due)
	return s.count("retire", err)
}

// list looks at all names: each file is there once, under the name that it has.
func (s *stress) list(*rand.Rand) error {
	time.Sleep(time.Millisecond)
	for _, m := range s.files {
		m.RLock()
		defer m.RUnlock()
	}
	list, err := s.w.v.List(s.d)
	if err != nil {
		return err
	}
	seen := map[string]int{}
	for _, e := range list {
		seen[e.Name]++
	}
	for _, m := range s.files {
		if m.name != "" && seen[m.name] != 1 {
			return fmt.Errorf("%s is listed %d times", m.name, seen[m.name])
		}
	}
	return s.count("list", nil)
}

func (s *stress) read(r *rand.Rand) error {
	m := s.pick(r)
	m.RLock()
	defer m.RUnlock()
	return s.count("read", s.agrees(m))
}

// agrees holds a file against its model. The caller holds the model's lock.
func (s *stress) agrees(m *model) error {
	if m.name == "" {
		if _, err := s.w.v.Lookup(s.d, name(m.start)); !isNotExist(err) {
			return fmt.Errorf("%s is unlinked: %v", name(m.start), err)
		}
		return nil
	}
	b, err := s.w.content(s.d, m.name)
	if err != nil {
		return err
	}
	if !bytes.Equal(b, m.bytes) {
		return fmt.Errorf("%s: %d bytes that are not the %d of the model", m.name, len(b), len(m.bytes))
	}
	return s.stored(m)
}

// stored holds the object that a file's record names against the model.
func (s *stress) stored(m *model) error {
	e, err := s.w.v.Lookup(s.d, m.name)
	if err != nil {
		return err
	}
	defer e.File.Release()
	rec, ok := e.File.Record()
	if !ok {
		return nil
	}
	key, err := s.w.v.key(rec, logSuffix)
	if err != nil {
		return err
	}
	if b, _ := s.w.store.Bytes(key); !bytes.Equal(b, m.bytes) {
		return fmt.Errorf("%s: its object has %d bytes that are not the %d of the model", m.name, len(b), len(m.bytes))
	}
	return nil
}

// settled holds everything against the models when nobody is at it any more.
func (s *stress) settled() {
	t := s.w.t
	t.Helper()
	for _, m := range s.files {
		if err := s.agrees(m); err != nil {
			t.Error(err)
		}
	}
	s.w.do(s.w.v.CheckOwner(t.Context()))
	s.w.retireAll()
	if got, want := s.w.logObjects(), s.w.liveObjects(); !slices.Equal(got, want) {
		t.Errorf("the store has %v, named are %v", got, want)
	}
	for _, seg := range s.w.partition("t-0").Segments() {
		if seg.State == Quarantined {
			t.Errorf("segment %d is quarantined", seg.Start)
		}
	}
	if left := s.w.below(".tierfs/tombstones"); len(left) > 0 {
		t.Errorf("tombstones are left: %v", left)
	}
}

package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
)

// actor is something in the background that may stand still at its points while
// others go on.
type actor struct {
	name    string
	prepare func(w *world)
	act     func(w *world, p *Partition, s Segment) error // on the first segment
	points  []string                                      // what its points begin with
}

func (a actor) owns(point string) bool {
	return slices.ContainsFunc(a.points, func(p string) bool { return strings.HasPrefix(point, p) })
}

func uploader(prepare func(w *world)) actor {
	return actor{"upload", prepare, (*world).uploadSegment, []string{"upload:", "mint:", "store:put"}}
}

func evictor(prepare func(w *world)) actor {
	return actor{"evict", prepare, func(w *world, p *Partition, s Segment) error { return w.v.Evict(w.t.Context(), p, s) }, []string{"evict:"}}
}

func rehydrator(prepare func(w *world)) actor {
	return actor{"rehydrate", prepare, func(w *world, _ *Partition, s Segment) error { return w.v.Rehydrate(w.t.Context(), s.File) },
		[]string{"rehydrate:", "store:get", "store:read"}}
}

func retirer(prepare func(w *world)) actor {
	return actor{"retire", prepare, func(w *world, _ *Partition, _ Segment) error { return w.retireDue() }, []string{"retire:", "store:delete"}}
}

// outlived is a remote segment whose former object waits for its deletion.
func outlived(w *world) {
	uploaded(w)
	w.do(w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Write}, overwrite(0, w.logs[w.starts[0]][:4])))
	w.remote(w.starts[0])
	claimed(w)
}

// reborn is a local segment in the place of one that was uploaded and unlinked.
func reborn(w *world) {
	uploaded(w)
	w.do(recreate(w))
	w.logs[w.starts[0]] = otherLog(w)
	w.write("t-0/other", otherLog(w))
	claimed(w)
}

// TestInterleavings stops each background step at each of its points, also between
// the PUT and the commit, and lets the broker cut in there. Where the step holds the
// segment's lock the broker waits, and comes right behind. Half of the time somebody
// has the segment open from before, and reads it all the while. By default it takes
// a third of the ways in which all that can be.
func TestInterleavings(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 0))
	for _, a := range []actor{uploader(local), evictor(uploaded), rehydrator(remote), retirer(outlived)} {
		a.points = []string{""} // nobody else is there
		for i, p := range pointsOf(t, a) {
			for _, in := range cutIns() {
				for _, open := range []bool{false, true} {
					if !soak() && random.IntN(3) > 0 {
						continue
					}
					t.Run(fmt.Sprintf("%s/%d %s/%s/open %v", a.name, i, p, in.name, open), func(t *testing.T) {
						t.Parallel()
						interleave(t, []actor{a}, []int{i}, in, open)
					})
				}
			}
		}
	}
}

// TestInterleavingsOfTwo stops one background step at a point of its own, lets
// another one of the same segment go on to a point of its own, and lets the broker
// cut in there. By default it takes some of the many ways in which that can be.
func TestInterleavingsOfTwo(t *testing.T) {
	random := rand.New(rand.NewPCG(seed(t), 0))
	for _, pair := range [][2]actor{
		{uploader(local), evictor(uploaded)}, {evictor(uploaded), rehydrator(remote)}, {rehydrator(remote), evictor(uploaded)},
		{evictor(uploaded), evictor(uploaded)}, {uploader(local), uploader(local)},
		{retirer(reborn), uploader(reborn)}, {uploader(reborn), retirer(reborn)},
		{retirer(outlived), rehydrator(remote)}, {rehydrator(outlived), retirer(outlived)},
	} {
		var all []func()
		second := len(pointsOf(t, pair[1]))
		for i, p := range pointsOf(t, pair[0]) {
			for j := range second {
				for k, in := range cutIns() {
					all = append(all, func() {
						name := fmt.Sprintf("%s/%d %s/%s/%d/%s", pair[0].name, i, p, pair[1].name, j, in.name)
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							interleave(t, pair[:], []int{i, j}, in, (i+j+k)%2 == 0)
						})
					})
				}
			}
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if !soak() {
			all = all[:20]
		}
		for _, run := range all {
			run()
		}
	}
}

func soak() bool { return os.Getenv("TIERFS_SOAK") != "" }

// pointsOf are the points of an actor when it is alone.
func pointsOf(t *testing.T, a actor) (points []string) {
	w := raceWorld(t)
	a.prepare(w)
	w.points(func(p string) {
		if a.owns(p) {
			points = append(points, p)
		}
	})
	w.do(a.act(w, w.partition("t-0"), w.segment("t-0", w.starts[0])))
	return points
}

// overtaken reports whether an error is the answer to a file that changed.
func overtaken(err error) bool {
	var refused *Refused
	var torn *NotWhole
	return errors.As(err, &refused) || errors.As(err, &torn) || // below: the bytes changed under the PUT
		errors.Is(err, objstore.ErrChecksum) || errors.Is(err, objstore.ErrInvalid)
}

// points calls see at each point of the background: before durable steps, and
// around calls of the store.
func (w *world) points(see func(string)) {
	w.step = func(s string) {
		if !strings.HasSuffix(s, ":done") {
			see(s)
		}
	}
	w.store.SetHook(func(_ context.Context, op, _ string) error { see("store:" + op); return nil })
	w.store.SetAfter(func(_ context.Context, op, _ string) error { see("store:" + op + ":done"); return nil })
}

// chain is who cuts in on whom: the second comes when the first is at its point,
// and so on; the broker comes last.
type chain struct {
	w      *world
	actors []actor
	at     []int
	seen   []atomic.Int64 // points, of each actor
	last   func() error
	once   sync.Once
	all    sync.WaitGroup
}

func (c *chain) see(point string) {
	for k, a := range c.actors {
		if !a.owns(point) || c.seen[k].Add(1)-1 != int64(c.at[k]) {
			continue
		}
		done := make(chan struct{})
		c.all.Go(func() { c.run(k + 1); close(done) })
		select {
		case <-done:
		case <-time.After(time.Duration(len(c.actors)-k) * 5 * time.Millisecond): // it waits for the lock that this step holds
		}
		return
	}
}

// run lets the k-th act. What it fails with is right when the broker was faster.
func (c *chain) run(k int) {
	if k == len(c.actors) {
		c.once.Do(func() {
			if err := c.last(); err != nil {
				c.w.t.Errorf("the broker: %v", err)
			}
		})
		return
	}
	p, ok := c.w.v.PartitionOf("t-0")
	if !ok {
		return
	}
	s := p.Segments()[0]
	if s.Start != c.w.starts[0] {
		return // the broker was first
	}
	if err := c.actors[k].act(c.w, p, s); err != nil && !overtaken(err) {
		if fd, gone := s.File.open(unix.O_PATH); gone == nil {
			_ = unix.Close(fd)
			c.w.t.Errorf("%s: %v", c.actors[k].name, err)
		}
	}
}

func interleave(t *testing.T, actors []actor, at []int, in cutIn, open bool) {
	w := raceWorld(t)
	actors[0].prepare(w)
	l := look(w, in, open)
	c := &chain{w: w, actors: actors, at: at, seen: make([]atomic.Int64, len(actors)), last: func() error { return l.change(w) }}
	w.points(c.see)
	c.run(0)
	c.all.Wait()
	c.run(len(actors)) // if nobody came to its point
	w.points(func(string) {})
	l.end()
	agree := func(when string) {
		t.Helper()
		if err := errors.Join(l.after.holds(w, w.dir("t-0")), l.heldAgrees()); err != nil {
			t.Errorf("%s: %v; below %v", when, err, w.below("t-0"))
		}
	}
	agree("then")
	w.retireAll()
	agree("after the grace")
	w.tierAll()
	agree("tiered at once")
	w.do(w.v.CheckOwner(t.Context()))
	w.retireAll()
	agree("after another grace")
	l.close()
	w.retireAll()
	if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
		t.Errorf("the store has %v, named are %v", got, want)
	}
	w.reopen()
	agree("after a restart")
	w.tierAll()
	agree("tiered after a restart")
	if left := w.below(".tierfs/intents"); len(left) > 0 {
		t.Errorf("intents are left: %v", left)
	}
}

// tierAll uploads and evicts, as far as that may be.
func (w *world) tierAll() {
	for _, s := range w.partition("t-0").Segments() {
		_ = w.upload("t-0", s.Start)
		_ = w.evict("t-0", s.Start)
	}
}

// watcher reads the segment while it is raced for: by its name, and through a
// handle from before.
type watcher struct {
	w             *world
	in            cutIn
	before, after outcome
	heldAfter     []byte

	phase atomic.Int32 // 0: before the broker's change, 1: during it, 2: after it
	held  *File        // nil: nobody has it open
	fd    int
	stop  chan struct{}
	ended sync.WaitGroup
}

func look(w *world, in cutIn, open bool) *watcher {
	l := &watcher{w: w, in: in, before: outcome{first(w): firstLog(w)}, after: in.want(w), heldAfter: firstLog(w), stop: make(chan struct{})}
	if in.held != nil {
		l.heldAfter = in.held(w)
	}
	if !open {
		return l
	}
	e, err := w.v.Lookup(w.dir("t-0"), first(w))
	w.do(err)
	l.held = e.File
	l.held.Opened(false)
	l.fd, err = l.held.open(unix.O_RDONLY)
	w.do(err)
	w.t.Cleanup(l.close)
	d := w.dir("t-0")
	l.ended.Go(func() {
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			l.read(func() ([]byte, error) { return w.bytesOf(l.held) }, firstLog(w), l.heldAfter)
			l.read(func() ([]byte, error) { return w.content(d, first(w)) }, firstLog(w), l.after[first(w)])
		}
	})
	return l
}

func (l *watcher) change(w *world) error {
	l.phase.Store(1)
	defer l.phase.Store(2)
	return l.in.run(w)
}

// read reads once; what it gets while the change is under way is not looked at.
func (l *watcher) read(read func() ([]byte, error), before, after []byte) {
	phase := l.phase.Load()
	b, err := read()
	if phase != l.phase.Load() || phase == 1 {
		return
	}
	want := before
	if phase == 2 {
		want = after
	}
	if want == nil && isNotExist(err) {
		return
	}
	if err != nil || !bytes.Equal(b, want) {
		l.w.t.Errorf("a read in phase %d: %d bytes, %v, want %d", phase, len(b), err, len(want))
	}
}

func (l *watcher) end() {
	close(l.stop)
	l.ended.Wait()
}

func (l *watcher) heldAgrees() error {
	if l.held == nil {
		return nil
	}
	b, err := l.w.bytesOf(l.held)
	if err != nil || !bytes.Equal(b, l.heldAfter) {
		return fmt.Errorf("through the handle from before: %d bytes, %v, want %d", len(b), err, len(l.heldAfter))
	}
	return nil
}

func (l *watcher) close() {
	if l.held == nil {
		return
	}
	l.held.Closed(false)
	l.held.Release()
	_ = unix.Close(l.fd)
	l.held = nil
}

package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

// cut-ins: what the broker does to the segment at w.starts[0] while a background
// step of it stands still. Each makes the model that the segment must agree with
// afterwards.
type cutIn struct {
	name string
	run  func(w *world) error
	want func(w *world) outcome
}

func cutIns() []cutIn {
	changed := func(w *world) outcome { return outcome{first(w): changedLog(w)} }
	return []cutIn{
		{"write", write, changed},
		{"append", func(w *world) error {
			return w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Write}, overwrite(int64(len(firstLog(w))), []byte("more")))
		}, func(w *world) outcome { return outcome{first(w): append(bytes.Clone(firstLog(w)), "more"...)} }},
		{"truncate", func(w *world) error {
			return w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Truncate, Size: 100}, truncate(100))
		}, func(w *world) outcome { return outcome{first(w): firstLog(w)[:100]} }},
		{"truncate to 0", empty(first), func(w *world) outcome { return outcome{first(w): {}} }},
		{"unlink", unlink, func(w *world) outcome { return outcome{first(w): nil} }},
		{"rename", rename(first, deleted), func(w *world) outcome { return outcome{first(w): nil, deleted(w): firstLog(w)} }},
		{"rename over", replace, func(w *world) outcome { return outcome{first(w): swapped} }},
		{"link", func(w *world) error { return w.link(first(w), "backup") },
			func(w *world) outcome { return outcome{first(w): firstLog(w), "backup": firstLog(w)} }},
		{"write and retire", func(w *world) error { return errors.Join(write(w), w.retireDue()) }, changed},
	}
}

// background are the steps that are cut in on.
func background() []operation {
	return []operation{
		{name: "upload", prepare: local, run: func(w *world) error { return w.upload("t-0", w.starts[0]) }},
		{name: "evict", prepare: uploaded, run: func(w *world) error { return w.evict("t-0", w.starts[0]) }},
		{name: "rehydrate", prepare: remote, run: rehydrate},
		{name: "retire", prepare: func(w *world) { // an object of the segment's former bytes
			uploaded(w)
			w.do(w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Write}, overwrite(0, w.logs[w.starts[0]][:4])))
			w.remote(w.starts[0])
			w.do(w.v.CheckOwner(w.t.Context()))
		}, run: (*world).retireDue},
	}
}

// TestInterleavings stops each background step at each of its points, also between
// the PUT and the commit, and lets the broker cut in there. Where the step holds the
// segment's lock the broker waits, and comes right behind.
func TestInterleavings(t *testing.T) {
	for _, op := range background() {
		w := newWorld(t, 3)
		op.prepare(w)
		var points []string
		w.points(func(p string) { points = append(points, p) })
		w.do(op.run(w))
		for i, p := range points {
			for _, in := range cutIns() {
				t.Run(fmt.Sprintf("%s/%d %s/%s", op.name, i, p, in.name), func(t *testing.T) { interleave(t, op, i, in) })
			}
		}
	}
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

func interleave(t *testing.T, op operation, at int, in cutIn) {
	w := newWorld(t, 3)
	w.write("t-0/swap", swapped)
	op.prepare(w)
	d := w.dir("t-0")
	stand, cut := make(chan struct{}), make(chan error, 1)
	var n atomic.Int64
	w.points(func(string) {
		if n.Add(1)-1 != int64(at) {
			return
		}
		go func() {
			<-stand
			cut <- in.run(w)
		}()
		close(stand)
		select {
		case err := <-cut:
			cut <- err
		case <-time.After(5 * time.Millisecond): // it waits for the lock that this step holds
		}
	})
	if err := op.run(w); err != nil && !overtaken(err) {
		t.Errorf("%s: %v", op.name, err)
	}
	if err := <-cut; err != nil {
		t.Fatalf("%s: %v", in.name, err)
	}
	w.points(func(string) {})
	agree := func(when string) {
		t.Helper()
		if err := in.want(w).holds(w, d); err != nil {
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
	if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
		t.Errorf("the store has %v, named are %v", got, want)
	}
	w.reopen()
	d = w.dir("t-0")
	agree("after a restart")
	w.tierAll()
	agree("tiered after a restart")
}

// tierAll uploads and evicts, as far as that may be.
func (w *world) tierAll() {
	for _, s := range w.partition("t-0").Segments() {
		_ = w.upload("t-0", s.Start)
		_ = w.evict("t-0", s.Start)
	}
}

package tier

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// crash is what a Step hook throws to end an operation as a kill would: nothing
// after the step happens, and the volume is opened anew.
type crash struct{ step string }

// outcome is what stands under some names afterwards; nil: no such file.
type outcome map[string][]byte

// operation is one thing that happens to the segment at w.starts[0]. Afterwards one
// of the outcomes holds. Segments that it does not speak of are as they were.
type operation struct {
	name    string
	prepare func(w *world)
	run     func(w *world) error
	after   func(w *world) []outcome
}

var swapped = []byte("compacted")

// The names of the operations' files.
func first(w *world) string   { return name(w.starts[0]) }
func second(w *world) string  { return name(w.starts[1]) }
func deleted(w *world) string { return first(w) + ".deleted" }

// What stood below before an operation.
func local(*world)      {}
func uploaded(w *world) { w.do(w.upload("t-0", w.starts[0])) }
func remote(w *world)   { w.remote(w.starts[0]) }

func both(one, other func(*world)) func(*world) {
	return func(w *world) { one(w); other(w) }
}

func withSwap(prepare func(*world)) func(*world) {
	return both(prepare, func(w *world) { w.write("t-0/swap", swapped) })
}

// What is done.
func write(w *world) error {
	return w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Write}, overwrite(20, []byte("changed")))
}

func rehydrate(w *world) error {
	return w.v.Rehydrate(w.t.Context(), w.segment("t-0", w.starts[0]).File)
}

func unlink(w *world) error { return w.v.Unlink(w.dir("t-0"), first(w)) }

func empty(name func(*world) string) func(*world) error {
	return func(w *world) error {
		return w.mutate(w.dir("t-0"), name(w), Mutation{Kind: Truncate}, truncate(0))
	}
}

func rename(from, to func(*world) string) func(*world) error {
	return func(w *world) error { d := w.dir("t-0"); return w.v.Rename(d, from(w), d, to(w), 0) }
}

func replace(w *world) error { d := w.dir("t-0"); return w.v.Rename(d, "swap", d, first(w), 0) }

// What may be there afterwards.
func firstLog(w *world) []byte { return w.logs[w.starts[0]] }

func changedLog(w *world) []byte {
	b := bytes.Clone(firstLog(w))
	copy(b[20:], "changed")
	return b
}

func whole(w *world) []outcome { return []outcome{{first(w): firstLog(w)}} }

func or(more func(w *world) outcome) func(w *world) []outcome {
	return func(w *world) []outcome { return append(whole(w), more(w)) }
}

func operations() []operation {
	moved := func(w *world) { w.do(rename(first, deleted)(w)) }
	changed := or(func(w *world) outcome { return outcome{first(w): changedLog(w)} })
	gone := or(func(w *world) outcome { return outcome{first(w): nil} })
	emptied := or(func(w *world) outcome { return outcome{first(w): {}} })
	replaced := or(func(w *world) outcome { return outcome{first(w): swapped} })
	renamed := or(func(w *world) outcome { return outcome{first(w): nil, deleted(w): firstLog(w)} })
	// Replacing a local file by a remote one takes two steps below.
	over := func(w *world) []outcome {
		return append(whole(w), outcome{first(w): firstLog(w), second(w): nil}, outcome{first(w): nil, second(w): firstLog(w)})
	}
	return []operation{
		{"upload", local, func(w *world) error { return w.upload("t-0", w.starts[0]) }, whole},
		{"evict", uploaded, func(w *world) error { return w.evict("t-0", w.starts[0]) }, whole},
		{"write uploaded", uploaded, write, changed},
		{"write remote", remote, write, changed},
		{"rehydrate", remote, rehydrate, whole},
		{"truncate uploaded", uploaded, empty(first), emptied},
		{"truncate remote", remote, empty(first), emptied},
		{"truncate filling", remote, whileFilling(empty(first)), emptied},
		{"truncate deleted", both(remote, moved), empty(deleted), func(w *world) []outcome {
			return []outcome{{deleted(w): firstLog(w)}, {deleted(w): {}}}
		}},
		{"unlink uploaded", uploaded, unlink, gone},
		{"unlink remote", remote, unlink, gone},
		{"unlink filling", remote, whileFilling(unlink), gone},
		{"rename uploaded", uploaded, rename(first, deleted), renamed},
		{"rename remote", remote, rename(first, deleted), renamed},
		{"rename filling", remote, whileFilling(rename(first, deleted)), renamed},
		{"rename over uploaded", withSwap(uploaded), replace, replaced},
		{"rename over remote", withSwap(remote), replace, replaced},
		{"rename over filling", withSwap(remote), whileFilling(replace), replaced},
		{"rename remote over local", remote, rename(first, second), over},
		{"rename remote over uploaded", both(remote, func(w *world) { w.do(w.upload("t-0", w.starts[1])) }), rename(first, second), over},
		{"epoch", local, func(w *world) error {
			if err := w.v.CheckOwner(w.t.Context()); err != nil {
				return err
			}
			_ = w.v.Close()
			return w.tryOpen()
		}, whole},
	}
}

// mutations are changes of bytes in each state; one that comes back never has the
// old object.
func mutations() []operation {
	cut := or(func(w *world) outcome { return outcome{first(w): firstLog(w)[:100]} })
	holed := or(func(w *world) outcome { return outcome{first(w): zeroed(firstLog(w), batchEpoch)} })
	changed := or(func(w *world) outcome { return outcome{first(w): changedLog(w)} })
	// What is made anew is there from its creation on, and written behind it.
	anew := func(w *world) []outcome {
		return append(whole(w), outcome{first(w): nil}, outcome{first(w): {}}, outcome{first(w): otherLog(w)})
	}
	withOther := func(prepare func(*world)) func(*world) {
		return both(prepare, func(w *world) { w.write("t-0/other", otherLog(w)) })
	}
	var all []operation
	for _, at := range []struct {
		name    string
		prepare func(*world)
	}{{"uploaded", uploaded}, {"leaving", leaving}, {"remote", remote}} {
		marked := both(func(w *world) {
			setEpochs(firstLog(w), 7)
			w.write("t-0/"+first(w), firstLog(w))
		}, at.prepare)
		all = append(all,
			operation{"write into " + at.name, marked, write, changed},
			operation{"cut " + at.name, marked, mutation(Truncate, 100, truncate(100)), cut},
			operation{"punch " + at.name, marked, mutation(Allocate, 0, punch(batchEpoch, 4)), holed},
			operation{"zero " + at.name, marked, mutation(Allocate, 0, zeroRange(batchEpoch, 4)), holed},
			operation{"make anew " + at.name, withOther(marked), recreate, anew},
		)
	}
	moved := or(func(w *world) outcome { return outcome{first(w): nil, deleted(w): firstLog(w)} })
	return append(all,
		operation{"unlink leaving", leaving, unlink, or(func(w *world) outcome { return outcome{first(w): nil} })},
		operation{"rename leaving", leaving, rename(first, deleted), moved},
		operation{"retire", outlived, (*world).retireDue, whole},
	)
}

// whileFilling runs an operation when a rehydration of the segment has written all
// bytes and has yet to say so. The steps of both count, from then on.
func whileFilling(run func(w *world) error) func(w *world) error {
	return func(w *world) error {
		step := w.step
		var err error
		w.step = func(s string) {
			if s == "rehydrate:fill:done" {
				w.step = step
				err = run(w)
			}
		}
		return errors.Join(w.v.Rehydrate(w.t.Context(), w.segment("t-0", w.starts[0]).File), err)
	}
}

// TestCrash ends each operation before and after each of its durable steps, opens
// the volume again, and looks: every segment whole, the bytes right, and after the
// grace the store has exactly the objects that are named.
func TestCrash(t *testing.T) {
	for _, op := range append(operations(), mutations()...) {
		t.Run(op.name, func(t *testing.T) {
			var steps []string
			w := newWorld(t, 3)
			op.prepare(w)
			w.step = func(s string) { steps = append(steps, s) }
			w.do(op.run(w))
			check(t, w, op)
			if len(steps) == 0 {
				t.Fatal("no steps")
			}
			for i := range steps {
				t.Run(fmt.Sprintf("%d %s", i, steps[i]), func(t *testing.T) {
					w := newWorld(t, 3)
					op.prepare(w)
					w.crashAt(i, func() { _ = op.run(w) })
					check(t, w, op)
				})
			}
		})
	}
}

// crashAt ends an operation at its i-th step.
func (w *world) crashAt(i int, run func()) {
	w.t.Helper()
	at := 0
	w.step = func(s string) {
		if at == i {
			panic(crash{s})
		}
		at++
	}
	if !runToCrash(run) {
		w.t.Fatalf("step %d was not reached", i)
	}
	w.step = nil
}

// crashIn is crashAt for the first step of a name; the volume may go on after it,
// as after a failure.
func (w *world) crashIn(step string, run func()) {
	w.t.Helper()
	w.step = func(s string) {
		if s == step {
			panic(crash{s})
		}
	}
	if !runToCrash(run) {
		w.t.Fatalf("step %s was not reached", step)
	}
	w.step = nil
}

func runToCrash(run func()) (crashed bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			crashed = true
		}
	}()
	run()
	return false
}

// check opens the volume as after a kill and holds everything against the
// invariants.
func check(t *testing.T, w *world, op operation) {
	t.Helper()
	w.step = nil
	w.close()
	w.open()
	w.brokerStarts()
	w.do(w.v.CheckOwner(t.Context()))
	d := w.dir("t-0")
	wantOneOf(t, w, d, op.after(w))
	for _, p := range w.v.Partitions() {
		for _, s := range p.Segments() {
			if s.State == Quarantined {
				t.Errorf("segment %d is quarantined", s.Start)
			}
		}
	}
	w.retireAll()
	if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
		t.Errorf("the store has %v, named are %v", got, want)
	}
	if left := w.below(".tierfs/intents"); len(left) != 0 {
		t.Errorf("intents are left: %v", left)
	}
	if left := w.below(".tierfs/tombstones"); len(left) != 0 {
		t.Errorf("tombstones are left: %v", left)
	}
	below := w.below("t-0")
	for _, n := range below {
		if vis, ok := visibleOfUploaded(n); ok && !slices.Contains(below, vis) {
			t.Errorf("a record is left beside nothing: %s", n)
		}
		if vis, ok := visibleOfRemote(n); ok && slices.Contains(below, vis) {
			t.Errorf("a segment is left twice: %s", n)
		}
	}
	// The volume goes on: what is local can be uploaded and evicted.
	for _, s := range w.partition("t-0").Segments() {
		if b, err := w.content(d, s.Name()); s.State == Local && !s.Active && err == nil && bytes.Equal(b, w.logs[s.Start]) {
			w.do(w.upload("t-0", s.Start))
		}
	}
	wantOneOf(t, w, d, op.after(w))
}

func wantOneOf(t *testing.T, w *world, d Dir, outcomes []outcome) {
	t.Helper()
	var why error
	for _, o := range outcomes {
		err := o.holds(w, d)
		if err == nil {
			return
		}
		why = errors.Join(why, err)
	}
	t.Fatalf("none of the outcomes that may be: %v; below %v", why, w.below("t-0"))
}

func (o outcome) holds(w *world, d Dir) error {
	all := outcome{}
	for start, log := range w.logs {
		all[name(start)] = log
	}
	if _, ok := o[first(w)]; !ok {
		delete(all, first(w)) // it was renamed before
	}
	maps.Copy(all, o)
	for n, want := range all {
		got, err := w.content(d, n)
		switch {
		case want == nil && isNotExist(err):
		case want == nil || err != nil || !bytes.Equal(got, want):
			return fmt.Errorf("%s: %d bytes, error %v, want %d", n, len(got), err, len(want))
		}
	}
	return nil
}

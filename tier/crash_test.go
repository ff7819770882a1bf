package tier

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// crash is what a Step hook throws to end an operation as a kill would: nothing
// after the step happens, and the volume is opened anew.
type crash struct{ step string }

// operation is one thing that happens to the segment at w.starts[0]. Its content
// afterwards, under its name, is one of the given ones; nil stands for "no such
// file".
type operation struct {
	name    string
	prepare func(w *world)
	run     func(w *world) error
	after   func(w *world) [][]byte
}

func operations() []operation {
	d := func(w *world) Dir { return w.dir("t-0") }
	first := func(w *world) string { return name(w.starts[0]) }
	unchanged := func(w *world) [][]byte { return [][]byte{w.logs[w.starts[0]]} }
	remote := func(w *world) { w.remote(w.starts[0]) }
	uploaded := func(w *world) { w.do(w.upload("t-0", w.starts[0])) }
	changed := func(w *world) []byte {
		b := bytes.Clone(w.logs[w.starts[0]])
		copy(b[20:], "changed")
		return b
	}
	write := func(w *world) error {
		return w.mutate(d(w), first(w), Mutation{Kind: Write}, overwrite(20, []byte("changed")))
	}
	maybeChanged := func(w *world) [][]byte { return [][]byte{w.logs[w.starts[0]], changed(w)} }
	maybeGone := func(w *world) [][]byte { return [][]byte{w.logs[w.starts[0]], nil} }
	unlink := func(w *world) error { return w.v.Unlink(d(w), first(w)) }
	truncate0 := func(w *world) error {
		return w.mutate(d(w), first(w), Mutation{Kind: Truncate}, truncate(0))
	}
	maybeEmpty := func(w *world) [][]byte { return [][]byte{w.logs[w.starts[0]], {}} }
	swap := []byte("compacted")
	withSwap := func(prepare func(*world)) func(*world) {
		return func(w *world) {
			prepare(w)
			w.write("t-0/swap", swap)
		}
	}
	replace := func(w *world) error { return w.v.Rename(d(w), "swap", d(w), first(w), 0) }
	maybeSwapped := func(w *world) [][]byte { return [][]byte{w.logs[w.starts[0]], swap} }
	return []operation{
		{name: "upload", prepare: func(*world) {}, run: func(w *world) error { return w.upload("t-0", w.starts[0]) }, after: unchanged},
		{name: "evict", prepare: uploaded, run: func(w *world) error { return w.evict("t-0", w.starts[0]) }, after: unchanged},
		{name: "write uploaded", prepare: uploaded, run: write, after: maybeChanged},
		{name: "write remote", prepare: remote, run: write, after: maybeChanged},
		{name: "rehydrate", prepare: remote, run: func(w *world) error {
			return w.v.Rehydrate(w.t.Context(), w.segment("t-0", w.starts[0]).File)
		}, after: unchanged},
		{name: "truncate remote", prepare: remote, run: truncate0, after: maybeEmpty},
		{name: "truncate uploaded", prepare: uploaded, run: truncate0, after: maybeEmpty},
		{name: "unlink uploaded", prepare: uploaded, run: unlink, after: maybeGone},
		{name: "unlink remote", prepare: remote, run: unlink, after: maybeGone},
		{name: "rename over uploaded", prepare: withSwap(uploaded), run: replace, after: maybeSwapped},
		{name: "rename over remote", prepare: withSwap(remote), run: replace, after: maybeSwapped},
		{name: "epoch", prepare: func(*world) {}, run: func(w *world) error {
			if err := w.v.CheckOwner(w.t.Context()); err != nil {
				return err
			}
			_ = w.v.Close()
			return w.tryOpen()
		}, after: unchanged},
	}
}

// TestCrash ends each operation before and after each of its durable steps, opens
// the volume again, and looks: every segment whole, the bytes right, and after the
// grace the store has exactly the objects that are named.
func TestCrash(t *testing.T) {
	for _, op := range operations() {
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
	w.do(w.v.CheckOwner(t.Context()))
	d := w.dir("t-0")
	wantOneOf(t, w, d, name(w.starts[0]), op.after(w))
	for _, start := range w.starts[1:] {
		w.wantContent(d, name(start), w.logs[start])
	}
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
	for _, n := range w.below("t-0") {
		if vis, ok := visibleOfUploaded(n); ok && !slices.Contains(w.below("t-0"), vis) {
			t.Errorf("a record is left beside nothing: %s", n)
		}
	}
	// The volume goes on: what is local can be uploaded and evicted.
	if s := w.partition("t-0").Segments(); s[0].Start == w.starts[0] && s[0].State == Local && bytes.Equal(mustContent(w, d), w.logs[w.starts[0]]) {
		w.do(w.upload("t-0", w.starts[0]))
	}
	wantOneOf(t, w, d, name(w.starts[0]), op.after(w))
}

func mustContent(w *world, d Dir) []byte {
	b, err := w.content(d, name(w.starts[0]))
	w.do(err)
	return b
}

func wantOneOf(t *testing.T, w *world, d Dir, name string, want [][]byte) {
	t.Helper()
	got, err := w.content(d, name)
	for _, b := range want {
		if b != nil && err == nil && bytes.Equal(got, b) {
			return
		}
		if b == nil && err != nil && isNotExist(err) {
			return
		}
	}
	t.Fatalf("%s: %d bytes, error %v: none of the contents that may be", name, len(got), err)
}

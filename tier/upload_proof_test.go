package tier

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
)

// soil has a file be written through the volume and not yet closed.
func (w *world) soil(name string) {
	w.t.Helper()
	e, err := w.v.Lookup(w.dir("t-0"), name)
	w.do(err)
	defer e.File.Release()
	e.File.Opened(true)
	done, err := e.File.Mutate(w.t.Context(), Mutation{Kind: Write})
	w.do(err)
	done()
}

func TestProofLeavesNothing(t *testing.T) {
	w := newWorld(t, 3)
	proof, err := w.v.Prove(t.Context(), w.partition("t-0"), w.segment("t-0", w.starts[0]))
	w.do(err)
	if len(proof.u.fds) == 0 {
		t.Error("a proof holds no descriptor")
	}
	proof.Close()
	if n := len(proof.u.fds); n != 0 || len(w.below(".tierfs/intents")) != 0 || len(w.v.Tombstones()) != 0 {
		t.Errorf("%d descriptors, intents %v, tombstones %v", n, w.below(".tierfs/intents"), w.v.Tombstones())
	}
}

// TestProofIsChecked: a proof counts for what it was made of only.
func TestProofIsChecked(t *testing.T) {
	log := func(w *world) string { return segment.Stem(w.starts[0]) + ".log" }
	index := func(w *world) string { return segment.Stem(w.starts[0]) + ".index" }
	for _, c := range []struct {
		name   string
		change func(w *world)
		why    layout.Reason // empty: it still counts
	}{
		{"nothing happens", func(*world) {}, ""},
		{"the one behind is uploaded", func(w *world) { w.do(w.upload("t-0", w.starts[1])) }, ""},
		{"it is written", func(w *world) {
			w.do(w.mutate(w.dir("t-0"), log(w), Mutation{Kind: Write}, overwrite(0, nil)))
		}, ReasonChanged},
		{"it is uploaded", func(w *world) { w.do(w.upload("t-0", w.starts[0])) }, ReasonUploaded},
		{"the index is being written", func(w *world) { w.soil(index(w)) }, ReasonSideFile},
		{"the index is replaced", func(w *world) {
			path := filepath.Join(w.path, "t-0", index(w))
			b, err := os.ReadFile(path)
			w.do(err)
			w.do(os.WriteFile(path+".new", b, 0o644))
			w.do(os.Rename(path+".new", path))
		}, ReasonChanged},
		{"the index goes", func(w *world) { w.do(os.Remove(filepath.Join(w.path, "t-0", index(w)))) }, ReasonChanged},
		{"another file comes", func(w *world) {
			w.write("t-0/"+segment.Stem(w.starts[0])+".timeindex", make([]byte, 12))
		}, ReasonChanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 3)
			proof, err := w.v.Prove(t.Context(), w.partition("t-0"), w.segment("t-0", w.starts[0]))
			w.do(err)
			c.change(w)
			before := len(w.below(".tierfs/intents"))
			u, err := proof.Begin()
			if c.why == "" {
				w.do(err)
				w.do(u.Abort())
				u.Close()
				return
			}
			w.wantRefused(err, c.why)
			if n := len(proof.u.fds); n != 0 || len(w.below(".tierfs/intents")) != before {
				t.Errorf("%d descriptors or an intent are left", n)
			}
		})
	}
}

package tier

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/layout"
)

func TestCompactionDisqualifies(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	fd, e, err := w.v.Create(d, name(0)+".cleaned", unix.O_RDWR, 0o644)
	w.do(err)
	_ = unix.Close(fd)
	e.File.Release()
	if w.partition("t-0").Reason() == "" {
		t.Fatal("still tiered")
	}
	w.reopen()
	w.do(w.v.Unlink(w.dir("t-0"), name(0)+".cleaned"))
	w.reopen()
	if w.partition("t-0").Reason() == "" {
		t.Fatal("tiered again after a restart")
	}
}

func TestRules(t *testing.T) {
	w := newWorld(t, 1)
	if got := w.v.Layout().Kind(); got != layout.Kafka {
		t.Fatalf("layout %s", got)
	}
}

func TestKeyPath(t *testing.T) {
	for path, want := range map[string]string{
		"t-0": "t-0", "a/b c/d": "a/b_c/d", "owner/x": "owner_/x", "x/owner": "x/owner", "\xff\n": "__",
		strings.Repeat("x", 250): strings.Repeat("x", 200),
	} {
		if got := keyPath(path); got != want {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
}

// A partition that is found to be compacted while its first upload mints its
// incarnation is never tiered, now and later.
func TestCompactionDuringTheFirstUpload(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	w.step = func(s string) {
		if s == "mint:registry:done" {
			fd, e, err := w.v.Create(d, name(0)+".cleaned", unix.O_RDWR, 0o644)
			w.do(err)
			_ = unix.Close(fd)
			e.File.Release()
		}
	}
	_ = w.upload("t-0", w.starts[0])
	if w.partition("t-0").Reason() == "" {
		t.Error("a compacted partition is still tiered")
	}
	w.do(w.v.Unlink(d, name(0)+".cleaned"))
	w.reopen()
	if w.partition("t-0").Reason() == "" {
		t.Error("and after a restart")
	}
}

func TestRenameOverAnEmptyPartition(t *testing.T) {
	w := newWorld(t, 3)
	root := w.dir(".")
	w.do(w.upload("t-0", w.starts[0]))
	w.empty("t-0")
	w.mkdir("t-1")
	fd, e, err := w.v.Create(w.dir("t-1"), name(0), unix.O_RDWR, 0o644)
	w.do(err)
	_ = unix.Close(fd)
	e.File.Release()
	w.do(w.v.Rename(root, "t-1", root, "t-0", 0))
	n := 0
	for _, p := range w.v.Partitions() {
		if p.Path() == "t-0" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d partitions have the path t-0", n)
	}
	w.retireAll()
	if left := w.below(".tierfs/partitions"); len(left) != 0 {
		t.Errorf("registry entries are left: %v", left)
	}
}

// The floor moves up by looking and down with whatever becomes local below it.
func TestFloor(t *testing.T) {
	w := newWorld(t, 6)
	p, d := w.partition("t-0"), w.dir("t-0")
	bounds, err := w.v.Bounds()
	w.do(err)
	want := func(i int, want layout.Reason) {
		t.Helper()
		if got := p.Evictable(w.starts[i], bounds); got != want {
			t.Errorf("segment %d: %q, want %q", i, got, want)
		}
	}
	change := func(i int) {
		w.do(w.mutate(d, name(w.starts[i]), Mutation{Kind: Write}, overwrite(0, w.logs[w.starts[i]][:4])))
	}
	for i := range 5 {
		if i != 2 {
			w.do(w.upload("t-0", w.starts[i]))
		}
	}
	want(1, "")
	want(2, ReasonNotYet)
	want(4, ReasonFloor)
	w.do(w.upload("t-0", w.starts[2]))
	want(4, "")
	if p.marks[markHeld] != 4 {
		t.Errorf("the floor is at %d", p.marks[markHeld])
	}
	change(1)
	want(0, "")
	want(1, ReasonNotYet)
	want(4, ReasonFloor)
	w.do(w.upload("t-0", w.starts[1]))
	want(4, "")
	w.do(w.v.Unlink(d, name(w.starts[0])))
	want(4, "")
	w.do(w.v.Rename(d, name(w.starts[2]), d, "x", 0))
	w.write("t-0/y", w.logs[w.starts[2]])
	w.do(w.v.Rename(d, "y", d, name(w.starts[2]), 0))
	want(4, ReasonFloor)
	w.do(w.upload("t-0", w.starts[2]))
	want(4, "")

	w.step = func(s string) { // becomes local while somebody looks
		if s == "mutate:tombstone" {
			want(4, "")
		}
	}
	turns := p.turns
	change(3)
	w.step = nil
	p.raise(markHeld, 5, turns) // of a look that began before the change
	want(4, ReasonFloor)
}

// Looks for what is to be uploaded or evicted are at what is neither already, also
// after changes below.
func TestMarks(t *testing.T) {
	w := newWorld(t, 6)
	p, d := w.partition("t-0"), w.dir("t-0")
	want := func(what string, held, remote int) {
		t.Helper()
		for range 2 { // the second look is at what the first one found
			for _, c := range []struct {
				name string
				mark int
				segs []Segment
				want int
			}{{"held", markHeld, p.NotHeld(), held}, {"remote", markRemote, p.NotRemote(), remote}} {
				if p.marks[c.mark] != c.want || len(c.segs) != 6-c.want {
					t.Fatalf("%s: the mark of %s segments is at %d, and %d are listed; want %d", what, c.name, p.marks[c.mark], len(c.segs), c.want)
				}
				if all := p.Segments(); !slices.Equal(c.segs, all[c.want:]) {
					t.Fatalf("%s: not the last segments: %v", what, c.segs)
				}
			}
		}
	}
	want("new", 0, 0)
	for i := range 4 {
		w.do(w.upload("t-0", w.starts[i]))
	}
	want("uploaded", 4, 0)
	for i := range 3 {
		w.do(w.evict("t-0", w.starts[i]))
	}
	want("evicted", 4, 3)
	w.do(w.v.Rehydrate(t.Context(), p.Segments()[1].File))
	want("one is back", 4, 1)
	w.do(w.evict("t-0", w.starts[1]))
	want("and gone again", 4, 3)
	w.do(w.mutate(d, name(w.starts[2]), Mutation{Kind: Write}, overwrite(0, w.logs[w.starts[2]][:4])))
	want("one is written", 2, 2)
	w.do(w.upload("t-0", w.starts[2]))
	want("and uploaded again", 4, 2)
}

package tier

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
)

// What a look at changes alone could forget, and what one at names could mistake.

// A segment that stopped half way back is listed for the evictor, though all up to it
// were remote when it last looked.
func TestStoppedHalfWayBackIsListed(t *testing.T) {
	w := newWorld(t, 4)
	for _, start := range w.starts[:3] {
		w.remote(start)
	}
	p, n := w.partition("t-0"), name(w.starts[1])
	if got := p.NotRemote(); len(got) != 1 {
		t.Fatalf("not remote: %v", got)
	}
	inWay := filepath.Join(w.path, "t-0", n)
	w.step = func(s string) {
		if s == "truncate:empty:done" {
			w.do(os.Mkdir(inWay, 0o700))
		}
	}
	if err := w.mutate(w.dir("t-0"), n, Mutation{Kind: Truncate}, truncate(0)); err == nil {
		t.Fatal("truncated")
	}
	w.step = nil
	w.do(os.Remove(inWay))
	segs := p.NotRemote()
	if len(segs) == 0 || segs[0].Start != w.starts[1] {
		t.Fatalf("not remote: %v", segs)
	}
	w.do(w.v.Evict(t.Context(), p, segs[0]))
	w.wantState("t-0", w.starts[1], Remote)
	w.wantContent(w.dir("t-0"), n, w.logs[w.starts[1]])
}

// The registry keeps what explains a record that came while objects were deleted.
func TestUploadEndsDuringARetirement(t *testing.T) {
	w := newWorld(t, 4)
	root, d := w.dir("."), w.dir("t-0")
	w.do(w.upload("t-0", w.starts[0]))
	w.do(w.v.Unlink(d, name(w.starts[0])))
	w.mkdir("u-0")
	w.do(w.create("u-0", name(w.starts[2])))
	moved, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", w.starts[1]))
	w.do(err)
	defer moved.Close()
	for _, o := range moved.Objects {
		w.do(w.store.Put(t.Context(), o.Key, o.Body, objstore.PutOptions{IfAbsent: true, Metadata: o.Metadata}))
	}
	w.step = func(s string) {
		if s == "retire:delete" {
			w.step = nil
			w.do(moved.Commit())
			w.do(w.v.Rename(d, name(w.starts[1]), w.dir("u-0"), name(w.starts[1]), 0))
			w.empty("t-0")
			w.do(w.v.Rmdir(root, "t-0"))
		}
	}
	w.retireAll()
	w.reopen()
	w.wantState("u-0", w.starts[1], Uploaded)
}

// Only the index tells of a hole, so only when that goes it is none.
func TestHoleOutlivesOtherFiles(t *testing.T) {
	w := newWorld(t, 3)
	other := segment.Stem(w.starts[0]) + ".timeindex"
	w.write("t-0/"+other, []byte("x"))
	w.do(w.upload("t-0", w.starts[0]))
	w.close()
	w.do(os.Remove(filepath.Join(w.path, "t-0", name(w.starts[0]))))
	w.open()
	w.do(w.v.Unlink(w.dir("t-0"), other))
	if got := w.partition("t-0").Holes(); !slices.Equal(got, w.starts[:1]) {
		t.Errorf("holes %v", got)
	}
	if !slices.Contains(w.below("t-0"), uploadedName(name(w.starts[0]))) {
		t.Error("the record of the lost segment went with another file")
	}
}

// A segment that an operator keeps elsewhere is no hole.
func TestLinkedSegmentIsNoHole(t *testing.T) {
	w := newWorld(t, 3)
	w.close()
	path := filepath.Join(w.path, "t-0", name(w.starts[0]))
	aside := filepath.Join(t.TempDir(), "aside")
	w.do(os.WriteFile(aside, w.logs[w.starts[0]], 0o600))
	w.do(os.Remove(path))
	w.do(os.Symlink(aside, path))
	w.open()
	p := w.partition("t-0")
	if got := p.Holes(); len(got) != 0 || p.holed() {
		t.Errorf("holes %v", got)
	}
}

// Who is short of space deletes what is called a reserve.
func TestReserveIsRemoved(t *testing.T) {
	w := newWorld(t, 1)
	if got := w.below(".tierfs/reserve"); len(got) != reserveFiles {
		t.Fatalf("the reserve has %v", got)
	}
	for _, n := range w.below(".tierfs/reserve")[1:] {
		w.do(os.Remove(filepath.Join(w.path, ".tierfs/reserve", n)))
	}
	tries := 0
	err := w.v.reserve.during(func() error { tries++; return unix.ENOSPC })
	if !errors.Is(err, unix.ENOSPC) || tries != 2 || w.v.reserve.any() {
		t.Errorf("with one file left: %v, after %d tries; more left: %v", err, tries, w.v.reserve.any())
	}
	w.v.reserve.take()
	if got := w.below(".tierfs/reserve"); len(got) != reserveFiles {
		t.Errorf("with room again the reserve has %v", got)
	}
}

// A segment that goes while a directory is read is no hole for the next look.
func TestSegmentGoesDuringALook(t *testing.T) {
	w := newWorld(t, 4)
	p := w.partition("t-0")
	before, err := w.v.countingNames(p)
	w.do(err)
	turns := p.turns
	w.do(w.v.Unlink(w.dir("t-0"), name(w.starts[0])))
	if p.noteHoles(Holes(w.v.Layout(), p.Path(), before), time.Now(), turns) || p.holed() {
		t.Error("a hole")
	}
}

// That an earlier upload of a segment came to nothing does not tell where the segment
// is: the record of the later one is still beside the index.
func TestHoleAfterAnUploadThatFailed(t *testing.T) {
	w := newWorld(t, 3)
	u, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", w.starts[0]))
	w.do(err)
	w.do(u.Abort())
	u.Close()
	w.do(w.upload("t-0", w.starts[0]))
	w.close()
	w.do(os.Remove(filepath.Join(w.path, "t-0", name(w.starts[0]))))
	w.open()
	if got := w.partition("t-0").Holes(); !slices.Equal(got, w.starts[:1]) {
		t.Errorf("holes %v", got)
	}
	w.retireAll()
	if got := w.logObjects(); len(got) != 1 {
		t.Errorf("the store has %v", got)
	}
}

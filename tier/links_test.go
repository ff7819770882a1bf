package tier

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEvictionRefusesLinks(t *testing.T) {
	w := newWorld(t, 3)
	w.do(w.upload("t-0", w.starts[0]))
	w.do(os.Link(filepath.Join(w.path, "t-0", name(w.starts[0])), filepath.Join(w.path, "t-0", "other")))
	w.wantRefused(w.evict("t-0", w.starts[0]), ReasonLinked)
}

func TestLinkOfRemote(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	start := w.starts[0]
	w.remote(start)
	e, err := w.v.Lookup(d, name(start))
	w.do(err)
	e2, err := w.v.Link(e.File, d, "backup")
	w.do(err)
	e2.File.Release()
	e.File.Release()
	w.wantContent(d, "backup", w.logs[start])
	w.do(w.v.Unlink(d, name(start)))
	w.wantContent(d, "backup", w.logs[start])
	w.retireAll()
	w.reopen()
	w.brokerStarts()
	d = w.dir("t-0")
	w.wantContent(d, "backup", w.logs[start])
	w.do(w.mutate(d, "backup", Mutation{Kind: Write}, overwrite(0, w.logs[start][:4])))
	w.wantContent(d, "backup", w.logs[start])
	w.do(w.v.Unlink(d, "backup"))
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Fatalf("objects %v, want none", got)
	}
}

// linkedRemote gives a remote segment a second name.
func linkedRemote(w *world) (Dir, *File) {
	start := w.starts[0]
	w.remote(start)
	w.do(w.link(name(start), "backup"))
	return w.dir("t-0"), w.segment("t-0", start).File
}

func TestCrashWhileALinkedSegmentIsFilled(t *testing.T) {
	w := newWorld(t, 3)
	_, f := linkedRemote(w)
	var steps []string
	w.step = func(s string) { steps = append(steps, s) }
	w.do(w.v.Rehydrate(t.Context(), f))
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t, 3)
			_, f := linkedRemote(w)
			w.crashAt(i, func() { _ = w.v.Rehydrate(t.Context(), f) })
			for range 2 {
				w.reopen()
				d := w.dir("t-0")
				w.wantContent(d, name(w.starts[0]), w.logs[w.starts[0]])
				w.wantContent(d, "backup", w.logs[w.starts[0]])
			}
		})
	}
}

// The name that the record stands beside goes during the fill: the record has to
// go over to the other name, or the bytes are lost with a crash.
func TestUnlinkOfTheHomeWhileFilling(t *testing.T) {
	t.Run("crash", func(t *testing.T) {
		w := newWorld(t, 3)
		d, f := linkedRemote(w)
		w.step = func(s string) {
			switch s {
			case "rehydrate:fill":
				w.do(w.v.Unlink(d, name(w.starts[0])))
			case "rehydrate:fsync":
				fd, err := f.open(unix.O_RDWR)
				w.do(err)
				w.do(unix.Ftruncate(fd, 1000)) // as if killed in the middle of the fill
				_ = unix.Close(fd)
				panic(crash{s})
			}
		}
		runToCrash(func() { _ = w.v.Rehydrate(t.Context(), f) })
		w.reopen()
		w.retireAll()
		w.wantContent(w.dir("t-0"), "backup", w.logs[w.starts[0]])
		if len(w.logObjects()) == 0 {
			t.Error("the only whole copy was deleted from the store")
		}
	})
	t.Run("write", func(t *testing.T) {
		w := newWorld(t, 3)
		d, _ := linkedRemote(w)
		w.step = func(s string) {
			if s == "rehydrate:fill" {
				w.do(w.v.Unlink(d, name(w.starts[0])))
			}
		}
		w.do(w.mutate(d, "backup", Mutation{Kind: Write}, overwrite(0, w.logs[w.starts[0]][:4])))
		w.wantContent(d, "backup", w.logs[w.starts[0]])
	})
}

// A backup by hard links (cp -al) shares the inode, not the record: after a
// restart the record is still beside the segment.
func TestRecordStaysBesideItsNameOverARestart(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.do(w.upload("t-0", start))
	for i := range 8 { // whatever the order of the scan
		dir := fmt.Sprintf("backup%d", i)
		w.mkdir(dir)
		w.do(os.Link(filepath.Join(w.path, "t-0", name(start)), filepath.Join(w.path, dir, name(start))))
	}
	w.reopen()
	d := w.dir("t-0")
	w.do(w.mutate(d, name(start), Mutation{Kind: Write}, overwrite(0, w.logs[start][:4])))
	w.do(w.v.Unlink(d, name(start)))
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Errorf("objects leak: %v", got)
	}
}

// Names of segments that are being filled are replaced and moved: whichever name
// the record stands beside, it stays with its file, also over a crash.
func TestRecordsOfFillingSegments(t *testing.T) {
	// while runs do when rehydrations of both segments have written all bytes, and
	// ends the volume behind it.
	while := func(t *testing.T, w *world, do func(d Dir)) {
		t.Helper()
		depth := 0
		w.step = func(s string) {
			if s != "rehydrate:fill:done" {
				return
			}
			if depth++; depth == 1 {
				w.do(w.v.Rehydrate(t.Context(), w.segment("t-0", w.starts[1]).File))
				return
			}
			w.step = nil
			do(w.dir("t-0"))
			panic(crash{s})
		}
		if !runToCrash(func() { _ = w.v.Rehydrate(t.Context(), w.segment("t-0", w.starts[0]).File) }) {
			t.Fatal("not reached")
		}
		w.do(os.Truncate(filepath.Join(w.path, "t-0", remoteName(second(w))), 100)) // not all bytes, really
		w.reopen()
		w.brokerStarts()
		w.retireAll()
		if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
			t.Errorf("the store has %v, named are %v", got, want)
		}
	}
	prepare := func(t *testing.T) *world {
		w := newWorld(t, 4)
		w.remote(w.starts[0])
		w.remote(w.starts[1])
		return w
	}
	t.Run("one over the other", func(t *testing.T) {
		w := prepare(t)
		while(t, w, func(d Dir) { w.do(w.v.Rename(d, first(w), d, second(w), 0)) })
		w.wantContent(w.dir("t-0"), second(w), w.logs[w.starts[0]])
	})
	t.Run("over one of two names", func(t *testing.T) {
		w := prepare(t)
		w.do(w.link(first(w), "backup"))
		w.write("t-0/swap", swapped)
		while(t, w, func(d Dir) { w.do(w.v.Rename(d, "swap", d, first(w), 0)) })
		w.wantContent(w.dir("t-0"), "backup", w.logs[w.starts[0]])
		w.wantContent(w.dir("t-0"), first(w), swapped)
	})
	t.Run("the other name moves", func(t *testing.T) {
		w := prepare(t)
		w.do(w.link(first(w), "backup"))
		while(t, w, func(d Dir) { w.do(w.v.Rename(d, "backup", d, "moved", 0)) })
		w.wantContent(w.dir("t-0"), "moved", w.logs[w.starts[0]])
		w.wantContent(w.dir("t-0"), first(w), w.logs[w.starts[0]])
		if got := len(w.v.Tombstones()); got != 0 {
			t.Errorf("%d tombstones of a segment that is needed", got)
		}
	})
}

func TestRenameOfTheOtherNameWhileFilling(t *testing.T) {
	w := newWorld(t, 3)
	d, f := linkedRemote(w)
	w.step = func(s string) {
		if s == "rehydrate:fill:done" {
			w.do(w.v.Rename(d, "backup", d, "moved", 0))
		}
	}
	w.do(w.v.Rehydrate(t.Context(), f))
	for _, n := range w.below("t-0") {
		if vis, ok := visibleOfUploaded(n); ok && vis != first(w) {
			t.Errorf("a second record: %s", n)
		}
	}
}

// Whichever of its names comes first.
func TestCrashWhileALinkedSegmentIsEmptied(t *testing.T) {
	emptied := func(w *world) error { return w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Truncate}, truncate(0)) }
	prepare := func(t *testing.T, order int) *world {
		w := newWorld(t, 3)
		_, f := linkedRemote(w)
		if order > 0 {
			slices.Reverse(f.links)
		}
		return w
	}
	for order := range 2 {
		w := prepare(t, order)
		var steps []string
		w.step = func(s string) { steps = append(steps, s) }
		w.do(emptied(w))
		for i, step := range steps {
			t.Run(fmt.Sprint(order, " ", i, " ", step), func(t *testing.T) {
				w := prepare(t, order)
				w.crashAt(i, func() { _ = emptied(w) })
				for range 2 {
					w.reopen()
					d := w.dir("t-0")
					log, err := w.content(d, first(w))
					w.do(err)
					if len(log) > 0 {
						w.wantContent(d, first(w), w.logs[w.starts[0]])
					}
					w.wantContent(d, "backup", log)
				}
				w.retireAll()
				if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
					t.Errorf("the store has %v, named are %v", got, want)
				}
			})
		}
	}
}

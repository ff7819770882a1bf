package tier

import (
	"fmt"
	"os"
	"path/filepath"
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
	d := w.dir("t-0")
	e, err := w.v.Lookup(d, name(start))
	w.do(err)
	e2, err := w.v.Link(e.File, d, "backup")
	w.do(err)
	e2.File.Release()
	e.File.Release()
	return d, w.segment("t-0", start).File
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

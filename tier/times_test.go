package tier

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
)

var longAgo = time.Unix(1600000000, 0)

// aged is a world whose first segment is remote and was last written long ago.
func aged(t *testing.T) (*world, *File) {
	w := newWorld(t, 3)
	w.do(os.Chtimes(filepath.Join(w.path, "t-0", name(w.starts[0])), longAgo, longAgo))
	w.remote(w.starts[0])
	return w, w.segment("t-0", w.starts[0]).File
}

func (w *world) wantModified(want time.Time) {
	w.t.Helper()
	e, err := w.v.Lookup(w.dir("t-0"), name(w.starts[0]))
	w.do(err)
	defer e.File.Release()
	if got := time.Unix(e.Stat.Mtim.Unix()); !got.Equal(want) {
		w.t.Errorf("a lookup gives mtime %v, want %v", got, want)
	}
	fd, err := e.File.open(unix.O_PATH)
	w.do(err)
	defer unix.Close(fd)
	var st unix.Stat_t
	w.do(e.File.Stat(fd, &st))
	if got := time.Unix(st.Mtim.Unix()); !got.Equal(want) || st.Size != e.Stat.Size {
		w.t.Errorf("stat gives mtime %v, want %v", got, want)
	}
}

// Retention falls back to a segment's mtime: no crash makes an old segment a new
// one.
func TestTimesOverACrash(t *testing.T) {
	for what, run := range map[string]func(w *world, f *File) error{
		"rehydrate": func(w *world, f *File) error { return w.v.Rehydrate(w.t.Context(), f) },
		"evict": func(w *world, f *File) error {
			if err := w.v.Rehydrate(w.t.Context(), f); err != nil {
				return err
			}
			return w.evict("t-0", w.starts[0])
		},
		"rename while filling": func(w *world, f *File) error {
			step := w.step
			w.step = func(s string) {
				step(s)
				if s == "rehydrate:fill:done" {
					w.step = step
					d := w.dir("t-0")
					w.do(w.v.Rename(d, name(w.starts[0]), d, "x", 0))
					w.do(w.v.Rename(d, "x", d, name(w.starts[0]), 0))
				}
			}
			return w.v.Rehydrate(w.t.Context(), f)
		},
	} {
		w, f := aged(t)
		var steps []string
		w.step = func(s string) { steps = append(steps, s) }
		w.do(run(w, f))
		w.wantModified(longAgo)
		for i, step := range steps {
			t.Run(fmt.Sprintf("%s/%d %s", what, i, step), func(t *testing.T) {
				w, f := aged(t)
				w.crashAt(i, func() { _ = run(w, f) })
				w.reopen()
				d := w.dir("t-0")
				if _, err := w.v.Lookup(d, "x"); err == nil { // between the two renames
					w.do(w.v.Rename(d, "x", d, name(w.starts[0]), 0))
				}
				w.wantModified(longAgo)
				w.wantContent(d, name(w.starts[0]), w.logs[w.starts[0]])
			})
		}
	}
}

// A crash in the middle of markRemote: the inode is empty, and its times are those
// of the crash.
func TestTimesOfAHalfEmptiedSegment(t *testing.T) {
	w, f := aged(t)
	w.do(w.v.Rehydrate(t.Context(), f))
	w.crashIn("evict:empty", func() { _ = w.evict("t-0", w.starts[0]) })
	w.close()
	w.do(os.Truncate(filepath.Join(w.path, "t-0", remoteName(name(w.starts[0]))), 0))
	w.open()
	w.wantState("t-0", w.starts[0], Remote)
	w.wantModified(longAgo)
}

func TestTimesWhileFilling(t *testing.T) {
	w, f := aged(t)
	var seen []string
	w.step = func(s string) {
		if f.mu.TryRLock() { // where a stat could be answered
			f.mu.RUnlock()
			seen = append(seen, s)
			w.wantModified(longAgo)
		}
	}
	w.do(w.v.Rehydrate(t.Context(), f))
	if !slices.Contains(seen, "rehydrate:fill:done") || !slices.Contains(seen, "rehydrate:fsync") {
		t.Errorf("looked only at %v", seen)
	}
}

// Times that the broker sets are kept, wherever the file is on its way, also over
// a crash.
func TestTimesSetOnTheWay(t *testing.T) {
	want := time.Unix(1500000000, 0)
	set := func(w *world) {
		w.do(w.mutate(w.dir("t-0"), name(w.starts[0]), Mutation{Kind: Attr}, func(fd int) error {
			return putBack(fd, times{{Sec: want.Unix()}, {Sec: want.Unix()}})
		}))
	}
	chmod := func(w *world) { // moves no times
		w.do(w.mutate(w.dir("t-0"), name(w.starts[0]), Mutation{Kind: Attr}, func(fd int) error { return unix.Fchmod(fd, 0o600) }))
	}
	for _, at := range []string{"rehydrate:fill", "rehydrate:fill:done", "rehydrate:fsync:done"} {
		t.Run(at, func(t *testing.T) {
			for _, crashes := range []bool{false, true} {
				w, f := aged(t)
				w.step = func(s string) {
					if s == at {
						set(w)
						chmod(w)
						w.wantModified(want)
						if crashes {
							panic(crash{s})
						}
					}
				}
				runToCrash(func() { w.do(w.v.Rehydrate(t.Context(), f)) })
				w.wantModified(want)
				w.reopen()
				w.wantModified(want)
			}
		})
	}
	t.Run("leaving", func(t *testing.T) {
		w, f := aged(t)
		w.do(w.v.Rehydrate(t.Context(), f))
		w.crashIn("evict:empty", func() { _ = w.evict("t-0", w.starts[0]) })
		set(w)
		w.close()
		w.do(os.Truncate(filepath.Join(w.path, "t-0", remoteName(name(w.starts[0]))), 0))
		w.open()
		w.wantModified(want)
	})
	t.Run("during the eviction", func(t *testing.T) {
		w, f := aged(t)
		w.do(w.v.Rehydrate(t.Context(), f))
		w.step = func(s string) {
			if s == "evict:times:done" {
				set(w)
			}
		}
		w.wantRefused(w.evict("t-0", w.starts[0]), ReasonChanged)
		w.step = nil
		w.do(w.evict("t-0", w.starts[0]))
		w.wantModified(want)
	})
}

// The kill comes when the record is in the inode, and the times are not.
func TestTimesOverAKillBehindTheRecord(t *testing.T) {
	{
		w, f := aged(t)
		rec, _ := f.Record()
		d := w.dir("t-0")
		w.do(writeRecord(d.FD, first(w), rec, times{unix.NsecToTimespec(longAgo.UnixNano()), unix.NsecToTimespec(longAgo.UnixNano())}))
		w.do(os.Chtimes(filepath.Join(w.path, "t-0", remoteName(first(w))), time.Now(), time.Now()))
		w.reopen()
		w.wantModified(longAgo)
		w.wantState("t-0", w.starts[0], Remote)
	}
	w, f := aged(t) // a rehydration that came as far as a record without times
	rec, _ := f.Record()
	w.do(marker.Write(w.dir("t-0").FD, uploadedName(first(w)), rec))
	w.reopen()
	w.wantModified(longAgo)
}

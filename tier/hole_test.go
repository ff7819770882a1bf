package tier

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
)

func TestHoles(t *testing.T) {
	const n = "00000000000000000042"
	for _, c := range []struct {
		what, path string
		names      []string
		kafka      bool // a hole under Kafka
		unknown    bool // while the layout is not known
	}{
		{"the index alone", "t-0", []string{n + ".index"}, true, true},
		{"beside other files", "t-0", []string{n + ".index", n + ".timeindex", n + ".snapshot", n + ".uploaded"}, true, true},
		{"a neighbour", "t-0", []string{n + ".index", "00000000000000000043.log"}, true, true},
		{"no index", "t-0", []string{n + ".snapshot", n + ".timeindex", n + ".txnindex"}, false, false},
		{"local", "t-0", []string{n + ".index", n + ".log"}, false, false},
		{"remote", "t-0", []string{n + ".index", n + ".remote"}, false, false},
		{"about to be deleted", "t-0", []string{n + ".index", n + ".log.deleted"}, false, false},
		{"about to be deleted, remote", "t-0", []string{n + ".index", n + ".log.deleted.remote"}, false, false},
		{"about to be replaced", "t-0", []string{n + ".index", n + ".log.swap"}, false, false},
		{"deleted", "t-0", []string{n + ".index.deleted", n + ".timeindex.deleted"}, false, false},
		{"only the log deleted", "t-0", []string{n + ".log.deleted"}, false, false},
		{"a marker of the index", "t-0", []string{n + ".index.remote"}, false, false},
		{"a topic being deleted", "t-0.6fd3-delete", []string{n + ".index"}, false, true},
		{"no partition", "somewhere", []string{n + ".index"}, false, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			for kind, want := range map[layout.Kind]bool{layout.Kafka: c.kafka, "": c.unknown, layout.Generic: false} {
				var rules layout.Rules
				if kind != "" {
					var err error
					if rules, err = layout.New(kind, 0); err != nil {
						t.Fatal(err)
					}
				}
				if got := Holes(rules, c.path, c.names); slices.Equal(got, []uint64{42}) != want || len(got) > 0 != want {
					t.Errorf("layout %q: %v", kind, got)
				}
			}
		})
	}
}

// holeWorld has a hole at the first of four segments, and a tombstone of the second.
// It is open.
func holeWorld(t *testing.T) (w *world, logged *bytes.Buffer) {
	logged = &bytes.Buffer{}
	w = newWorld(t, 4)
	w.tune = func(o *Options) { o.Log = slog.New(slog.NewTextHandler(logged, nil)) }
	w.remote(w.starts[0])
	w.do(w.upload("t-0", w.starts[1]))
	w.do(w.v.Unlink(w.dir("t-0"), name(w.starts[1])))
	w.do(w.v.Unlink(w.dir("t-0"), segment.Stem(w.starts[1])+".index"))
	w.close()
	w.do(os.Remove(filepath.Join(w.path, "t-0", remoteName(name(w.starts[0])))))
	w.open()
	return w, logged
}

// wantHeldBack looks whether both objects stay in spite of the tombstone.
func (w *world) wantHeldBack() {
	w.t.Helper()
	w.retireAll()
	if got := w.logObjects(); len(got) != 2 {
		w.t.Fatalf("beside a hole the store has %v", got)
	}
	if due, next := w.v.Due(time.Now(), 10); len(due) != 0 || next.IsZero() {
		w.t.Fatalf("the tombstone is %v, next %v", due, next)
	}
	select {
	case <-w.v.RetireC(): // what was rung for before
	default:
	}
}

// wantGoesOn looks whether the tombstone is due now, without waiting, and goes.
func (w *world) wantGoesOn() {
	w.t.Helper()
	select {
	case <-w.v.RetireC():
	default:
		w.t.Error("nobody is told that tombstones go on")
	}
	due, _ := w.v.Due(time.Now(), 10)
	if _, err := w.v.Retire(w.t.Context(), due); err != nil {
		w.t.Fatal(err)
	}
	if got := w.logObjects(); len(got) != 1 {
		w.t.Errorf("the store has %v", got)
	}
}

func TestHoleFoundAtBoot(t *testing.T) {
	back := func(w *world) { w.write("t-0/"+name(w.starts[0]), w.logs[w.starts[0]]) }
	index := func(w *world) string { return segment.Stem(w.starts[0]) + ".index" }
	for what, mend := range map[string]func(w *world){
		"the broker deletes the index": func(w *world) { w.do(w.v.Unlink(w.dir("t-0"), index(w))) },
		"the broker renames the index": func(w *world) {
			d := w.dir("t-0")
			w.do(w.v.Rename(d, index(w), d, index(w)+".deleted", 0))
		},
		"the segment is put back":                   func(w *world) { back(w); w.partition("t-0").Holes() },
		"the segment is put back through the mount": func(w *world) { w.do(w.create("t-0", name(w.starts[0]))) },
		"the topic is deleted":                      func(w *world) { w.do(w.v.Rename(w.dir("."), "t-0", w.dir("."), "t-0.abc-delete", 0)) },
	} {
		t.Run(what, func(t *testing.T) {
			w, logged := holeWorld(t)
			if got := w.partition("t-0").Holes(); !slices.Equal(got, w.starts[:1]) {
				t.Fatalf("holes %v", got)
			}
			if want := "t-0/" + name(w.starts[0]); strings.Count(logged.String(), want) != 1 {
				t.Errorf("the log does not name %s once: %s", want, logged)
			}
			w.wantHeldBack()
			mend(w)
			for _, p := range w.v.Partitions() {
				if got := p.Holes(); len(got) != 0 {
					t.Errorf("mended, and still %v", got)
				}
			}
			w.wantGoesOn()
		})
	}
	t.Run("the segment is put back before the next start", func(t *testing.T) {
		w, _ := holeWorld(t)
		w.wantHeldBack()
		w.close()
		back(w)
		w.open()
		w.retireAll()
		if got := w.logObjects(); len(got) != 1 {
			t.Errorf("the store has %v", got)
		}
	})
}

// brokerStarts does what Kafka's start does with an index that has no segment.
func (w *world) brokerStarts() {
	w.t.Helper()
	for _, p := range w.v.Partitions() {
		for _, start := range p.Holes() {
			w.do(w.v.Unlink(w.dir(p.Path()), segment.Stem(start)+".index"))
		}
	}
}

// indexGone is what a broker does together with deleting its segment.
func indexGone(w *world) {
	w.do(w.v.Unlink(w.dir("t-0"), segment.Stem(w.starts[0])+".index"))
}

// create makes an empty file as the broker does.
func (w *world) create(dir, name string) error {
	fd, e, err := w.v.Create(w.dir(dir), name, os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	e.File.Release()
	return os.NewFile(uintptr(fd), name).Close()
}

// All segments of a partition are gone: nothing but the indexes says that it was one.
func TestHolesOnly(t *testing.T) {
	w := newWorld(t, 3)
	w.do(w.upload("t-0", w.starts[0]))
	w.do(w.v.Unlink(w.dir("t-0"), name(w.starts[0])))
	w.close()
	for _, start := range w.starts[1:] {
		w.do(os.Remove(filepath.Join(w.path, "t-0", name(start))))
	}
	w.open()
	if got := w.partition("t-0").Holes(); !slices.Equal(got, w.starts[1:]) {
		t.Errorf("holes %v", got)
	}
	w.retireAll()
	if got := w.logObjects(); len(got) != 1 {
		t.Errorf("the store has %v", got)
	}
	w.empty("t-0")
	w.do(w.v.Rmdir(w.dir("."), "t-0"))
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Errorf("the directory is gone, the store has %v", got)
	}
}

// A segment that goes behind the volume's back is seen before anything is deleted,
// but reported only if it stays away.
func TestHoleAtRunTime(t *testing.T) {
	logged := &bytes.Buffer{}
	w := newWorld(t, 4)
	w.tune = func(o *Options) { o.Log = slog.New(slog.NewTextHandler(logged, nil)) }
	w.reopen()
	w.remote(w.starts[0])
	w.do(w.upload("t-0", w.starts[1]))
	w.do(w.v.Unlink(w.dir("t-0"), name(w.starts[1])))
	w.do(w.v.Unlink(w.dir("t-0"), segment.Stem(w.starts[1])+".index"))
	w.do(os.Remove(filepath.Join(w.path, "t-0", remoteName(name(w.starts[0])))))
	w.wantHeldBack()
	if got := w.partition("t-0").Holes(); len(got) != 0 || logged.Len() > 0 {
		t.Errorf("a moment later there are holes %v, log %s", got, logged)
	}
	p := w.partition("t-0")
	w.v.mu.Lock()
	h := p.holes[w.starts[0]]
	h.since = h.since.Add(-holeAge)
	p.holes[w.starts[0]] = h
	w.v.mu.Unlock()
	if got := p.Holes(); !slices.Equal(got, w.starts[:1]) || !strings.Contains(logged.String(), name(w.starts[0])) {
		t.Errorf("later there are holes %v, log %s", got, logged)
	}
}

// A hole in a partition whose incarnation cannot be read holds back everything.
func TestHoleOfAnUnknownPartition(t *testing.T) {
	w, _ := holeWorld(t)
	w.close()
	w.write("t-0/"+partitionFile, []byte("{"))
	w.open()
	w.retireAll()
	if got := w.logObjects(); len(got) != 2 {
		t.Errorf("the store has %v", got)
	}
}

// What the broker deletes through the volume is no hole, whatever it leaves beside.
func TestBrokerLeavesAnIndex(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w := newWorld(t, 3)
		w.do(w.upload("t-0", w.starts[0]))
		w.do(w.upload("t-0", w.starts[1]))
		for _, start := range w.starts[:2] {
			w.do(w.v.Unlink(w.dir("t-0"), name(start)))
			if restart {
				w.reopen()
			}
			w.retireAll()
			if got := w.partition("t-0").Holes(); len(got) > 0 {
				t.Errorf("restart %v: holes %v", restart, got)
			}
			w.do(w.v.Unlink(w.dir("t-0"), segment.Stem(start)+".index"))
		}
		if got := w.logObjects(); len(got) != 0 {
			t.Errorf("restart %v: the store has %v", restart, got)
		}
	}
}

// A segment that went while no tierfs was there leaves its record, which is all that
// says where its bytes are.
func TestRecordOfALostSegment(t *testing.T) {
	lost := func(t *testing.T) *world {
		w := newWorld(t, 3)
		w.do(w.upload("t-0", w.starts[0]))
		w.close()
		w.do(os.Remove(filepath.Join(w.path, "t-0", name(w.starts[0]))))
		w.open()
		w.retireAll()
		if got := w.logObjects(); len(got) != 1 || !slices.Contains(w.below("t-0"), uploadedName(name(w.starts[0]))) {
			t.Fatalf("the store has %v, below are %v", got, w.below("t-0"))
		}
		return w
	}
	t.Run("it is put back", func(t *testing.T) {
		w := lost(t)
		w.write("t-0/"+name(w.starts[0]), w.logs[w.starts[0]])
		w.reopen()
		w.do(w.evict("t-0", w.starts[0]))
		w.wantContent(w.dir("t-0"), name(w.starts[0]), w.logs[w.starts[0]])
	})
	t.Run("its record takes its place", func(t *testing.T) {
		w := lost(t)
		n := name(w.starts[0])
		w.do(os.Rename(filepath.Join(w.path, "t-0", uploadedName(n)), filepath.Join(w.path, "t-0", remoteName(n))))
		w.reopen()
		w.wantContent(w.dir("t-0"), n, w.logs[w.starts[0]])
		if got := w.partition("t-0").Holes(); len(got) > 0 {
			t.Errorf("holes %v", got)
		}
	})
	t.Run("another is written in its place", func(t *testing.T) {
		w := lost(t)
		w.do(w.create("t-0", name(w.starts[0])))
		w.do(w.mutate(w.dir("t-0"), name(w.starts[0]), Mutation{Kind: Write}, overwrite(0, w.logs[w.starts[0]])))
		w.segment("t-0", w.starts[0]).File.Synced()
		w.do(w.upload("t-0", w.starts[0]))
		w.retireAll()
		if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
			t.Errorf("the store has %v, named are %v", got, want)
		}
	})
	t.Run("the index goes too", func(t *testing.T) {
		w := lost(t)
		w.do(w.v.Unlink(w.dir("t-0"), segment.Stem(w.starts[0])+".index"))
		w.retireAll()
		if got := w.logObjects(); len(got) != 0 {
			t.Errorf("the store has %v", got)
		}
	})
}

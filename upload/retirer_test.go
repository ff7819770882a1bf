package upload

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

func TestRetire(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 25)
		w.checkpoint(map[string]uint64{"a-0": 100})
		w.opt.DeleteBatch = 10
		w.opt.Retention.For = fixed(Rule{Tiered: true})
		w.open()
		w.after(time.Minute)
		w.want("a-0", strings.Repeat("r", 10)+strings.Repeat("u", 15)+"l")
		objects := len(w.store.Keys())
		d := w.dir("a-0")
		for i := range 24 { // remote ones and uploaded ones
			w.do(w.v.Unlink(d, filepath.Base(logName("a-0", uint64(i*perSegment)))))
		}
		w.after(59*time.Minute + 59*time.Second)
		if n := len(w.store.Keys()); n != objects {
			t.Fatalf("%d objects of %d before the end of the grace", n, objects)
		}
		w.after(2 * time.Second)
		if n := len(w.store.Keys()); n != 1+2 || len(w.v.Tombstones()) != 0 {
			t.Errorf("%d objects and %d tombstones after the grace", n, len(w.v.Tombstones()))
		}
		if n := w.store.Count("delete"); n != 3 {
			t.Errorf("%d batches of at most 10 for 24 uploads", n)
		}
	})
}

func TestRetireWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		hold func(w *world) (release func())
	}{
		{"for Resume", func(w *world) func() {
			w.b.Pause()
			return w.b.Resume
		}},
		{"for the store", func(w *world) func() {
			w.store.SetHook(func(_ context.Context, op, _ string) error {
				if op == "delete" {
					return objstore.ErrTransient
				}
				return nil
			})
			return func() { w.store.SetHook(nil) }
		}},
		{"for the last open handle", func(w *world) func() {
			d := w.dir("a-0")
			e, err := w.v.Lookup(d, filepath.Base(logName("a-0", 0)))
			w.do(err)
			e.File.Opened(false)
			return func() {
				e.File.Closed(false)
				e.File.Release()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.fill("a-0", 1)
				w.checkpoint(everything)
				w.opt.Retention.For = fixed(Rule{Tiered: true})
				w.open()
				w.after(15 * time.Second)
				w.want("a-0", "rl")
				release := c.hold(w)
				w.do(w.v.Unlink(w.dir("a-0"), filepath.Base(logName("a-0", 0))))
				w.after(2 * time.Hour)
				if n := len(w.store.Keys()); n != 3 {
					t.Fatalf("%d objects left", n)
				}
				if c.name == "for the last open handle" {
					w.after(time.Minute)
				}
				release()
				w.after(time.Minute + 10*time.Second)
				if keys := w.store.Keys(); len(keys) != 1 {
					t.Errorf("objects left: %v", keys)
				}
			})
		})
	}
}

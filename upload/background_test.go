package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

func TestPause(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 4)
		g := w.gate()
		w.open()
		w.after(time.Second)
		w.b.Pause()
		g.release <- struct{}{} // the one under way may finish
		w.after(time.Hour)
		w.want("a-0", "ullll")
		if !w.b.Paused() || !w.b.Status().Paused {
			t.Error("not paused")
		}
		if _, err := w.b.EvictNow(w.t.Context(), nil, true, nil); !errors.Is(err, ErrPaused) {
			t.Errorf("evict while paused: %v", err)
		}
		w.b.Resume()
		close(g.release)
		w.after(time.Second)
		w.want("a-0", "uuuul")
	})
}

func TestStopDuringUpload(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.gate()
		w.open()
		w.after(time.Second)
		w.halt()
		if n := len(w.v.Tombstones()); n != 1 {
			t.Errorf("%d tombstones of an upload that was given up", n)
		}
		if left, err := os.ReadDir(filepath.Join(w.path, ".tierfs/intents")); err != nil || len(left) != 0 {
			t.Errorf("intents left: %v, %v", left, err)
		}
		if _, err := w.b.EvictNow(w.t.Context(), nil, true, nil); !errors.Is(err, ErrStopped) {
			t.Errorf("evict after the end: %v", err)
		}
	})
}

func TestNotOwner(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 2)
		w.checkpoint(map[string]uint64{"a-0": 1000})
		w.open()
		w.after(time.Second)
		w.want("a-0", "uul")
		w.do(w.v.Unlink(w.dir("a-0"), filepath.Base(logName("a-0", 0))))
		// Somebody else takes the volume over; the retirer learns of it.
		owner := "p/" + w.v.Identity().Name + "/owner"
		record, _ := w.store.Bytes(owner)
		other := strings.Replace(string(record), `"epoch":1`, `"epoch":7`, 1)
		w.do(w.store.Put(w.t.Context(), owner, objstore.BytesBody([]byte(other)), objstore.PutOptions{}))
		w.after(2 * time.Hour)
		w.seal("a-0", 20)
		before := w.store.Count("put") + w.store.Count("delete")
		w.after(time.Hour)
		w.want("a-0", "ull")
		if n := w.store.Count("put") + w.store.Count("delete"); n != before || w.store.Count("delete") != 0 {
			t.Errorf("%d puts and deletes by a mount that is not the owner", n-before)
		}
		if _, err := w.b.EvictNow(w.t.Context(), nil, true, nil); !errors.Is(err, tier.ErrNotOwner) {
			t.Errorf("evict: %v", err)
		}
		s := w.b.Status()
		if !errors.Is(s.Owner, tier.ErrNotOwner) || !s.Stalled || len(w.v.Tombstones()) != 1 {
			t.Errorf("status %+v", s)
		}
		if n := strings.Count(w.logs.String(), "not the volume's owner"); n != 1 {
			t.Errorf("said %d times:\n%s", n, w.logs.String())
		}
	})
}

func TestStoreAwayAtStart(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.store.SetHook(func(context.Context, string, string) error { return objstore.ErrTransient })
		w.open()
		w.after(61 * time.Second)
		if s := w.b.Status(); !s.Stalled || s.Owner == nil || len(w.puts.all()) != 0 {
			t.Errorf("status %+v", s)
		}
		w.store.SetHook(nil)
		w.after(11 * time.Second)
		w.want("a-0", "ul")
		if s := w.b.Status(); s.Stalled || s.Owner != nil {
			t.Errorf("status %+v", s)
		}
	})
}

func TestNothingToDoCostsNothing(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		w.opt.Retention = Retention{For: keepAll().For}
		var calls atomic.Int64
		w.opt.Retention.For = func(topic string) Rule {
			calls.Add(1)
			return keepAll().For(topic)
		}
		w.open()
		w.after(10 * time.Second)
		before, requests := calls.Load(), w.requests()
		w.after(time.Hour)
		synctest.Wait()
		if calls.Load() != before || w.requests() != requests {
			t.Errorf("%d looks at a partition and %d requests while nothing changed", calls.Load()-before, w.requests()-requests)
		}
	})
}

func (w *world) requests() int {
	n := 0
	for _, op := range []string{"put", "get", "head", "delete", "list"} {
		n += w.store.Count(op)
	}
	return n
}

func TestFloorRate(t *testing.T) {
	for _, c := range []struct {
		bandwidth   int64
		concurrency int
		want        int64
	}{
		{0, 4, 1 << 20}, {Unlimited, 4, 1 << 20}, {1 << 30, 4, 1 << 20}, {1 << 20, 4, 1 << 17}, {1, 4, 1},
	} {
		t.Run(fmt.Sprint(c.bandwidth), func(t *testing.T) {
			if got := FloorRate(c.bandwidth, c.concurrency); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// A segment of which only the index is left is one whose bytes cannot be found.
func TestHolesAreReported(t *testing.T) {
	bubble(t, func(w *world) {
		starts := w.fill("t-0", 3)
		w.do(os.Remove(filepath.Join(w.path, logName("t-0", starts[1]))))
		w.open()
		if got := w.b.Status().Quarantined; got != 1 {
			t.Errorf("the status counts %d", got)
		}
		if got := w.b.Snapshot().Quarantined; got != 1 {
			t.Errorf("the metric is %d", got)
		}
		w.write(logName("t-0", starts[1]), nil)
		if got := w.b.Status().Quarantined; got != 0 {
			t.Errorf("the segment is back, the status counts %d", got)
		}
	})
}

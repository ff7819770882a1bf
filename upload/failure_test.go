package upload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

func TestBackoff(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.BackoffMax = 2 * time.Second
		w.fill("a-0", 2)
		var failing atomic.Bool
		failing.Store(true)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if failing.Load() && op == "put" && strings.Contains(key, "a-0") {
				return objstore.ErrTransient
			}
			return nil
		})
		w.open()
		w.after(59 * time.Second)
		if s := w.b.Status(); s.Stalled || s.LagBytes == 0 || s.Queued != 2 {
			t.Errorf("after 59 s: %+v", s)
		}
		w.after(4 * time.Second)
		if s := w.b.Status(); !s.Stalled || !strings.Contains(s.StalledWhy, "a-0") {
			t.Errorf("after a minute of failures: stalled %v, %q", s.Stalled, s.StalledWhy)
		}
		var gaps []time.Duration
		at := w.puts.times()
		for i := range at[1:] {
			gaps = append(gaps, at[i+1].Sub(at[i]))
		}
		const ms = time.Millisecond
		want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 2000 * ms, 2000 * ms}
		if !slices.Equal(gaps[:len(want)], want) {
			t.Errorf("pauses %v, want %v", gaps[:len(want)], want)
		}
		if keys := slices.Compact(w.puts.all()); len(keys) != 1 {
			t.Errorf("an outage used %d keys: %v", len(keys), keys)
		}
		failing.Store(false)
		w.after(3 * time.Second)
		w.want("a-0", "uul")
		if s := w.b.Status(); s.Stalled || s.LagBytes != 0 || s.Queued != 0 {
			t.Errorf("after the outage: %+v", s)
		}
		if n := len(w.v.Tombstones()); n != 0 {
			t.Errorf("an outage left %d tombstones", n)
		}
		// Success resets the pause.
		failing.Store(true)
		tries := len(w.puts.times())
		w.seal("a-0", 20)
		w.after(450 * time.Millisecond)
		if at := w.puts.times()[tries:]; len(at) < 2 || at[1].Sub(at[0]) != 100*time.Millisecond {
			t.Errorf("tries after a success at %v", at)
		}
		if n := strings.Count(w.logs.String(), "upload failed"); n != 3 {
			t.Errorf("%d log lines of failures, want one at the start of each outage and one a minute:\n%s", n, w.logs.String())
		}
	})
}

func TestFailureBlocksOnePartition(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		w.fill("b-0", 6)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if op == "put" && strings.Contains(key, "a-0") {
				return objstore.ErrAuth
			}
			return nil
		})
		w.open()
		w.after(5 * time.Second)
		w.want("a-0", "llll")
		w.want("b-0", "uuuuuul")
		w.after(2 * time.Minute)
		if s := w.b.Status(); !s.Stalled || s.NotEvictable[ReasonFailing].Segments != 1 {
			t.Errorf("status %+v", s)
		}
		w.store.SetHook(nil)
		w.after(11 * time.Second)
		w.want("a-0", "uuul")
	})
}

func TestOutageTriesOneAtATime(t *testing.T) {
	bubble(t, func(w *world) {
		for i := range 20 {
			w.fill(fmt.Sprintf("a-%d", i), 2)
		}
		var mu sync.Mutex
		inside, most := 0, 0
		down := true
		w.store.SetHook(func(ctx context.Context, op, key string) error {
			mu.Lock()
			out := down && strings.Contains(key, "/a-")
			if out {
				inside++
				most = max(most, inside)
			}
			mu.Unlock()
			if !out {
				return nil
			}
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			inside--
			mu.Unlock()
			return objstore.ErrTransient
		})
		w.open()
		w.after(30 * time.Second)
		mu.Lock()
		most = 0
		mu.Unlock()
		before := len(w.puts.all())
		w.after(10 * time.Minute)
		mu.Lock()
		if most != 1 {
			t.Errorf("%d tries at once during an outage", most)
		}
		down = false
		mu.Unlock()
		if n := len(w.puts.all()) - before; n > 70 || n < 50 {
			t.Errorf("%d tries in ten minutes, want about one in ten seconds", n)
		}
		w.after(15 * time.Second)
		for i := range 20 {
			w.want(fmt.Sprintf("a-%d", i), "uul")
		}
	})
}

func TestNotWhole(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		name := logName("a-0", 10)
		log, err := os.ReadFile(filepath.Join(w.path, name))
		w.do(err)
		bad := slices.Clone(log)
		bad[len(bad)-1] ^= 1
		w.write(name, bad)
		var looks atomic.Int64
		w.tier.Step = func(step string) {
			if step == "upload:fsync" {
				looks.Add(1)
			}
		}
		w.open()
		w.after(time.Hour)
		w.want("a-0", "ulul")
		if looks.Load() != 3 {
			t.Errorf("%d looks at 3 segments", looks.Load())
		}
		s := w.b.Status()
		if s.NotEvictable["checksum mismatch"].Segments != 0 || s.NotEvictable[tier.ReasonNotWhole].Segments != 1 || s.NotEvictable[tier.ReasonFloor].Segments != 1 {
			t.Errorf("not evictable: %v", s.NotEvictable)
		}
		if s.Stalled || s.Queued != 0 || s.LagBytes != int64(len(log)) {
			t.Errorf("status %+v", s)
		}
		if n := strings.Count(w.logs.String(), "left alone"); n != 1 {
			t.Errorf("said %d times", n)
		}
		f := w.edit("a-0", filepath.Base(name))
		f.write(0, log)
		f.close()
		w.after(time.Second)
		w.want("a-0", "uuul")
	})
}

// A segment that the store finds too large is left alone until it changes: sending
// it again would cost its bytes each time, and leave a tombstone.
func TestTooLargeForTheStore(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 2)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if op == "put" && strings.HasSuffix(key, ".log") && strings.Contains(key, fmt.Sprintf("/%020d-", 0)) {
				return objstore.ErrTooLarge
			}
			return nil
		})
		w.open()
		w.after(time.Hour)
		w.want("a-0", "lul")
		logs := 0
		for _, key := range w.puts.all() {
			if strings.HasSuffix(key, ".log") {
				logs++
			}
		}
		if s := w.b.Status(); logs != 2 || s.Stalled || s.NotEvictable[tier.ReasonTooLarge].Segments != 1 {
			t.Errorf("%d segments were sent; %+v", logs, s)
		}
		w.store.SetHook(nil)
		f := w.edit("a-0", filepath.Base(logName("a-0", 0)))
		f.write(0, []byte{0}) // what is there
		f.close()
		w.after(time.Second)
		w.want("a-0", "uul")
	})
}

func TestSideFileBeingWritten(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.openVolume()
		f := w.create("a-0", "00000000000000000000.timeindex", make([]byte, 12))
		defer f.close()
		w.run()
		w.after(30 * time.Second)
		w.want("a-0", "ll")
		if s := w.b.Status(); s.Stalled || s.NotEvictable[tier.ReasonSideFile].Segments != 1 {
			t.Errorf("status %+v", s)
		}
		f.sync()
		w.after(watchPace + time.Millisecond)
		w.want("a-0", "ul")
		if !slices.ContainsFunc(w.store.Keys(), func(k string) bool { return strings.HasSuffix(k, ".timeindex") }) {
			t.Errorf("objects: %v", w.store.Keys())
		}
	})
}

func TestChangedDuringUpload(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		g := w.gate()
		w.open()
		w.after(time.Second)
		f := w.edit("a-0", filepath.Base(logName("a-0", 0)))
		one := make([]byte, 1)
		_, err := unix.Pread(f.fd, one, 0)
		w.do(err)
		f.write(0, one) // the same byte: only the count of changes tells
		close(g.release)
		w.after(2 * time.Second)
		w.want("a-0", "ul")
		logs := w.puts.logs()
		if len(logs) != 2 || len(w.v.Tombstones()) != 1 {
			t.Errorf("puts %v, %d tombstones", logs, len(w.v.Tombstones()))
		}
		f.close()
	})
}

func TestStoreThatKeepsWrongBytes(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.Features = nil
		w.fill("a-0", 1)
		var fine atomic.Bool
		w.store.SetAfter(func(_ context.Context, op, key string) error {
			if !fine.Load() && op == "put" && strings.HasSuffix(key, ".log") {
				w.store.Corrupt(key, func(b []byte) []byte {
					b[0] ^= 1
					return b
				})
			}
			return nil
		})
		w.open()
		w.after(5 * time.Second)
		w.want("a-0", "ll")
		if n := len(w.v.Tombstones()); n < 2 {
			t.Errorf("%d tombstones of uploads that did not verify", n)
		}
		fine.Store(true)
		w.after(11 * time.Second)
		w.want("a-0", "ul")
	})
}

func TestDeletedWhileItFails(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 2)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if op == "put" && strings.Contains(key, "a-0") {
				return objstore.ErrTransient
			}
			return nil
		})
		w.open()
		w.after(time.Minute)
		w.do(w.v.Unlink(w.dir("a-0"), filepath.Base(logName("a-0", 0))))
		w.after(time.Second)
		if n := len(w.v.Tombstones()); n != 1 {
			t.Errorf("%d tombstones", n)
		}
		w.store.SetHook(nil)
		w.after(11 * time.Second)
		w.want("a-0", "ul")
	})
}

func TestTheNextOneStartsAfresh(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 2)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if op == "put" && short(key) == "a-0/0" {
				return objstore.ErrInvalid
			}
			return nil
		})
		w.open()
		w.after(2 * time.Minute)
		if s := w.b.Status(); !s.Stalled {
			t.Errorf("status %+v", s)
		}
		w.do(w.v.Unlink(w.dir("a-0"), filepath.Base(logName("a-0", 0))))
		w.after(time.Second)
		w.want("a-0", "ul")
		if s := w.b.Status(); s.Stalled {
			t.Errorf("status %+v", s)
		}
	})
}

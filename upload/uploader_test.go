package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment/segmenttest"
	"github.com/tierfs/tierfs/tier"
)

// gatekeeper holds puts of segments until the test lets them go.
type gatekeeper struct {
	mu      sync.Mutex
	inside  map[string]int // by partition
	most    int
	release chan struct{}
}

func (g *gatekeeper) hook(ctx context.Context, op, key string) error {
	if op != "put" || !strings.HasSuffix(key, ".log") {
		return nil
	}
	partition, _, _ := strings.Cut(short(key), "/")
	g.mu.Lock()
	g.inside[partition]++
	g.most = max(g.most, g.inside[partition])
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.inside[partition]--
		g.mu.Unlock()
	}()
	select {
	case <-g.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gatekeeper) total() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, k := range g.inside {
		n += k
	}
	return n
}

func (w *world) gate() *gatekeeper {
	g := &gatekeeper{inside: map[string]int{}, release: make(chan struct{})}
	w.store.SetHook(g.hook)
	return g
}

func TestUploadOrder(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 4)
		w.fill("b-0", 3)
		w.fill("__consumer_offsets-0", 2)
		w.open()
		w.after(time.Second)
		w.want("a-0", "uuuul")
		w.want("b-0", "uuul")
		w.want("__consumer_offsets-0", "lll")
		for _, p := range []string{"a-0", "b-0"} {
			var of []string
			for _, k := range w.puts.logs() {
				if strings.HasPrefix(k, p) {
					of = append(of, k)
				}
			}
			want := []string{p + "/0", p + "/10", p + "/20", p + "/30"}[:len(of)]
			if !slices.Equal(of, want) {
				t.Errorf("order %v, want %v", of, want)
			}
		}
		keys := w.puts.all()
		for i, k := range keys {
			if strings.HasSuffix(k, ".index") && i+1 < len(keys) && strings.TrimSuffix(k, ".index") == strings.TrimSuffix(keys[i+1], ".log") {
				return // a file beside a segment goes before it
			}
		}
		t.Errorf("no index was put right before its segment: %v", keys)
	})
}

func TestPutOptions(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.opt.StorageClass = "COLD"
		w.open()
		w.after(time.Second)
		for key, o := range w.puts.opts {
			log := strings.HasSuffix(key, ".log")
			if (o.StorageClass == "COLD") != log || !o.IfAbsent || (len(o.Metadata) > 0) != log {
				t.Errorf("%s was put with %+v", short(key), o)
			}
		}
	})
}

func TestOneUploadPerPartition(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 12)
		g := w.gate()
		w.open()
		w.after(time.Minute) // within the deadline
		if n := g.total(); n != 1 {
			t.Fatalf("%d uploads of one partition at once", n)
		}
		close(g.release)
		w.after(time.Second)
		w.want("a-0", strings.Repeat("u", 12)+"l")
		if g.most != 1 {
			t.Errorf("%d uploads of one partition at once", g.most)
		}
	})
}

func TestConcurrencyGrows(t *testing.T) {
	for _, c := range []struct {
		partitions, each, now, patient int
	}{
		{1, 1, 1, 1},
		{2, 1, 1, 2},
		{3, 1, 2, 3},
		{5, 1, 3, 4},
		{2, 5, 2, 2},
		{8, 5, 4, 4},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.partitions, c.each), func(t *testing.T) {
			bubble(t, func(w *world) {
				for i := range c.partitions {
					w.fill(fmt.Sprintf("a-%d", i), c.each)
				}
				g := w.gate()
				w.open()
				w.after(time.Second)
				if n := g.total(); n != c.now {
					t.Errorf("%d uploads run at first, want %d", n, c.now)
				}
				w.after(patience)
				if n := g.total(); n != c.patient {
					t.Errorf("%d uploads run after a while, want %d", n, c.patient)
				}
				close(g.release)
			})
		})
	}
}

func TestPressedGoFirst(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.Concurrency = 1
		for i := range 5 {
			w.fill(fmt.Sprintf("a-%d", i), 1)
		}
		g := w.gate()
		w.open()
		w.after(time.Second)
		first := w.puts.logs()[0]
		var last string
		for i := range 5 {
			if p := fmt.Sprintf("a-%d", i); !strings.HasPrefix(first, p) {
				last = p
			}
		}
		w.b.uploader.press(w.partition(last))
		g.release <- struct{}{}
		w.after(time.Second)
		if got := w.puts.logs()[1]; got != last+"/0" {
			t.Errorf("%s came second, want %s", got, last)
		}
		close(g.release)
	})
}

func TestBackoff(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.BackoffMax = 2 * time.Second
		w.fill("a-0", 2)
		failing := true
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if failing && op == "put" && strings.Contains(key, "a-0") {
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
		for i := range w.puts.at[1:] {
			gaps = append(gaps, w.puts.at[i+1].Sub(w.puts.at[i]))
		}
		want := []time.Duration{100, 200, 400, 800, 1600, 2000, 2000}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(gaps[:len(want)], want) {
			t.Errorf("pauses %v, want %v", gaps[:len(want)], want)
		}
		if keys := slices.Compact(w.puts.all()); len(keys) != 1 {
			t.Errorf("an outage used %d keys: %v", len(keys), keys)
		}
		failing = false
		w.after(3 * time.Second)
		w.want("a-0", "uul")
		if s := w.b.Status(); s.Stalled || s.LagBytes != 0 || s.Queued != 0 {
			t.Errorf("after the outage: %+v", s)
		}
		if n := len(w.v.Tombstones()); n != 0 {
			t.Errorf("an outage left %d tombstones", n)
		}
		// Success resets the pause.
		failing = true
		w.puts.at = nil
		w.seal("a-0", 20)
		w.after(450 * time.Millisecond)
		if len(w.puts.at) < 2 || w.puts.at[1].Sub(w.puts.at[0]) != 100*time.Millisecond {
			t.Errorf("tries after a success at %v", w.puts.at)
		}
		if n := strings.Count(w.logs.String(), "upload failed"); n != 3 {
			t.Errorf("%d log lines of failures, want one at the start of each outage and one a minute:\n%s", n, w.logs.String())
		}
	})
}

// seal makes the segment at start, which is empty so far, whole and sealed.
func (w *world) seal(dir string, start uint64) {
	w.t.Helper()
	log, _, next := segmenttest.Kafka(start, 2, perSegment/2, 100)
	f := w.edit(dir, filepath.Base(logName(dir, start)))
	f.write(0, log)
	w.create(dir, filepath.Base(logName(dir, next)), nil).close()
	f.close()
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
		looks := 0
		w.tier.Step = func(step string) {
			if step == "upload:fsync" {
				looks++
			}
		}
		w.open()
		w.after(time.Hour)
		w.want("a-0", "ulul")
		if looks != 3 {
			t.Errorf("%d looks at 3 segments", looks)
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

func TestUploadsSoonAfterSealing(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 0)
		w.open()
		w.after(time.Minute)
		for i := range uint64(3) {
			w.seal("a-0", i*perSegment)
			w.after(time.Second)
			w.want("a-0", strings.Repeat("u", int(i)+1)+"l")
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
		spoil := true
		w.store.SetAfter(func(_ context.Context, op, key string) error {
			if spoil && op == "put" && strings.HasSuffix(key, ".log") {
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
		spoil = false
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

func TestDeadline(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.SegmentTimeout = 7 * time.Second
		w.fill("a-0", 1)
		g := w.gate()
		w.open()
		w.after(6 * time.Second)
		if s := w.b.Status(); s.NotEvictable[ReasonFailing].Segments != 0 || g.total() != 1 {
			t.Errorf("status %+v", s)
		}
		w.after(1500 * time.Millisecond)
		if s := w.b.Status(); len(w.puts.logs()) < 2 {
			t.Errorf("no second try: %+v", s)
		}
		close(g.release)
	})
	t.Run("grows with the size", func(t *testing.T) {
		o := Options{SegmentTimeout: time.Minute, Bandwidth: Unlimited, Concurrency: 4}
		if d := o.deadline(1<<30, false); d != time.Minute+1024*time.Second {
			t.Errorf("%v", d)
		}
		if d := o.deadline(1<<30, true); d != time.Minute+2048*time.Second {
			t.Errorf("read back: %v", d)
		}
		o.Bandwidth = 2 << 20 // 512 KiB/s each
		if d := o.deadline(1<<20, false); d != time.Minute+4*time.Second {
			t.Errorf("at a low bandwidth: %v", d)
		}
	})
}

func TestBandwidth(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.Bandwidth = 64 << 10
		w.do(os.Mkdir(filepath.Join(w.path, "a-0"), 0o755))
		log, _, next := segmenttest.Kafka(0, 64, 10, 1000)
		w.write(logName("a-0", 0), log)
		w.write(logName("a-0", next), nil)
		w.open()
		need := time.Duration(len(log)) * time.Second / (64 << 10)
		w.after(need * 9 / 10)
		w.want("a-0", "ll")
		w.after(need / 5)
		w.want("a-0", "ul")
	})
}

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
		if _, err := w.b.EvictNow(t.Context(), nil, true, nil); !errors.Is(err, ErrPaused) {
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
		if _, err := w.b.EvictNow(t.Context(), nil, true, nil); !errors.Is(err, ErrStopped) {
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
		w.do(w.store.Put(t.Context(), owner, objstore.BytesBody([]byte(other)), objstore.PutOptions{}))
		w.after(2 * time.Hour)
		w.seal("a-0", 20)
		before := w.store.Count("put") + w.store.Count("delete")
		w.opt.Retention = Retention{}
		w.after(time.Hour)
		w.want("a-0", "ull")
		if n := w.store.Count("put") + w.store.Count("delete"); n != before || w.store.Count("delete") != 0 {
			t.Errorf("%d puts and deletes by a mount that is not the owner", n-before)
		}
		if _, err := w.b.EvictNow(t.Context(), nil, true, nil); !errors.Is(err, tier.ErrNotOwner) {
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

func TestTieredStorageOff(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("keep-0", 2)
		w.fill("tier-0", 2)
		w.opt.Retention.For = func(topic string) Rule { return Rule{Tiered: topic != "keep", Size: 0} }
		w.checkpoint(map[string]uint64{"keep-0": 1000, "tier-0": 1000})
		w.open()
		w.after(15 * time.Second)
		w.want("keep-0", "lll")
		w.want("tier-0", "rrl")
		if a := w.b.Status().NotEvictable[ReasonOff]; a.Segments != 3 {
			t.Errorf("%+v", a)
		}
	})
}

func TestQuietTime(t *testing.T) {
	bubble(t, func(w *world) {
		w.tier.Layout, w.tier.QuietTime = layout.Generic, time.Minute
		w.fill("a", 1)
		name := filepath.Join(w.path, logName("a", 0))
		w.do(os.Chtimes(name, time.Now(), time.Now()))
		looks := 0
		w.tier.Step = func(step string) {
			if step == "upload:fsync" {
				looks++
			}
		}
		w.open()
		w.after(59 * time.Second)
		w.want("a", "ll")
		if looks != 0 {
			t.Errorf("looked at a file %d times that was just written", looks)
		}
		w.after(2 * time.Second)
		w.want("a", "ul")
	})
}

func TestNothingToDoCostsNothing(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		w.opt.Retention = Retention{For: keepAll().For}
		calls := 0
		w.opt.Retention.For = func(topic string) Rule {
			calls++
			return keepAll().For(topic)
		}
		w.open()
		w.after(10 * time.Second)
		before, requests := calls, w.requests()
		w.after(time.Hour)
		synctest.Wait()
		if calls != before || w.requests() != requests {
			t.Errorf("%d looks at a partition and %d requests while nothing changed", calls-before, w.requests()-requests)
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

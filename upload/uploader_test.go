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

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment/segmenttest"
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
			base, isLog := strings.CutSuffix(k, ".log")
			if isLog && !slices.Contains(keys[:i], base+".index") {
				t.Errorf("no index was put before %s", short(k))
			}
		}
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

// seal makes the segment at start, which is empty so far, whole and sealed.
func (w *world) seal(dir string, start uint64) {
	w.t.Helper()
	log, _, next := segmenttest.Kafka(start, 2, perSegment/2, 1000)
	f := w.edit(dir, filepath.Base(logName(dir, start)))
	f.write(0, log)
	w.create(dir, filepath.Base(logName(dir, next)), nil).close()
	f.close()
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
		var looks atomic.Int64
		w.tier.Step = func(step string) {
			if step == "upload:fsync" {
				looks.Add(1)
			}
		}
		w.open()
		w.after(59 * time.Second)
		w.want("a", "ll")
		if looks.Load() != 0 {
			t.Errorf("looked at a file %d times that was just written", looks.Load())
		}
		w.after(2 * time.Second)
		w.want("a", "ul")
	})
}

package upload

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

func TestEvictNowDue(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		w.fill("b-0", 2)
		w.checkpoint(everything)
		g := w.gate()
		w.opt.Retention.For = func(topic string) Rule {
			if topic == "a" {
				return Rule{Tiered: true, Age: time.Duration(Unlimited), Size: 2*segmentSize + 100}
			}
			return keepAll().For(topic)
		}
		w.open()
		close(g.release)
		var steps []string
		r, err := w.b.EvictNow(w.t.Context(), nil, false, func(s Step) {
			steps = append(steps, s.Action+" "+short3(s.Segment))
			if s.Total == 0 || s.Done > s.Total || (s.Action == "evict") != (s.Done > 0) {
				t.Errorf("step %+v", s)
			}
		})
		w.do(err)
		if s := w.states("a-0"); s[0] != 'r' { // the others are on their way
			t.Errorf("a-0 is %s", s)
		}
		if r.Evicted.Segments != 1 || len(r.Stayed) != 0 || r.Evicted.Bytes < 10000 {
			t.Errorf("%+v", r)
		}
		if len(steps) == 0 || steps[len(steps)-1] != "evict a-0/0" {
			t.Errorf("steps %v", steps)
		}
		w.after(10 * time.Second)
		w.want("b-0", "uul")
	})
}

func TestEvictNowAll(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		w.fill("b-0", 3)
		w.fill("c-0", 3)
		w.fill("__consumer_offsets-0", 1)
		w.fill("off-0", 1)
		w.opt.Retention.For = func(topic string) Rule {
			r := keepAll().For(topic)
			r.Tiered = topic != "off"
			return r
		}
		w.checkpoint(map[string]uint64{"a-0": 20, "b-0": 30, "c-0": 30})
		w.spoil("b-0", 10)
		w.do(os.Link(filepath.Join(w.path, logName("c-0", 10)), filepath.Join(w.path, "c-0/backup")))
		w.open()
		r, err := w.b.EvictNow(w.t.Context(), nil, true, nil)
		w.do(err)
		w.want("a-0", "rrul")
		w.want("b-0", "rlul")
		w.want("c-0", "ruul")
		want := map[layout.Reason]int64{
			layout.RecoveryPoint: 1, layout.InternalTopic: 2, ReasonOff: 2,
			tier.ReasonNotWhole: 1, tier.ReasonFloor: 1, tier.ReasonLinked: 1, ReasonBehind: 1, tier.ReasonActive: 3,
		}
		if got := stayed(r); !maps.Equal(got, want) {
			t.Errorf("stayed %v, want %v", got, want)
		}
		if r.Evicted.Segments != 4 || r.Uploaded.Segments < 4 {
			t.Errorf("%+v", r)
		}
	})
}

func TestEvictNowBehindTheBackground(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		w.fill("b-0", 1)
		w.checkpoint(everything)
		w.open()
		w.after(time.Second)
		w.want("a-0", "uuul")
		onlyA := func(topic string) bool { return topic == "a" }
		r, err := w.b.EvictNow(w.t.Context(), onlyA, true, nil)
		w.do(err)
		three := Amount{3, 3 * segmentSize}
		if r.Uploaded != (Amount{}) || r.UploadedBefore != three || r.Evicted != three || r.EvictedBefore != (Amount{}) {
			t.Errorf("first: %+v", r)
		}
		r, err = w.b.EvictNow(w.t.Context(), onlyA, false, nil)
		w.do(err)
		if r.Uploaded != (Amount{}) || r.UploadedBefore != (Amount{}) || r.Evicted != (Amount{}) || r.EvictedBefore != three {
			t.Errorf("again: %+v", r)
		}
	})
}

func TestEvictNowTopics(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.fill("b-0", 1)
		w.checkpoint(everything)
		w.open()
		w.after(time.Second)
		_, err := w.b.EvictNow(w.t.Context(), func(topic string) bool { return topic == "b" }, true, nil)
		w.do(err)
		w.want("a-0", "ul")
		w.want("b-0", "rl")
	})
}

func TestEvictNowStoreFails(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 2)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if op == "put" && strings.HasSuffix(key, ".log") {
				return objstore.ErrTransient
			}
			return nil
		})
		w.open()
		w.after(time.Second)
		r, err := w.b.EvictNow(w.t.Context(), nil, true, nil)
		w.do(err)
		if got := stayed(r); !maps.Equal(got, map[layout.Reason]int64{ReasonFailing: 1, tier.ReasonNotYet: 1, tier.ReasonActive: 1}) {
			t.Errorf("stayed %v", got)
		}
	})
}

func TestEvictNowFileBeingWritten(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.openVolume()
		f := w.create("a-0", "00000000000000000000.timeindex", make([]byte, 12))
		defer f.close()
		w.run()
		w.after(time.Second)
		began := time.Now()
		r, err := w.b.EvictNow(w.t.Context(), nil, true, nil)
		w.do(err)
		if d := time.Since(began); r.Stayed[tier.ReasonSideFile].Segments != 1 || d < refusedLong || d > refusedLong+5*time.Second {
			t.Errorf("after %v: %+v", d, r)
		}
	})
}

func TestEvictNowCallerLeaves(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.gate()
		w.open()
		w.after(time.Second)
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		if _, err := w.b.EvictNow(ctx, nil, true, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

func TestEvictNowPaused(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 1)
		w.gate()
		w.open()
		w.after(time.Second)
		got := make(chan error, 1)
		go func() {
			_, err := w.b.EvictNow(w.t.Context(), nil, true, nil)
			got <- err
		}()
		w.after(time.Second)
		w.b.Pause()
		if err := <-got; !errors.Is(err, ErrPaused) {
			t.Errorf("%v", err)
		}
	})
}

// spoil damages a segment of a partition that is not open yet.
func (w *world) spoil(dir string, start uint64) {
	w.t.Helper()
	name := filepath.Join(w.path, logName(dir, start))
	b, err := os.ReadFile(name)
	w.do(err)
	b[len(b)-1] ^= 1
	w.do(os.WriteFile(name, b, 0o644))
}

// short3 turns t-0/00000000000000000010.log into t-0/10.
func short3(path string) string {
	dir, base := filepath.Split(path)
	n := strings.TrimLeft(strings.TrimSuffix(base, ".log"), "0")
	if n == "" {
		n = "0"
	}
	return dir + n
}

func TestEvictNowAtStart(t *testing.T) {
	for _, c := range []struct {
		name string
		hook func(context.Context, string, string) error
		want error
	}{
		{"waits for the owner", func(_ context.Context, op, _ string) error {
			time.Sleep(time.Second)
			return nil
		}, nil},
		{"does not wait for a store that is away", func(context.Context, string, string) error {
			return objstore.ErrTransient
		}, objstore.ErrTransient},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.fill("a-0", 1)
				w.checkpoint(everything)
				w.store.SetHook(c.hook)
				w.open()
				if _, err := w.b.EvictNow(w.t.Context(), nil, true, nil); !errors.Is(err, c.want) {
					t.Errorf("%v", err)
				}
				if c.want == nil {
					w.want("a-0", "rl")
				}
			})
		})
	}
}

func TestEvictNowDoesNotPoll(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 5)
		w.checkpoint(everything)
		g := w.gate()
		w.open()
		w.after(time.Second)
		close(g.release)
		w.store.SetHook(func(_ context.Context, op, _ string) error {
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		began := time.Now()
		_, err := w.b.EvictNow(w.t.Context(), nil, true, nil)
		w.do(err)
		w.want("a-0", "rrrrrl")
		if d := time.Since(began); d > 500*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

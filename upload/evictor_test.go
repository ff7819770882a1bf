package upload

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

func fixed(r Rule) func(string) Rule { return func(string) Rule { return r } }

var everything = map[string]uint64{"a-0": 1000, "a-1": 1000, "b-0": 1000, "c-0": 1000}

func TestEvictByAge(t *testing.T) {
	t.Run("of the records", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.fill("a-0", 3) // records of an hour ago, 10 ms a segment
			w.checkpoint(everything)
			w.opt.Retention.For = fixed(Rule{Tiered: true, Age: 2 * time.Hour, Size: Unlimited})
			w.open()
			w.after(59 * time.Minute)
			w.want("a-0", "uuul")
			w.after(time.Minute + 10*time.Second)
			w.want("a-0", "rrrl")
		})
	})
	t.Run("of the file", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.tier.Layout = layout.Generic // its records have no times
			w.fill("a", 2)
			for i, age := range []time.Duration{time.Hour, 10 * time.Minute} {
				at := time.Now().Add(-age)
				w.do(os.Chtimes(filepath.Join(w.path, logName("a", uint64(i*perSegment))), at, at))
			}
			w.opt.Retention.For = fixed(Rule{Tiered: true, Age: time.Hour, Size: Unlimited})
			w.open()
			w.after(10 * time.Second)
			w.want("a", "rul")
			w.after(49 * time.Minute)
			w.want("a", "rul")
			w.after(time.Minute + 5*time.Second)
			w.want("a", "rrl")
		})
	})
	t.Run("timestamps of the future do not count", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.do(os.Mkdir(filepath.Join(w.path, "a-0"), 0o755))
			log := segmenttest.KafkaBatch(0, time.Now().Add(1000*time.Hour), [][]byte{[]byte("x")})
			w.write(logName("a-0", 0), log)
			w.write(logName("a-0", 1), nil)
			at := time.Now().Add(-time.Hour)
			w.do(os.Chtimes(filepath.Join(w.path, logName("a-0", 0)), at, at))
			w.checkpoint(everything)
			w.opt.Retention.For = fixed(Rule{Tiered: true, Age: time.Hour, Size: Unlimited})
			w.open()
			w.after(10 * time.Second)
			w.want("a-0", "rl")
		})
	})
}

func TestEvictBySize(t *testing.T) {
	t.Run("each partition its share", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.fill("a-0", 5)
			w.fill("a-1", 3)
			w.fill("b-0", 4)
			w.checkpoint(everything)
			w.opt.Retention.For = func(topic string) Rule {
				size := map[string]int64{"a": 5 * segmentSize, "b": Unlimited}[topic]
				return Rule{Tiered: true, Age: time.Duration(Unlimited), Size: size}
			}
			w.open()
			w.after(10 * time.Second)
			w.want("a-0", "rrruul") // two and a half segments each
			w.want("a-1", "ruul")
			w.want("b-0", "uuuul")
		})
	})
	t.Run("0 keeps nothing that may go", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.fill("a-0", 2)
			w.checkpoint(everything)
			w.opt.Retention.For = fixed(Rule{Tiered: true, Age: time.Duration(Unlimited)})
			w.open()
			w.after(10 * time.Second)
			w.want("a-0", "rrl")
			w.seal("a-0", 20)
			w.after(10 * time.Second)
			w.want("a-0", "rrrl")
		})
	})
	t.Run("the active segment grows", func(t *testing.T) {
		bubble(t, func(w *world) {
			w.fill("a-0", 2)
			w.checkpoint(everything)
			w.opt.Retention.For = fixed(Rule{Tiered: true, Age: time.Duration(Unlimited), Size: 3 * segmentSize})
			w.open()
			w.after(10 * time.Second)
			w.want("a-0", "uul")
			f := w.edit("a-0", filepath.Base(logName("a-0", 20)))
			f.write(0, make([]byte, 2*segmentSize-100))
			w.after(10 * time.Second)
			w.want("a-0", "rul")
			f.close()
		})
	})
}

func TestEvictionWaitsForCheckpoints(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 3)
		w.checkpoint(map[string]uint64{"a-0": 5})
		w.opt.Retention.For = fixed(Rule{Tiered: true})
		w.open()
		w.after(time.Hour)
		w.want("a-0", "uuul")
		if a := w.b.Status().NotEvictable[layout.RecoveryPoint]; a.Segments != 3 {
			t.Errorf("%+v", a)
		}
		w.checkpoint(map[string]uint64{"a-0": 20})
		w.after(10 * time.Second)
		w.want("a-0", "rrul")
	})
}

func TestEvictionFailureIsTriedAgain(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 2)
		w.checkpoint(everything)
		w.open()
		w.after(time.Second)
		w.close()
		// A pair found at boot is compared with the store.
		w.opt.Retention.For = fixed(Rule{Tiered: true})
		var back atomic.Bool
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if !back.Load() && op == "head" && strings.HasSuffix(key, ".log") {
				return objstore.ErrTransient
			}
			return nil
		})
		w.open()
		w.after(10 * time.Minute)
		w.want("a-0", "uul")
		if n := strings.Count(w.logs.String(), "eviction failed"); n < 5 || n > 20 {
			t.Errorf("%d tries in ten minutes", n)
		}
		back.Store(true)
		w.after(evictPause + evictTick)
		w.want("a-0", "rrl")
	})
}

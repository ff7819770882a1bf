package upload

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

// TestStallShowsBehindRetries: the store's own retries do not hide an outage.
func TestStallShowsBehindRetries(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.Store = objstore.Decorate(w.puts, objstore.Options{Retry: objstore.RetryOptions{Patience: Patience}})
		w.opt.SegmentTimeout = 20 * time.Minute // what 1 GiB has
		for i := range 8 {
			w.fill(fmt.Sprintf("a-%d", i), 2)
		}
		var down atomic.Bool
		down.Store(true)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if down.Load() && strings.Contains(key, "/a-") {
				return objstore.ErrTransient
			}
			return nil
		})
		w.open()
		w.after(90 * time.Second)
		if s := w.b.Status(); !s.Stalled {
			t.Errorf("not stalled after 90 s without a store: %+v", s)
		}
		down.Store(false)
		w.after(30 * time.Second)
		if s := w.b.Status(); s.Stalled || s.LagBytes != 0 {
			t.Errorf("after the outage: %+v", s)
		}
		log := w.logs.String() // one line for all partitions at once, one after a minute, one when it is over
		if failed, again := strings.Count(log, "upload failed"), strings.Count(log, "uploads work again"); failed != 2 || again != 1 {
			t.Errorf("%d lines about failures, %d about their end:\n%s", failed, again, log)
		}
	})
}

// TestManyThatFailAlone: partitions that the store refuses do not keep the others
// from it, however many they are.
func TestManyThatFailAlone(t *testing.T) {
	bubble(t, func(w *world) {
		for i := range maxHeld {
			w.fill(fmt.Sprintf("a-%d", i), 1)
		}
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if op == "put" && strings.Contains(key, "/a-") {
				return objstore.ErrAuth
			}
			return nil
		})
		w.fill("b-0", 0)
		w.open()
		w.after(30 * time.Minute)
		w.seal("b-0", 0)
		w.after(15 * time.Minute)
		w.want("b-0", "ul")
	})
}

// TestLongOutageOfManyPartitions: an hour without a store costs no more than the
// uploads that are held for its return.
func TestLongOutageOfManyPartitions(t *testing.T) {
	bubble(t, func(w *world) {
		const partitions = maxHeld + 16
		for i := range partitions {
			w.fill(fmt.Sprintf("a-%d", i), 1)
		}
		var down atomic.Bool
		down.Store(true)
		w.store.SetHook(func(_ context.Context, op, key string) error {
			if down.Load() && op == "put" && strings.Contains(key, "/a-") {
				return objstore.ErrTransient
			}
			return nil
		})
		var looks atomic.Int64
		w.tier.Step = func(step string) {
			if step == "upload:fsync" {
				looks.Add(1)
			}
		}
		w.open()
		w.after(time.Hour)
		if n := looks.Load(); n > maxHeld+8 {
			t.Errorf("%d segments were read during the outage", n)
		}
		if n := len(w.v.Tombstones()); n > 8 {
			t.Errorf("%d tombstones", n)
		}
		tries := len(w.puts.all())
		if tries < 300 {
			t.Errorf("%d tries in an hour", tries)
		}
		down.Store(false)
		w.after(time.Minute)
		for i := range partitions {
			w.want(fmt.Sprintf("a-%d", i), "ul")
		}
	})
}

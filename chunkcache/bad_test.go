package chunkcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// flip changes the byte at pos of an object, the first so many times that it is fetched; -1: always.
func flip(times int, pos int64) func(get, []byte) []byte {
	return func(g get, b []byte) []byte {
		if times != 0 && g.off <= pos && pos < g.off+g.n {
			times--
			b[pos-g.off] ^= 1
		}
		return b
	}
}

func TestBadObject(t *testing.T) {
	t.Run("wrong once: fetched again from there", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		f.store.mangle = flip(1, 20_000)
		f.read(o, data, 10_000, 20_000)
		gets := f.store.reset()
		if len(gets) < 2 || gets[1].off > 20_000 || gets[1].off < 10_000 {
			t.Errorf("%v", gets)
		}
	})
	t.Run("wrong twice: an error that names it", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("topic/k.log", 1<<20, 3000)
		f.store.mangle = flip(-1, 20_000)
		err := f.tryRead(o, data, 15_000, 20_000)
		if !errors.Is(err, ErrBadObject) {
			t.Fatalf("%v", err)
		}
		var at int64
		var rest string
		if _, serr := fmt.Sscanf(err.Error(), "bad object: topic/k.log: batch check failed at %d: %s", &at, &rest); serr != nil || at > 20_000 || at < 17_000 {
			t.Errorf("%v (%v)", err, serr)
		}
		f.read(o, data, 500_000, 1000)
		f.store.set(func(s *fakeStore) { s.mangle = nil })
		f.read(o, data, 15_000, 20_000)
		f.consistent()
	})
	t.Run("wrong behind the bytes that were asked for", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		f.store.mangle = flip(-1, 20_000)
		f.read(o, data, 100, 10_000)
	})
	t.Run("batches that start elsewhere than the index says", func(t *testing.T) {
		f := newFixture(t, nil)
		o, _, index := f.store.indexed("k", 1<<20, 3000)
		o.Index = func(context.Context) ([]int64, error) {
			out := slices.Clone(index)
			for i := range out[1:] {
				out[i+1]++
			}
			return out, nil
		}
		if err := f.ReadAt(t.Context(), o, make([]byte, 100), 500_000); !errors.Is(err, ErrBadObject) {
			t.Errorf("%v", err)
		}
	})
}

func TestShortObject(t *testing.T) {
	t.Run("shorter than it should be: an error at once", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		f.store.objects["k"] = data[:o.Size/2]
		if err := f.ReadAt(t.Context(), o, make([]byte, 100), o.Size-100); err == nil {
			t.Error("no error")
		}
		f.read(o, data, 0, 100)
	})
	t.Run("a body that ends early", func(t *testing.T) {
		f := newFixture(t, nil)
		o, data := f.store.object("k", 1<<20, 3000)
		f.store.mangle = func(_ get, b []byte) []byte { return b[:len(b)-1] }
		if err := f.ReadAt(t.Context(), o, make([]byte, 100), 50_000); err == nil {
			t.Error("no error")
		}
		f.store.set(func(s *fakeStore) { s.mangle = nil })
		f.read(o, data, 50_000, 100)
	})
}

package upload

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/tier"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// passes is a planted volume with a background whose loops do not run: the test
// takes their part.
type passes struct {
	tb    testing.TB
	root  int
	store *sim.Store
	v     *tier.Volume
	b     *Background
	watch *tier.Watch
}

// planted opens a volume with many remote segments, as its owner. Retention is by
// size and by age, so that the evictor has most to look at.
func planted(tb testing.TB, partitions, segments int) *passes {
	tb.Helper()
	path := tb.TempDir()
	w := &passes{tb: tb, store: sim.New(sim.Options{})}
	w.do(tiertest.Plant(path, tiertest.Plan{Prefix: "p", Partitions: partitions, Segments: segments}))
	var err error
	w.root, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.do(err)
	tb.Cleanup(func() { _ = unix.Close(w.root) })
	w.v, err = tier.Open(tb.Context(), tier.Options{Root: w.root, Store: w.store, Prefix: "p"})
	w.do(err)
	tb.Cleanup(func() { _ = w.v.Close() })
	w.do(w.v.CheckOwner(tb.Context()))
	w.b = New(Options{Volume: w.v, Store: w.store, Retention: Retention{For: func(string) Rule {
		return Rule{Tiered: true, Age: time.Hour, Size: 1 << 30}
	}}})
	w.watch = w.v.Watch()
	tb.Cleanup(w.watch.Close)
	return w
}

func (w *passes) do(err error) {
	w.tb.Helper()
	if err != nil {
		w.tb.Fatal(err)
	}
}

// change lets the active segment of each of the first partitions become clean, as
// an fsync does: one segment of each has changed.
func (w *passes) change(files []*tier.File) {
	w.tb.Helper()
	for _, f := range files {
		done, err := f.Mutate(w.tb.Context(), tier.Mutation{Kind: tier.Write})
		w.do(err)
		done()
		f.Synced()
	}
}

// actives are the active segments of the first partitions.
func (w *passes) actives(n int) (files []*tier.File) {
	w.tb.Helper()
	for _, p := range w.v.Partitions()[:n] {
		fd, err := unix.Openat(w.root, p.Path(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		w.do(err)
		h, err := handle.At(fd, "")
		w.do(err)
		segs := p.Segments()
		e, err := w.v.Lookup(tier.Dir{FD: fd, Handle: h}, segs[len(segs)-1].Name())
		w.do(err)
		files = append(files, e.File)
		w.tb.Cleanup(e.File.Release)
		w.do(unix.Close(fd))
	}
	return files
}

// pass is what both loops do when something changed, and the evictor's tick.
func (w *passes) pass(ctx context.Context) {
	changed := w.watch.Take()
	for _, p := range changed {
		w.b.uploader.refresh(p, true)
	}
	w.b.uploader.dispatch(ctx)
	w.b.evictor.changed(ctx, changed)
	w.b.evictor.tick(ctx)
}

// What a pass costs depends on what changed, not on how many segments are remote.
func TestPassCost(t *testing.T) {
	cost := func(segments int) (bytes uint64) {
		w := planted(t, 2, segments)
		files := w.actives(2)
		requests := func() int {
			return w.store.Count("put") + w.store.Count("head") + w.store.Count("get") + w.store.Count("list")
		}
		claim := requests()
		w.pass(t.Context()) // the first one looks at everything
		for range 3 {       // the least of some: the runtime allocates, too
			w.change(files)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w.pass(t.Context())
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; bytes == 0 || n < bytes {
				bytes = n
			}
		}
		if n := requests() - claim; n > 0 {
			t.Errorf("%d requests", n)
		}
		for _, p := range w.v.Partitions() {
			if n, m := len(p.NotHeld()), len(p.NotRemote()); n != 1 || m != 1 {
				t.Errorf("a pass looks at %d and %d of %d segments", n, m, segments)
			}
		}
		return bytes
	}
	few, many := cost(10), cost(300)
	if many > 2*few {
		t.Errorf("a pass allocates %d bytes over 20 segments and %d over 600", few, many)
	}
}

// A segment that stopped half way between local and remote is finished by the next
// pass, though retention asks for nothing.
func TestPassFinishesWhatStopped(t *testing.T) {
	w := planted(t, 1, 5)
	w.pass(t.Context())
	p := w.v.Partitions()[0]
	s := p.Segments()[2]
	inWay := p.Path() + "/" + s.Name()
	w.do(unix.Mkdirat(w.root, inWay, 0o700))
	if _, err := s.File.Mutate(t.Context(), tier.Mutation{Kind: tier.Truncate}); err == nil {
		t.Fatal("truncated")
	}
	w.do(unix.Unlinkat(w.root, inWay, unix.AT_REMOVEDIR))
	if got := s.File.State(); got != tier.Filling {
		t.Fatalf("it is %v", got)
	}
	w.pass(t.Context())
	if got := s.File.State(); got != tier.Remote {
		t.Errorf("it is %v after a pass", got)
	}
}

// BenchmarkPass is a pass over 100,000 segments of which 1, 10 or 100 changed, each
// in another partition.
func BenchmarkPass(b *testing.B) {
	w := planted(b, 100, 1000)
	w.pass(b.Context()) // the first one looks at everything
	for _, changed := range []int{1, 10, 100} {
		files := w.actives(changed)
		b.Run(fmt.Sprint(changed), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				w.change(files)
				b.StartTimer()
				w.pass(b.Context())
			}
		})
	}
}

package tier

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// BenchmarkOpen opens a volume with 100,000 remote segments.
func BenchmarkOpen(b *testing.B) {
	root := b.TempDir()
	if err := tiertest.Plant(root, tiertest.Plan{Prefix: "p", Partitions: 100, Segments: 1000}); err != nil {
		b.Fatal(err)
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		v, err := Open(b.Context(), Options{Root: fd, Store: sim.New(sim.Options{}), Prefix: "p"})
		if err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n := len(v.Partitions()[0].Segments()); n != 1001 {
			b.Fatalf("%d segments", n)
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/100_000, "heap-B/segment")
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

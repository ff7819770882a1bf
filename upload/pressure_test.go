package upload

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment/segmenttest"
)

func TestPressure(t *testing.T) {
	bubble(t, func(w *world) {
		w.fill("a-0", 4)
		w.fill("b-0", 4)
		w.checkpoint(everything)
		w.opt.Retention.DiskHigh, w.opt.Retention.DiskLow = 90, 80
		var extra atomic.Int64
		w.opt.Disk = func() (Disk, error) {
			s := w.b.Status()
			return Disk{Used: s.Bytes["local"] + extra.Load(), Total: 100 * 4096}, nil
		}
		w.open()
		w.after(10 * time.Second)
		w.want("a-0", "uuuul")
		w.want("b-0", "uuuul")
		local := w.b.Status().Bytes["local"]
		extra.Store(90*4096 - local) // exactly at the mark
		w.after(10 * time.Second)
		w.want("a-0", "uuuul")
		extra.Add(4096)
		w.after(time.Minute)
		// 11 blocks must go: a segment frees 2 of its 3, and the oldest are the first
		// three of each.
		w.want("a-0", "rrrul")
		w.want("b-0", "rrrul")
		w.after(time.Hour)
		w.want("a-0", "rrrul")
	})
}

func TestPressurePressesUploads(t *testing.T) {
	bubble(t, func(w *world) {
		w.opt.Concurrency = 1
		for _, p := range []string{"a-0", "b-0", "c-0"} {
			w.fill(p, 2)
		}
		w.checkpoint(everything)
		w.opt.Retention.DiskHigh, w.opt.Retention.DiskLow = 90, 80
		w.opt.Disk = func() (Disk, error) { return Disk{Used: 95 << 30, Total: 100 << 30}, nil }
		g := w.gate()
		w.open()
		w.after(evictTick + time.Second)
		w.b.uploader.mu.Lock()
		for p, l := range w.b.uploader.lanes {
			if !l.pressed.After(time.Now()) {
				t.Errorf("%s is not at the head", p.Path())
			}
		}
		w.b.uploader.mu.Unlock()
		close(g.release)
		w.after(15 * time.Second)
		for _, p := range []string{"a-0", "b-0", "c-0"} {
			w.want(p, "rrl")
		}
	})
}

func TestDiskOf(t *testing.T) {
	fd, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	d, err := diskOf(fd)
	if err != nil || d.Used <= 0 || d.Total <= d.Used {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := diskOf(-1); err == nil {
		t.Error("a closed descriptor has a size")
	}
	if n := (Disk{Used: 95, Total: 100}).over(80); n != 15 {
		t.Errorf("over: %d", n)
	}
}

func TestPressureTakesTheOldest(t *testing.T) {
	bubble(t, func(w *world) {
		// The hours since the last record of each segment. The first of b holds back the
		// older one behind it.
		ages := map[string][]int{"a-0": {9, 7, 3}, "b-0": {6, 8}, "c-0": {5, 4}}
		for dir, hours := range ages {
			w.do(os.Mkdir(filepath.Join(w.path, dir), 0o755))
			for i, h := range hours {
				at := time.Now().Add(-time.Duration(h) * time.Hour)
				w.write(logName(dir, uint64(i)), segmenttest.KafkaBatch(uint64(i), at, [][]byte{make([]byte, 10000)}))
			}
			w.write(logName(dir, uint64(len(hours))), nil)
		}
		w.checkpoint(everything)
		w.opt.Retention.DiskHigh, w.opt.Retention.DiskLow = 50, 50
		var excess atomic.Int64
		w.opt.Disk = func() (Disk, error) { return Disk{Used: 5000 + excess.Swap(0), Total: 10000}, nil }
		w.open()
		w.after(evictTick)
		for _, want := range []map[string]string{
			{"a-0": "ruul", "b-0": "uul", "c-0": "uul"},
			{"a-0": "rrul", "b-0": "uul", "c-0": "uul"},
			{"a-0": "rrul", "b-0": "rul", "c-0": "uul"},
			{"a-0": "rrul", "b-0": "rrl", "c-0": "uul"},
			{"a-0": "rrul", "b-0": "rrl", "c-0": "rul"},
		} {
			excess.Store(1)
			w.after(evictTick)
			for dir, states := range want {
				w.want(dir, states)
			}
		}
	})
}

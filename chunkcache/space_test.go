package chunkcache

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// cached returns which of the objects k0 … have something on the disk.
func (f *fixture) cached(n int) (out []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range n {
		if o := f.byKey[fmt.Sprint("k", i)]; o != nil && len(o.extents) > 0 {
			out = append(out, i)
		}
	}
	return out
}

func TestBudget(t *testing.T) {
	t.Run("is never exceeded and gives way to the newest", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size, o.ChunkSize = 1<<20, 64<<10 })
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if st := f.Stats(); st.Bytes > st.Budget {
					t.Errorf("%+v", st)
				}
				if n := f.onDisk(); n > 1<<20 {
					t.Errorf("%d bytes on disk", n)
				}
			}
		})
		for i := range 30 {
			o, data := f.store.object(fmt.Sprint("k", i), 150<<10, 3000)
			f.read(o, data, 0, o.Size)
		}
		f.settleDown() // or what is still being written takes the place of what was read later
		o, data := f.store.object("k29", 150<<10, 3000)
		f.read(o, data, 0, o.Size)
		f.consistent()
		close(stop)
		wg.Wait()
		f.store.reset()
		f.read(o, data, 0, o.Size)
		if n := f.store.count(); n > 0 {
			t.Errorf("%v for what was read last: %+v", f.store.reset(), f.Stats())
		}
	})
	t.Run("files", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.MaxObjects = 3 })
		for i := range 10 {
			o, data := f.store.object(fmt.Sprint("k", i), 20<<10, 3000)
			f.read(o, data, 0, o.Size)
			f.settleDown()
			if n := len(f.files()); n > 3 {
				t.Fatalf("%d files", n)
			}
		}
	})
	t.Run("a percentage of the disk", func(t *testing.T) {
		f := newFixtureAt(t, tmpfs(t, "4m"), func(o *Options) { o.SizePercent = 50 })
		if st := f.Stats(); st.Budget != 2<<20 {
			t.Errorf("%+v", st)
		}
	})
}

func TestSmallBudget(t *testing.T) {
	t.Run("smaller than a chunk: memory serves", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size = 5000 })
		o, data := f.store.object("k", 1<<20, 3000)
		for off := int64(0); off < o.Size; off += 50_000 {
			f.read(o, data, off, min(50_000, o.Size-off))
		}
		f.consistent()
		if n := f.onDisk(); n > 5000 {
			t.Errorf("%d bytes on disk", n)
		}
	})
	t.Run("three chunks and four scanners", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size, o.ChunkSize, o.Concurrency = 3*(64<<10)+3*8192, 64<<10, 2 })
		var wg sync.WaitGroup
		for i := range 4 {
			o, data := f.store.object(fmt.Sprint("k", i), 1<<20, 3000)
			wg.Go(func() {
				for off := int64(0); off < o.Size; off += 10_000 {
					f.read(o, data, off, min(10_000, o.Size-off))
				}
			})
		}
		wg.Wait()
		f.consistent()
	})
}

// fill reads n objects of 100 KiB, k0 and so on.
func fill(f *fixture, n int) {
	for i := range n {
		o, data := f.store.object(fmt.Sprint("k", i), 100<<10, 3000)
		f.read(o, data, 0, o.Size)
		f.settleDown()
	}
}

func TestTrim(t *testing.T) {
	t.Run("the least recently used go first, down to the watermark", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size, o.LowWatermarkPercent = 2000<<10, 30 })
		fill(f, 10)
		o, data := f.store.object("k0", 100<<10, 3000)
		f.read(o, data, 5, 5)
		f.trim()
		f.consistent()
		if got := fmt.Sprint(f.cached(10)); got != "[0 6 7 8 9]" {
			t.Errorf("left: %s", got)
		}
		if st := f.Stats(); st.Bytes > 600<<10 || st.Bytes < 450<<10 {
			t.Errorf("%+v", st)
		}
	})
	t.Run("the order survives a restart", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size, o.LowWatermarkPercent = 2000<<10, 30 })
		fill(f, 10)
		for _, i := range []int{3, 1, 4} {
			o, data := f.store.object(fmt.Sprint("k", i), 100<<10, 3000)
			f.read(o, data, 5, 5)
		}
		f.restart()
		f.settleDown()
		f.trim()
		f.consistent()
		left, _ := filepath.Glob(filepath.Join(f.dir, chunksDir, "*-k[13489]"))
		if all, _ := filepath.Glob(filepath.Join(f.dir, chunksDir, "*")); len(left) != 5 || len(all) != 5 {
			t.Errorf("left: %v", all)
		}
	})
	t.Run("a damaged access table costs the order only", func(t *testing.T) {
		f := newFixture(t, nil)
		fill(f, 3)
		f.stop()
		if err := os.WriteFile(filepath.Join(f.dir, accessFile), []byte(accessMagic+"0123456789"), 0o600); err != nil {
			t.Fatal(err)
		}
		f.start()
		f.consistent()
		if n := f.Stats().Chunks; n != len(f.files()) || n < 3 {
			t.Errorf("%d chunks", n)
		}
	})
}

func TestTrimRules(t *testing.T) {
	t.Run("never what is being read", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size, o.LowWatermarkPercent = 300<<10, 1 })
		fill(f, 2)
		o, _ := f.store.object("k0", 100<<10, 3000)
		g, err := f.pin(t.Context(), o, 0, 10, false)
		if err != nil {
			t.Fatal(err)
		}
		f.trim()
		if got := fmt.Sprint(f.cached(2)); got != "[0]" {
			t.Errorf("left: %s", got)
		}
		f.unpin(&g)
		f.trim()
		f.consistent()
		if got := f.cached(2); len(got) > 0 {
			t.Errorf("left: %v", got)
		}
	})
	t.Run("keeps its distance unless space is needed", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Size, o.TrimMinInterval = 1200<<10, time.Hour })
		fill(f, 30) // the first trim takes it to 80 %, a second one must wait
		if st := f.Stats(); st.Bytes < 1000<<10 || st.Bytes > st.Budget {
			t.Errorf("%+v", st)
		}
	})
	t.Run("what was read ahead in vain goes first", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.LowWatermarkPercent = 100 })
		fill(f, 3)
		f.mu.Lock()
		e := f.byKey["k2"].extents[0] // the most recent one
		e.unlist()
		e.ahead = true
		f.aheadBytes += e.length()
		e.accessed -= int64(2 * aheadGrace)
		f.unread.pushFirst(e)
		f.space.budget = f.space.used - 1
		f.mu.Unlock()
		f.trim()
		f.consistent()
		if got := fmt.Sprint(f.cached(3)); got != "[0 1]" {
			t.Errorf("left: %s", got)
		}
	})
}

func TestDrop(t *testing.T) {
	f := newFixture(t, nil)
	o, data := f.store.object("k", 1<<20, 3000)
	f.Drop("k")
	f.read(o, data, 0, o.Size)
	f.Drop("k") // some of it is still being written
	f.consistent()
	if n := len(f.files()); n > 0 {
		t.Errorf("%d files", n)
	}
	f.store.reset()
	f.read(o, data, 0, o.Size)
	if n := f.store.count(); n == 0 {
		t.Error("no GET")
	}
	f.settleDown()
	f.restart()
	f.Drop("k")
	f.consistent()
	if n, _ := filepath.Glob(filepath.Join(f.dir, chunksDir, "*")); len(n) > 0 {
		t.Errorf("left: %v", n)
	}
}

func TestOpenFiles(t *testing.T) {
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(o *Options) { o.ChunkSize, o.FirstFetch, o.ReadaheadMax, o.MaxObjects = 4096, 4096, 1, 5000 })
	o, data := f.store.object("k", 4<<20, 1000)
	for range 2 {
		for off := int64(0); off < o.Size; off += 4096 {
			f.read(o, data, off, min(4096, o.Size-off))
		}
		f.settleDown()
	}
	f.consistent()
	if n := f.Stats().Chunks; n < maxOpen+100 {
		t.Fatalf("only %d files", n)
	}
	after, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(after) - len(before); n > maxOpen+10 {
		t.Errorf("%d descriptors more", n)
	}
}

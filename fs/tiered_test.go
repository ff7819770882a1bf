package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/tier"
)

// A tieredMount is a mount with a store in memory, over a directory t-0 of generic
// segments.
type tieredMount struct {
	*testMount
	store *sim.Store
	cache *chunkcache.Cache
}

func tieredTest(t *testing.T, configure ...func(*mountConfig)) *tieredMount {
	t.Helper()
	store := sim.New(sim.Options{})
	dir, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Close(dir)) })
	cache, err := chunkcache.New(chunkcache.Options{Dir: dir, Store: store, ChunkSize: 1 << 20})
	check(t, err)
	t.Cleanup(func() { check(t, cache.Close()) })
	base := func(c *mountConfig) {
		c.options = tier.Options{Layout: layout.Generic, Store: store, Cache: cache, Prefix: "p", FetchTimeout: 10 * time.Second}
		c.prepare = func(src string) { check(t, os.Mkdir(src+"/t-0", 0o755)) }
	}
	return &tieredMount{mountTest(t, append([]func(*mountConfig){base}, configure...)...), store, cache}
}

func segmentPath(start int) string { return fmt.Sprintf("t-0/%020d.log", start) }

// fill writes sealed segments of size bytes and an active one.
func (m *tieredMount) fill(sealed, size int) {
	m.t.Helper()
	for i := range sealed {
		check(m.t, os.WriteFile(m.path(segmentPath(i*1000)), pattern(size, byte(i)), 0o640))
	}
	check(m.t, os.WriteFile(m.path(segmentPath(sealed*1000)), []byte("active"), 0o640))
}

// tierOut uploads and evicts whatever may go, and returns how many went.
func (m *tieredMount) tierOut() int {
	m.t.Helper()
	n, err := m.tryTierOut(context.Background())
	check(m.t, err)
	return n
}

func (m *tieredMount) tryTierOut(ctx context.Context) (evicted int, err error) {
	for _, p := range m.volume.Partitions() {
		for _, s := range p.Segments() {
			if err := m.upload(ctx, p, s); !harmless(err) {
				return evicted, fmt.Errorf("upload %s: %w", s.Name(), err)
			}
		}
		for _, s := range p.Segments() {
			switch err := m.volume.Evict(ctx, p, s); {
			case err == nil:
				evicted++
			case !harmless(err):
				return evicted, fmt.Errorf("evict %s: %w", s.Name(), err)
			}
		}
	}
	return evicted, nil
}

// harmless: the segment is not for tiering now, or it is gone meanwhile.
func harmless(err error) bool {
	refused, notWhole := (*tier.Refused)(nil), (*tier.NotWhole)(nil)
	return err == nil || errors.As(err, &refused) || errors.As(err, &notWhole) ||
		errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ENOENT)
}

func (m *tieredMount) upload(ctx context.Context, p *tier.Partition, s tier.Segment) error {
	u, err := m.volume.Prepare(ctx, p, s)
	if err != nil {
		return err
	}
	defer u.Close()
	for _, o := range u.Objects {
		if err := m.store.Put(ctx, o.Key, o.Body, objstore.PutOptions{Metadata: o.Metadata}); err != nil {
			return u.Abort() // the bytes have changed under it
		}
	}
	return u.Commit()
}

// Listings and lookups that run while segments leave and come back never miss one.
func TestNamesDuringEvictions(t *testing.T) {
	const segments = 30
	m := tieredTest(t)
	m.fill(segments, 1000)
	dir, err := os.Open(m.below("t-0"))
	check(t, err)
	defer dir.Close()
	h, err := handle.At(int(dir.Fd()), "")
	check(t, err)
	d := tier.Dir{FD: int(dir.Fd()), Handle: h}
	stop := make(chan struct{})
	problems := make(chan string, 2)
	watch := func(look func() string) {
		for {
			select {
			case <-stop:
				problems <- ""
				return
			default:
			}
			if p := look(); p != "" {
				problems <- p
				return
			}
		}
	}
	go watch(func() string {
		names, err := os.ReadDir(m.path("t-0"))
		if len(names) != segments+1 || err != nil {
			return fmt.Sprintf("%d names, %v", len(names), err)
		}
		return ""
	})
	go watch(func() string {
		for i := range segments {
			e, err := m.volume.Lookup(d, strings.TrimPrefix(segmentPath(i*1000), "t-0/"))
			if err != nil || e.Stat.Size != 1000 {
				return fmt.Sprintf("lookup of %d: size %d, %v", i, e.Stat.Size, err)
			}
			e.File.Release()
		}
		return ""
	})
	for range 3 {
		m.tierOut()
		for _, p := range m.volume.Partitions() {
			for _, s := range p.Segments() {
				check(t, m.volume.Rehydrate(t.Context(), s.File))
			}
		}
	}
	close(stop)
	for range 2 {
		if p := <-problems; p != "" {
			t.Error(p)
		}
	}
}

// The model again, while segments are uploaded and evicted all the time: between
// two operations, and during them; and while the server is another now and then.
func TestModelWithEvictions(t *testing.T) {
	for seed := range modelSeeds() {
		t.Run(fmt.Sprint("between, seed ", seed), func(t *testing.T) {
			m := tieredTest(t)
			evicted := 0
			runModel(t, m.in("t-0"), seed, true, map[string]func(){
				"upset":   func() { evicted += m.tierOut() },
				"restart": m.restart,
			})
			if evicted == 0 {
				t.Error("nothing was evicted")
			}
			t.Logf("%d evictions, %d GETs", evicted, m.store.Count("get"))
		})
		t.Run(fmt.Sprint("during, seed ", seed), func(t *testing.T) {
			m := tieredTest(t)
			ctx, stop := context.WithCancel(t.Context())
			evicted := 0
			ended := make(chan error)
			var serving sync.Mutex // held while one and the same server is at work
			go func() {
				for ctx.Err() == nil {
					serving.Lock()
					n, err := m.tryTierOut(ctx)
					serving.Unlock()
					if evicted += n; err != nil && ctx.Err() == nil {
						ended <- err
						return
					}
				}
				ended <- nil
			}()
			defer func() {
				stop()
				check(t, <-ended)
				t.Logf("%d evictions, %d GETs", evicted, m.store.Count("get"))
			}()
			runModel(t, m.in("t-0"), seed, true, map[string]func(){"restart": func() {
				serving.Lock()
				defer serving.Unlock()
				m.restart()
			}})
		})
	}
}

// in is the mount seen from a directory in it.
func (m *tieredMount) in(dir string) *testMount {
	inner := *m.testMount
	inner.mnt = m.path(dir)
	return &inner
}

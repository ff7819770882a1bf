package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// raced is one name that threads of a broker and the background race for. Its lock
// stands for what orders the broker's own threads.
type raced struct {
	sync.RWMutex
	path        string
	turn        int
	*racedInode // nil: unlinked
}

type racedInode struct{ data []byte }

type race struct {
	m    *tieredMount
	all  []*raced
	done sync.Map // of *atomic.Int64, by what was done

	holding sync.Mutex // guards held
	held    []racedHandle
}

// racedHandle is open whatever becomes of its name.
type racedHandle struct {
	r  *raced
	fd int
	*racedInode
}

// TestRaces lets threads change, link, replace, unlink and make anew the same few
// segments through a mount, read them by name and through handles from before, while
// the background uploads, evicts, rehydrates and deletes. Every read is held against
// a model, and in the end the files below and the store, too.
func TestRaces(t *testing.T) {
	const segments, size = 4, 50000
	c := &race{m: tieredTest(t)}
	c.m.fill(segments, size)
	for i := range segments {
		c.all = append(c.all, &raced{path: c.m.path(segmentPath(i * 1000)), racedInode: &racedInode{pattern(size, byte(i))}})
	}
	seed, length := rand.Uint64(), 2*time.Second
	if os.Getenv("TIERFS_SOAK") != "" {
		length = time.Minute
	}
	t.Logf("seed %d", seed)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute+length)
	defer stop()
	begin := time.Now()
	var hands sync.WaitGroup
	for i, hand := range []func(context.Context, *rand.Rand) error{
		c.change, c.change, c.change, c.read, c.hold, c.hold, c.tierOut, c.rehydrate, c.retire,
	} {
		hands.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil && (time.Since(begin) < length || !c.enough()) {
				if err := hand(ctx, random); err != nil && ctx.Err() == nil {
					t.Error(err)
					stop()
				}
			}
		})
	}
	hands.Wait()
	c.settled(t)
}

func (c *race) settled(t *testing.T) {
	for _, h := range c.held {
		check(t, unix.Close(h.fd))
	}
	for _, r := range c.all {
		check(t, c.agrees(r))
	}
	c.m.waitFor("the closes have come", func() bool { // they are told behind the broker's back
		check(t, c.retire(t.Context(), nil))
		held := 0
		for _, s := range c.m.volume.Partitions()[0].Segments() {
			if s.Held() {
				held++
			}
		}
		return len(c.m.store.Keys()) == held+1 // and the owner
	})
	for _, s := range c.m.volume.Partitions()[0].Segments() {
		check(t, c.m.volume.Rehydrate(t.Context(), s.File))
	}
	for _, r := range c.all {
		if r.racedInode == nil {
			continue
		}
		got, err := os.ReadFile(strings.Replace(r.path, c.m.mnt, c.m.src, 1))
		if check(t, err); !bytes.Equal(got, r.data) {
			t.Errorf("%s: below are other bytes", r.path)
		}
	}
	if !c.enough() {
		t.Error("too little was done")
	}
	c.done.Range(func(what, n any) bool {
		t.Logf("%s: %d", what, n.(*atomic.Int64).Load())
		return true
	})
}

// enough: the hands have met.
func (c *race) enough() bool {
	for _, what := range []string{"change", "read", "read of a handle", "evict", "rehydrate", "retire"} {
		if n, ok := c.done.Load(what); !ok || n.(*atomic.Int64).Load() < 5 {
			return false
		}
	}
	return true
}

func (c *race) count(what string, n int) {
	have, _ := c.done.LoadOrStore(what, new(atomic.Int64))
	have.(*atomic.Int64).Add(int64(n))
}

func (c *race) tierOut(ctx context.Context, _ *rand.Rand) error {
	n, err := c.m.tryTierOut(ctx)
	if n > 0 {
		c.count("evict", n)
	}
	return err
}

func (c *race) rehydrate(ctx context.Context, r *rand.Rand) error {
	time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // others need remote ones
	segments := c.m.volume.Partitions()[0].Segments()
	s := segments[r.IntN(len(segments))]
	if s.State != tier.Remote {
		return nil
	}
	c.count("rehydrate", 1)
	if err := c.m.volume.Rehydrate(ctx, s.File); !harmless(err) {
		return fmt.Errorf("rehydrate: %w", err)
	}
	return nil
}

func (c *race) retire(ctx context.Context, _ *rand.Rand) error {
	due, _ := c.m.volume.Due(time.Now().Add(time.Hour), 100)
	n, err := c.m.volume.Retire(ctx, due)
	if n > 0 {
		c.count("retire", n)
	}
	return err
}

func (c *race) read(_ context.Context, r *rand.Rand) error {
	f := c.all[r.IntN(len(c.all))]
	f.RLock()
	defer f.RUnlock()
	c.count("read", 1)
	return c.agrees(f)
}

// agrees holds what a name leads to against the model. The caller holds its lock.
func (c *race) agrees(f *raced) error {
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if f.racedInode == nil {
		if err == nil {
			_ = unix.Close(fd)
		}
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s is unlinked, its open gives %v", f.path, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	defer unix.Close(fd)
	if err := f.racedInode.same(fd); err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return nil
}

// same reads all of an inode past the kernel's pages.
func (i *racedInode) same(fd int) error {
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
	got := make([]byte, len(i.data)+1)
	for n := 0; ; {
		k, err := unix.Pread(fd, got[n:], int64(n))
		if n += max(k, 0); err != nil || k == 0 {
			return errors.Join(err, same(got[:n], i.data, 0))
		}
	}
}

// hold opens a file, reads through a handle, or closes one.
func (c *race) hold(_ context.Context, r *rand.Rand) error {
	c.holding.Lock()
	defer c.holding.Unlock()
	switch n := r.IntN(20); {
	case n == 0 || len(c.held) == 0:
		f := c.all[r.IntN(len(c.all))]
		f.RLock()
		defer f.RUnlock()
		if f.racedInode == nil {
			return nil
		}
		fd, err := unix.Open(f.path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			c.held = append(c.held, racedHandle{f, fd, f.racedInode})
		}
		return err
	case n == 1 || len(c.held) > 10:
		h := c.held[0]
		c.held = c.held[1:]
		return unix.Close(h.fd)
	}
	h := c.held[r.IntN(len(c.held))]
	h.r.RLock()
	defer h.r.RUnlock()
	c.count("read of a handle", 1)
	if err := h.same(h.fd); err != nil {
		return fmt.Errorf("a handle of %s: %w", h.r.path, err)
	}
	return nil
}

package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const testCap = 2 << 20 // bytes

// lateWorld is a small full disk below a kernel that has accepted bytes.
type lateWorld struct {
	*fullWorld
	f    *File
	fd   int
	want []byte // all that was accepted for the active segment
	said chan bool
}

func newLateWorld(t *testing.T) *lateWorld {
	w := &lateWorld{fullWorld: newFullWorld(t, 1, 1, 3), said: make(chan bool, 100)}
	w.tune = func(o *Options) { o.Writeback, o.DirtyCap = true, testCap }
	w.start()
	if got := w.v.LateReserve(); got != testCap/4*5 || w.v.Full() {
		t.Fatalf("a reserve of %d bytes, full: %v", got, w.v.Full())
	}
	w.eat()
	return w
}

func (w *lateWorld) start() {
	w.t.Helper()
	w.reopen()
	w.do(w.v.CheckOwner(w.t.Context()))
	w.v.OnFull(func(full bool) { w.said <- full })
	active := w.starts[len(w.starts)-1]
	w.f = w.segment("t-0", active).File
	if w.fd != 0 {
		_ = unix.Close(w.fd)
	}
	var err error
	w.fd, err = w.f.open(unix.O_RDWR)
	w.do(err)
	w.t.Cleanup(func() { _ = unix.Close(w.fd) })
	w.want = w.logs[active]
}

// write is a WRITE that the kernel sends late. tried is called before each try.
func (w *lateWorld) write(ctx context.Context, b []byte, off int64, tried func()) error {
	return w.v.Late(ctx, func() error {
		tried()
		done, err := w.f.Mutate(ctx, Mutation{Kind: Write})
		if err != nil {
			return err
		}
		defer done()
		_, err = fdWriter(w.fd).WriteAt(b, off)
		return err
	})
}

// accept takes so many bytes behind what was accepted before.
func (w *lateWorld) accept(n int) (b []byte, off int64) {
	off = int64(len(w.want))
	b = make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	w.want = append(bytes.Clone(w.want), b...)
	w.logs[w.starts[len(w.starts)-1]] = w.want
	return b, off
}

func (w *lateWorld) wantAll() {
	w.t.Helper()
	d := w.dir("t-0")
	for start, log := range w.logs {
		w.wantContent(d, name(start), log)
	}
}

func (w *lateWorld) makeRoom() {
	w.t.Helper()
	w.do(os.Remove(filepath.Join(w.path, fmt.Sprintf("fill-%d", 1<<20))))
}

// All that the kernel may have accepted has its place on a disk without a free block,
// whatever the sizes and the order of the writes.
func TestLateWritesFindRoom(t *testing.T) {
	for _, size := range []int{4096, 100_000, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newLateWorld(t)
			var all sync.WaitGroup
			failed := make(chan error, testCap/size+1)
			slots := make(chan struct{}, 8)
			for range testCap / size {
				b, off := w.accept(size)
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					failed <- w.write(t.Context(), b, off, func() {})
				})
			}
			all.Wait()
			close(failed)
			for err := range failed {
				w.do(err)
			}
			w.wantAll()
			if !w.v.Full() || len(w.said) != 1 || !<-w.said {
				t.Errorf("full: %v", w.v.Full())
			}
			left := w.v.LateReserve()
			w.start()
			if !w.v.Full() || w.v.LateReserve() != left || left >= testCap {
				t.Errorf("after a restart full: %v, reserve %d, before it %d", w.v.Full(), w.v.LateReserve(), left)
			}
			w.v.CheckRoom()
			if !w.v.Full() {
				t.Error("room where there is none")
			}
			w.remote(w.starts[2]) // what makes room works
			w.makeRoom()
			w.v.CheckRoom()
			if w.v.Full() || w.v.LateReserve() != testCap/4*5 {
				t.Errorf("with room full: %v, reserve %d", w.v.Full(), w.v.LateReserve())
			}
			w.wantAll()
		})
	}
}

// When the reserve is used up, the bytes wait for room.
func TestLateWritesWait(t *testing.T) {
	w := newLateWorld(t)
	w.do(w.v.Late(t.Context(), func() error { // all of it goes elsewhere
		w.eat()
		if w.v.LateReserve() > 0 {
			return unix.ENOSPC
		}
		return nil
	}))
	b, off := w.accept(1 << 20)
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.write(ctx, b, off, cancel); !errors.Is(err, context.Canceled) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a write that nobody waits for: %v", err)
	}
	tries, written := make(chan struct{}, 100), make(chan error, 1)
	go func() { written <- w.write(t.Context(), b, off, func() { tries <- struct{}{} }) }()
	<-tries
	<-tries
	d := w.dir("t-0") // the broker may take away what is written to meanwhile
	w.do(w.v.Rename(d, name(w.starts[4]), d, "x", 0))
	w.do(w.v.Unlink(d, name(w.starts[2])))
	delete(w.logs, w.starts[2])
	w.makeRoom()
	w.do(<-written)
	w.do(w.v.Rename(d, "x", d, name(w.starts[4]), 0))
	w.v.CheckRoom()
	if w.v.Full() || w.v.LateReserve() != testCap/4*5 {
		t.Errorf("with room full: %v, reserve %d", w.v.Full(), w.v.LateReserve())
	}
	w.wantAll()
	var said []bool
	for len(w.said) > 0 {
		said = append(said, <-w.said)
	}
	if len(said) != 2 || !said[0] || said[1] {
		t.Errorf("said %v", said)
	}
}

// An eviction refills the reserve by itself.
func TestEvictionRefillsTheLateReserve(t *testing.T) {
	w := newLateWorld(t)
	b, off := w.accept(1 << 20)
	w.do(w.write(t.Context(), b, off, func() {}))
	w.makeRoom()
	w.do(w.evict("t-0", w.starts[1]))
	if w.v.Full() {
		t.Error("full")
	}
	w.wantAll()
}

func TestLateReserveIsMadeOrNot(t *testing.T) {
	w := newFullWorld(t, 0, 0, 1)
	open := func(dirtyCap int64) int64 {
		w.tune = func(o *Options) { o.DirtyCap = dirtyCap }
		w.reopen()
		if w.v.Full() {
			t.Errorf("full with %d", dirtyCap)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(w.path, ".tierfs/reserve/late"), &st); (err == nil) != (w.v.LateReserve() > 0) || err == nil && st.Blocks*512 < w.v.LateReserve() {
			t.Errorf("with %d: %v, %d blocks, %d bytes", dirtyCap, err, st.Blocks, w.v.LateReserve())
		}
		return w.v.LateReserve()
	}
	for _, c := range []struct{ dirty, want int64 }{
		{0, 0}, {20 << 20, 0}, {5 << 20, 0}, {1 << 20, 5 << 18}, {2 << 20, 5 << 19}, {1 << 20, 5 << 18}, {0, 0},
	} {
		if got := open(c.dirty); got != c.want {
			t.Errorf("for %d dirty bytes a reserve of %d", c.dirty, got)
		}
	}
	// A sparse one is none.
	w.do(os.WriteFile(filepath.Join(w.path, ".tierfs/reserve/late"), nil, 0o600))
	w.do(os.Truncate(filepath.Join(w.path, ".tierfs/reserve/late"), 5<<18))
	if got := open(1 << 20); got != 5<<18 {
		t.Errorf("a reserve of %d", got)
	}
}

// What is no lack of room is answered.
func TestLateErrors(t *testing.T) {
	w := newWorld(t, 1)
	for _, want := range []error{nil, unix.EDQUOT, unix.EIO} {
		n := 0
		if err := w.v.Late(t.Context(), func() error { n++; return want }); !errors.Is(err, want) || n != 1 || w.v.Full() {
			t.Errorf("%v after %d tries, want %v", err, n, want)
		}
	}
}

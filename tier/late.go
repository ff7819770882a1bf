package tier

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Where the kernel writes back, it takes from the broker what the disk may have no room
// for, as much as it may hold dirty, and sends it when nobody is there any more whom an
// error would stop. The reserve for late writes, .tierfs/reserve/late, has its blocks
// and is larger than that: a late write that finds no room gets a part of it. From then
// on the volume is full, until there is room for the reserve again and for some more:
// the broker is to learn that with what it does next.
//
// The reserve is made at an Open that finds four times its size free. One that a
// predecessor used up in part is completed, where there is room; where there is not, the
// volume is full from the start.
const (
	lateFile = "late"
	// lateStep is what one late write gets, in bytes: the largest WRITE, and what a
	// file system needs to keep track of it.
	lateStep = 5 << 18
	// lateRoom is how many bytes must be free beside the whole reserve before the volume
	// is not full any more; on a small disk a lateShare-th of it.
	lateRoom  = 64 << 20
	lateShare = 32
	// earlyShare of the reserve is free when the volume becomes full.
	earlyShare = 3
	// lateLook is how often a late write without any room is tried again, lateSay how
	// often that is said.
	lateLook = time.Second
	lateSay  = time.Minute
)

// late is safe for use in parallel. Its locks are leaves.
type late struct {
	log  *slog.Logger
	want int64       // bytes of the whole reserve; 0: there is none
	full atomic.Bool // changed with mu held
	// given counts the parts that were given: who failed before one tries again first.
	given atomic.Int64
	room  chan struct{} // cap 1: there may be room

	telling sync.Mutex // held while told is brought up to full
	told    atomic.Bool
	onFull  atomic.Pointer[func(bool)]

	mu   sync.Mutex // guards what follows
	fd   int        // -1: there is none
	have int64
}

// LateReserve is how many bytes of the reserve for late writes are there now. A mount
// may begin to write back if they are no less than Options.DirtyCap; one that does
// already goes on with what is left.
func (v *Volume) LateReserve() int64 {
	v.late.mu.Lock()
	defer v.late.mu.Unlock()
	return v.late.have
}

// Full reports whether late writes live on the reserve. It is one atomic load.
func (v *Volume) Full() bool { return v.late.full.Load() }

// OnFull names the function that is told when what Full says has changed. It is called
// with no lock held, also from within Late: it must not wait for the kernel or for a
// late write.
func (v *Volume) OnFull(f func(full bool)) { v.late.onFull.Store(&f) }

// Wrote is told of each late write that found room, and makes the volume full while there is
// still some: until the broker has learned of it, it goes on writing. It costs a statfs.
func (v *Volume) Wrote() { v.late.wrote() }

// CheckRoom completes the reserve for late writes and ends what Full says, if there is
// room. The background calls it regularly; it costs nothing while the reserve is whole.
func (v *Volume) CheckRoom() { v.late.check() }

// Late runs a write of bytes that the kernel has accepted: do writes all of them, again
// and again if it must, and holds nothing in between (no lock of the file, that is: it
// calls [File.Mutate] itself). Where the disk has no room (ENOSPC; a quota is the
// broker's own), do gets room from the reserve; when that is used up, Late waits for
// room until ctx ends, which is the mount's, not the request's. The bytes are lost only
// then, and if do fails otherwise.
func (v *Volume) Late(ctx context.Context, do func() error) error {
	l := &v.late
	var said time.Time
	for {
		seen := l.given.Load()
		err := do()
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
		if l.give(seen) {
			continue
		}
		if now := time.Now(); now.Sub(said) >= lateSay {
			said = now
			l.log.Error("the disk is full and the reserve is used up; what the kernel has accepted waits for room")
		}
		again := time.NewTimer(lateLook)
		select {
		case <-ctx.Done():
			again.Stop()
			return errors.Join(err, ctx.Err())
		case <-l.room:
		case <-again.C:
		}
		again.Stop()
	}
}

// open finds the reserve for so many dirty bytes, or makes it; dir is that of the
// reserves, negative if there is none.
func (l *late) open(dir int, dirtyCap int64) {
	l.room = make(chan struct{}, 1)
	if dir < 0 {
		return
	}
	if dirtyCap <= 0 {
		_ = unlinkat(dir, lateFile, 0)
		return
	}
	want := dirtyCap + dirtyCap/4
	var st unix.Stat_t
	was := fstatat(dir, lateFile, &st) == nil
	if free, _ := freeOf(dir); !was && free < 4*want {
		l.log.Warn("the disk has no room for a reserve for late writes", "need", 4*want, "free", free)
		return
	}
	fd, err := openat(dir, lateFile, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err == nil && was && st.Blocks*512 < st.Size { // not what this made
		st.Size = 0
		err = retry(func() error { return unix.Ftruncate(fd, 0) })
	}
	if err == nil && st.Size > want {
		st.Size = want
		err = retry(func() error { return unix.Ftruncate(fd, want) })
	}
	if err != nil {
		l.log.Warn("there is no reserve for late writes", "err", err)
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return
	}
	l.fd, l.want, l.have = fd, want, min(st.Size, want)
	switch {
	case l.have == want:
	case was:
		l.full.Store(true)
		l.told.Store(true) // who asks first looks at Full
		l.check()
	default:
		l.begin(dir)
	}
}

// begin makes a reserve where there was none.
func (l *late) begin(dir int) {
	err := l.take()
	if err == nil {
		return
	}
	l.log.Warn("there is no reserve for late writes", "err", err)
	_ = unlinkat(dir, lateFile, 0)
	_ = unix.Close(l.fd)
	l.fd, l.want, l.have = -1, 0, 0
}

func (l *late) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
	}
}

// take gives the file all its blocks. Nothing is lost if a crash takes them back.
func (l *late) take() error {
	err := retry(func() error { return unix.Fallocate(l.fd, 0, 0, l.want) })
	if err != nil {
		_ = unix.Ftruncate(l.fd, l.have)
		return pathError("fallocate", lateFile, err)
	}
	l.have = l.want
	return nil
}

// give makes room for one write that has failed since it saw so many parts given;
// false: nothing is left. What the file had is free when the file is durable without it.
func (l *late) give(seen int64) bool {
	defer l.tell()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full.Store(true)
	if l.given.Load() != seen {
		return true
	}
	if l.have == 0 {
		return false
	}
	left := max(l.have-lateStep, 0)
	err := retry(func() error { return unix.Ftruncate(l.fd, left) })
	if err == nil {
		l.have = left
		err = unix.Fsync(l.fd)
	}
	if err != nil {
		l.log.Warn("cannot give back a part of the reserve for late writes", "err", err)
	}
	if l.have != left {
		return false
	}
	l.given.Add(1)
	l.log.Info("the disk is full; a late write gets a part of the reserve", "left", left)
	return true
}

// early is how many bytes are still free when the volume becomes full.
func (l *late) early() int64 { return l.want / earlyShare }

func (l *late) wrote() {
	if l.want == 0 || l.full.Load() {
		return
	}
	defer l.tell()
	l.mu.Lock()
	defer l.mu.Unlock()
	if free, _ := freeOf(l.fd); l.fd >= 0 && free < l.early() {
		l.full.Store(true)
	}
}

// check is CheckRoom.
func (l *late) check() {
	defer l.tell()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.want == 0 || l.have == l.want && !l.full.Load() {
		return
	}
	select { // a write that waits needs less than the reserve
	case l.room <- struct{}{}:
	default:
	}
	free, share := freeOf(l.fd)
	if free < l.want-l.have+l.early()+min(lateRoom, share) {
		return
	}
	if err := l.take(); err != nil {
		l.log.Warn("cannot complete the reserve for late writes", "err", err)
		return
	}
	l.full.Store(false)
}

// freeOf tells how many bytes of the disk are free for everybody, and how many a
// lateShare-th of it has.
func freeOf(fd int) (free, share int64) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return 0, lateRoom
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize / lateShare
}

// tell brings who listens up to what is. It waits for nobody who does that already.
func (l *late) tell() {
	for l.told.Load() != l.full.Load() && l.telling.TryLock() {
		now := l.full.Load()
		if l.told.Swap(now) != now {
			l.log.Warn("the disk below is full for what the kernel has accepted, or is so no more", "full", now)
			if f := l.onFull.Load(); f != nil {
				(*f)(now)
			}
		}
		l.telling.Unlock()
	}
}

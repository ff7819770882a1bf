package tier

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
)

// Where the kernel writes back, the file below may lack what the broker wrote last, at
// its end or in its middle, and nothing below tells: a segment that ends at a batch is
// whole to whoever walks it. So a sealed segment is read only when the kernel has sent
// everything: nobody has it open for writing (the kernel flushes at the last close), or
// an fsync of it has come after it was sealed. Its broker writes no more to it then;
// if one does all the same, that WRITE comes later, and changes an uploaded or remote
// segment as any other.
//
// An fsync counts from when its request came in: by then the kernel had sent what was
// written before the call, and it lets no write(2) of that file in while it lasts. A
// flush at a close gives no such word about others who write.

// ReasonUnsent is why a segment waits while the kernel writes back.
const ReasonUnsent layout.Reason = "the kernel may hold unwritten pages of it"

const (
	// flushTimeout is how long Options.Flush may take.
	flushTimeout = 30 * time.Second
	// After a failure of it, the same file is not tried again for so long.
	flushPauseMin = time.Second
	flushPauseMax = time.Minute
)

// ticks number what happens in a volume: fsyncs that come in and segments that become
// known. What a plain start finds is of tick 0, at which everything had been sent. A
// successor knows of no fsync before it: what it finds is of tick 1.
type ticks struct {
	n      atomic.Int64
	first  int64
	starts bool // while Open runs, which is alone
}

func (t *ticks) begin(takeover bool) {
	t.n.Store(1)
	t.starts = true
	if takeover {
		t.first = 1
	}
}

func (t *ticks) booted() { t.starts = false }

// next is the tick of what happens now.
func (t *ticks) next() int64 {
	if t.starts {
		return t.first
	}
	return t.n.Add(1)
}

// Sync is an fsync that has come in and is not done yet.
type Sync struct {
	f    *File
	tick int64
}

// Syncing tells that an fsync of the file through the mount has come in. Call it before
// anything is done for it, and Done of what it returns before it is answered.
func (f *File) Syncing() Sync { return Sync{f, f.v.ticks.next()} }

// Done tells how the fsync ended; ok: it succeeded.
func (s Sync) Done(ok bool) {
	if !ok {
		return
	}
	f := s.f
	for have := f.synced.Load(); have < s.tick && !f.synced.CompareAndSwap(have, s.tick); have = f.synced.Load() {
	}
	if f.dirty.Swap(false) || f.v.opt.Writeback { // somebody may wait for it
		f.v.touched(f)
	}
}

// unsent reports whether the kernel may hold something of the file that was written
// before a tick.
func (f *File) unsent(before int64) bool {
	return f.v.opt.Writeback && f.writers.Load() > 0 && f.synced.Load() < before
}

// sealedAt is the tick at which the segment was sealed.
func (p *Partition) sealedAt(start uint64) (int64, layout.Reason) {
	p.v.mu.RLock()
	defer p.v.mu.RUnlock()
	i, ok := p.find(start)
	switch {
	case !ok:
		return 0, ReasonGone
	case i+1 >= len(p.segments):
		return 0, ReasonActive
	}
	return p.segments[i+1].known, ""
}

// flushed makes sure that the kernel holds nothing of the segment and of the files
// beside it, or fails with a [*Refused].
func (u *Upload) flushed(ctx context.Context, s Segment) error {
	v := u.v
	if !v.opt.Writeback && v.opt.Flush == nil {
		return nil
	}
	fd, err := u.file.open(unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := v.flushSegment(ctx, u.p, s, fd); err != nil {
		return err
	}
	dir, err := v.openDir(u.p.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	for _, suffix := range v.Layout().SideSuffixes() {
		if err := v.flushBeside(ctx, u.p, s, dir, segment.Stem(s.Start)+suffix); err != nil {
			return err
		}
	}
	return nil
}

// flushSegment is flushed for the segment itself; fd is any descriptor of it.
func (v *Volume) flushSegment(ctx context.Context, p *Partition, s Segment, fd int) error {
	if !v.opt.Writeback {
		return nil
	}
	sealed, reason := p.sealedAt(s.Start)
	if reason != "" {
		return refuse(reason)
	}
	return v.flush(ctx, s.File, fd, join(p.Path(), s.Name()), func() bool { return s.File.unsent(sealed) })
}

// flushBeside is flushed for a file beside the segment. Such a file may be mapped, so
// that the kernel holds back what was written in either mode, and is refused while it is
// dirty. After a takeover that may be for ever: it is flushed then.
func (v *Volume) flushBeside(ctx context.Context, p *Partition, s Segment, dir int, name string) error {
	fd, err := openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	h, err := handle.At(fd, "")
	if err != nil {
		return err
	}
	f := v.known(h)
	if f == nil { // nobody has it open
		return nil
	}
	sealed, reason := p.sealedAt(s.Start)
	if reason != "" {
		return refuse(reason)
	}
	return v.flush(ctx, f, fd, join(p.Path(), name), func() bool {
		return f.unsent(sealed) || f.dirty.Load() && f.reopened.Load()
	})
}

// flush has the kernel send what it holds of a file, if it must. The caller holds no
// lock.
func (v *Volume) flush(ctx context.Context, f *File, fd int, path string, must func() bool) error {
	if !must() {
		return nil
	}
	if v.opt.Flush == nil || f.flush.pauses(time.Now()) {
		return refuse(ReasonUnsent)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pathError("stat", path, err)
	}
	limited, cancel := context.WithTimeout(ctx, flushTimeout)
	err := v.opt.Flush(limited, path, st.Ino)
	cancel()
	switch {
	case !must():
		f.flush.worked()
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	pause := f.flush.failed(time.Now())
	v.log.Warn("the kernel does not hand on what it may hold of a file; it is asked again", "file", path, "in", pause, "err", err)
	return refuse(ReasonUnsent)
}

// flushPause is when a file is flushed again after a failure.
type flushPause struct {
	mu    sync.Mutex // a leaf
	pause time.Duration
	until time.Time
}

func (p *flushPause) pauses(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Before(p.until)
}

func (p *flushPause) failed(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = min(max(2*p.pause, flushPauseMin), flushPauseMax)
	p.until = now.Add(p.pause)
	return p.pause
}

func (p *flushPause) worked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause, p.until = 0, time.Time{}
}

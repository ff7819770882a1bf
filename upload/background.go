package upload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// Unlimited as a size is no limit.
const Unlimited int64 = math.MaxInt64

// Errors of EvictNow.
var (
	// ErrPaused: uploads, evictions and deletions are paused.
	ErrPaused = errors.New("uploads and evictions are paused")
	// ErrStopped: the background has ended.
	ErrStopped = errors.New("uploads and evictions have stopped")
)

// Options configure the background of one volume. Zero fields without another
// default in their comment mean what their type's zero says.
type Options struct {
	Volume *tier.Volume
	// Store has its decorators: deadlines (with [FloorRate] as their rate) and
	// retries (with [Patience] as theirs). It is used for uploads only; evictions and
	// deletions use the volume's.
	Store objstore.Store
	// Features says what the store is known to do, now; nil or the zero value is
	// safe: every object is read back.
	Features func() objstore.Features
	// VerifyAlways reads every object back, whatever the store enforces.
	VerifyAlways bool
	// ConditionalWrites lets a PUT say that the key must be free, where the store
	// can do it. Keys are never used twice either way.
	ConditionalWrites bool
	// StorageClass is that of the segments' own objects; "" is the bucket's.
	StorageClass string

	Concurrency int           // uploads at once at most; 0: 4
	BackoffMax  time.Duration // between two tries of a partition; 0: 10 s
	// SegmentTimeout bounds the upload of one segment, beside the time that its
	// size needs; 0: 90 s.
	SegmentTimeout time.Duration
	Bandwidth      int64 // bytes per second of all uploads together; 0, Unlimited: no limit

	Retention   Retention
	DeleteBatch int // uploads whose objects go in one pass; 0: 300

	// Disk says how full the local disk is; nil: that of the volume's root.
	Disk func() (Disk, error)

	Log     *slog.Logger
	Metrics *metrics.Upload // may be nil
}

func (o Options) withDefaults() Options {
	o.Concurrency = cmp.Or(max(o.Concurrency, 0), 4)
	o.BackoffMax = cmp.Or(max(o.BackoffMax, 0), 10*time.Second)
	o.SegmentTimeout = cmp.Or(max(o.SegmentTimeout, 0), 90*time.Second)
	o.DeleteBatch = cmp.Or(max(o.DeleteBatch, 0), 300)
	if o.Bandwidth <= 0 {
		o.Bandwidth = Unlimited
	}
	if o.Features == nil {
		o.Features = func() objstore.Features { return objstore.Features{} }
	}
	if o.Retention.For == nil {
		o.Retention.For = func(string) Rule { return Rule{} }
	}
	if o.Disk == nil {
		v := o.Volume
		o.Disk = func() (Disk, error) { return diskOf(v.StateDir()) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Background is the loops of a volume. All methods may be called in
// parallel.
type Background struct {
	opt      Options
	paused   atomic.Bool
	uploader *uploader
	evictor  *evictor
	retirer  *retirer
	stopped  chan struct{} // closed when Run has returned
	changed  signal        // fires when Paused, the owner or Run changes

	mu       sync.Mutex // guards what follows
	unasked  time.Time  // since when the store cannot be asked for the owner; zero: it can
	askError error
}

// New prepares the background; nothing runs before Run.
func New(opt Options) *Background {
	b := &Background{opt: opt.withDefaults(), stopped: make(chan struct{})}
	b.uploader = newUploader(b)
	b.evictor = newEvictor(b)
	b.retirer = &retirer{b: b, bell: newBell()}
	return b
}

// Run runs every loop until ctx ends, and returns nil when all have stopped:
// uploads under way are given up and their intents have become tombstones. It may
// be called once.
func (b *Background) Run(ctx context.Context) error {
	defer b.changed.fire()
	defer close(b.stopped)
	var g errgroup.Group
	for _, loop := range []func(context.Context){b.claim, b.uploader.run, b.evictor.run, b.retirer.run, b.checkRoom} {
		g.Go(func() error {
			loop(ctx)
			return nil
		})
	}
	return g.Wait()
}

// checkRoom looks after the reserve for late writes: whoever waits for room waits for no eviction or upload that hangs.
func (b *Background) checkRoom(ctx context.Context) {
	tick := time.NewTicker(evictTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.opt.Volume.CheckRoom()
		}
	}
}

// Pause starts no more uploads, evictions and deletions. Those under way may
// finish.
func (b *Background) Pause() {
	b.paused.Store(true)
	b.changed.fire()
}

// Resume undoes Pause.
func (b *Background) Resume() {
	b.paused.Store(false)
	b.ring()
}

// Paused reports whether Pause was the last of Pause and Resume.
func (b *Background) Paused() bool { return b.paused.Load() }

// mayAct reports whether anything may be put, evicted or deleted now.
func (b *Background) mayAct() bool { return !b.paused.Load() && b.opt.Volume.Owner() == nil }

// ring wakes every loop.
func (b *Background) ring() {
	b.uploader.bell.ring()
	b.evictor.bell.ring()
	b.retirer.bell.ring()
	b.changed.fire()
}

const claimTimeout = 30 * time.Second

// claim asks the store until it says whether this mount owns the volume.
func (b *Background) claim(ctx context.Context) {
	for n := 0; ; n++ {
		try, cancel := context.WithTimeout(ctx, claimTimeout)
		err := b.opt.Volume.CheckOwner(try)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil || errors.Is(err, tier.ErrNotOwner) {
			b.claimed(err)
			return
		}
		b.unclaimed(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff(n, b.opt.BackoffMax)):
		}
	}
}

func (b *Background) claimed(err error) {
	b.mu.Lock()
	b.unasked, b.askError = time.Time{}, nil
	b.mu.Unlock()
	if err != nil {
		b.notOwner(err)
	}
	b.ring()
}

func (b *Background) unclaimed(err error) {
	b.mu.Lock()
	first := b.unasked.IsZero()
	if first {
		b.unasked = time.Now()
	}
	b.askError = err
	b.mu.Unlock()
	b.changed.fire()
	if first {
		b.opt.Log.Warn("the store cannot say who owns the volume; uploads, evictions and deletions wait", "err", err)
	}
}

// notOwner says once that this mount stopped uploading: of claim and the retirer
// only the one that learns of it calls.
func (b *Background) notOwner(err error) {
	b.opt.Log.Error("not the volume's owner: nothing is uploaded, evicted or deleted; reads go on", "err", err)
	b.changed.fire()
}

// Patience is how long the store's own retries may go on while an upload fails. What
// fails for longer is the uploader's to try again: it then shows as a stall, and
// only one upload at a time asks whether the store is back.
const Patience = 10 * time.Second

// FloorRate is the rate in bytes per second below which one upload counts as
// hanging, for the deadlines around the store: 1 MiB/s, or less where the
// bandwidth for all does not give each upload that much.
func FloorRate(bandwidth int64, concurrency int) int64 {
	const floor = 1 << 20
	if bandwidth <= 0 || bandwidth == Unlimited {
		return floor
	}
	return max(1, min(floor, bandwidth/int64(2*max(concurrency, 1))))
}

// backoff is the pause after the n-th failure in a row, counted from 0.
func backoff(n int, most time.Duration) time.Duration {
	return min(100*time.Millisecond<<min(n, 30), most)
}

// admit waits until the store has been asked once for the owner.
func (b *Background) admit(ctx context.Context) error {
	for {
		changed := b.changed.wait()
		err := b.barred()
		b.mu.Lock()
		failed := b.askError
		b.mu.Unlock()
		switch {
		case err == nil, errors.Is(err, ErrStopped), errors.Is(err, ErrPaused), errors.Is(err, tier.ErrNotOwner):
			return err
		case failed != nil:
			return fmt.Errorf("%w: %w", err, failed)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// barred says why nothing may be done now.
func (b *Background) barred() error {
	select {
	case <-b.stopped:
		return ErrStopped
	default:
	}
	if b.paused.Load() {
		return ErrPaused
	}
	if err := b.opt.Volume.Owner(); err != nil {
		return fmt.Errorf("cannot evict: %w", err)
	}
	return nil
}

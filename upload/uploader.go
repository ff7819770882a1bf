package upload

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tierfs/tierfs/tier"
)

const (
	// watchPace is how often changes of the catalog are looked at, at most.
	watchPace = 250 * time.Millisecond
	// refusalPause is how soon a refused segment is looked at again unasked.
	refusalPause = time.Second
	// patience is how long a segment waits for its turn before every slot opens.
	patience = 5 * time.Second
	// pressTime is how long a partition stays at the head when nobody presses again.
	pressTime = 15 * time.Second
	// stalledAfter is how long uploads fail before that counts as a stall.
	stalledAfter = time.Minute
	// logEvery is how often a failure that goes on is logged.
	logEvery = time.Minute
	// maxHeld bounds the prepared uploads, and their descriptors, that wait for the
	// store to come back.
	maxHeld = 64
)

// The uploader's queue is its lanes: one goroutine decides which lane starts, and
// each running upload has its own.
type uploader struct {
	b       *Background
	bell    bell
	results chan result
	limiter *rate.Limiter
	changed signal // fires after each result
	loose   *ahead // of the last result, until dispatch has started its lane or not
	aheads  sync.WaitGroup

	mu      sync.Mutex // guards what follows and the lanes' fields; held for no call of tier
	lanes   map[*tier.Partition]*lane
	running int
	backlog int
	held    int
	trouble trouble
	logged  time.Time // the last line about trouble
}

// trouble is a store that fails: uploads then try one at a time, with a pause.
type trouble struct {
	failures int // in a row, over all lanes
	until    time.Time
	said     bool // there is a line about it in the log
}

func newUploader(b *Background) *uploader {
	return &uploader{
		b: b, bell: newBell(), results: make(chan result),
		limiter: newLimiter(b.opt.Bandwidth), lanes: map[*tier.Partition]*lane{},
	}
}

func (u *uploader) run(ctx context.Context) {
	watch := u.b.opt.Volume.Watch()
	defer watch.Close()
	defer u.stop()
	calm := pace{every: watchPace}
	for {
		next := u.dispatch(ctx)
		events, later := calm.events(watch.C())
		select {
		case <-ctx.Done():
			return
		case <-events:
			for _, p := range watch.Take() {
				u.refresh(p, true)
			}
			calm.looked()
		case r := <-u.results:
			u.finish(ctx, r)
		case <-u.bell:
		case <-alarm(earlier(next, later)):
		}
	}
}

// stop waits for the uploads under way, which end with the context, and gives up
// those that were to go on later.
func (u *uploader) stop() {
	for u.active() > 0 {
		r := <-u.results
		u.mu.Lock()
		u.running--
		u.mu.Unlock()
		u.b.opt.Metrics.Running(-1)
		r.ahead.drop()
		if r.store {
			u.abort(r.a)
		}
	}
	u.aheads.Wait()
	u.mu.Lock()
	lanes := u.lanes
	u.lanes = map[*tier.Partition]*lane{}
	u.mu.Unlock()
	for _, l := range lanes {
		if l.held != nil {
			u.abort(l.held)
		}
	}
}

func (u *uploader) active() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running
}

func (u *uploader) abort(a *attempt) {
	if err := a.abort(); err != nil {
		u.b.opt.Log.Warn("an upload that was given up stays an intent until the next mount", "partition", a.p.Path(), "segment", a.s.Name(), "err", err)
	}
}

// refresh looks at a partition; event: something changed, so that what was refused
// may be taken now.
func (u *uploader) refresh(p *tier.Partition, event bool) {
	var segs []tier.Segment
	if p.Reason() == "" && u.b.opt.Retention.For(p.Name().Topic).Tiered {
		segs = p.NotHeld()
	}
	u.mu.Lock()
	l := u.lanes[p]
	if l == nil {
		l = &lane{p: p}
		u.lanes[p] = l
	}
	u.backlog -= l.waiting
	drop := l.look(segs, time.Now(), event)
	u.backlog += l.waiting
	if drop != nil {
		u.held--
	}
	if l.idle() {
		delete(u.lanes, p)
	}
	u.b.opt.Metrics.Queue(u.backlog)
	waits, next := l.waiting > 0 && !l.busy, l.next
	u.mu.Unlock()
	if drop != nil {
		u.abort(drop)
	}
	if waits {
		u.rest(l, next)
	}
}

// rest leaves a segment of a layout with a quiet time alone until that is over.
func (u *uploader) rest(l *lane, s tier.Segment) {
	rules := u.b.opt.Volume.Layout()
	if rules == nil || rules.QuietTime() <= 0 {
		return
	}
	use, err := s.File.Usage()
	if err != nil {
		return // Prepare says what is wrong
	}
	now := time.Now()
	if until := use.Modified.Add(rules.QuietTime()); until.After(now) && !use.Modified.After(now) {
		u.mu.Lock()
		defer u.mu.Unlock()
		l.refuse(tier.ReasonWriting, now, until)
	}
}

// dispatch starts what may start, and returns when to look again. A proof whose
// lane does not go on at once is dropped.
func (u *uploader) dispatch(ctx context.Context) (next time.Time) {
	defer func() {
		u.loose.drop()
		u.loose = nil
	}()
	if ctx.Err() != nil || !u.b.mayAct() {
		return time.Time{} // the bell rings when that changes
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for {
		first, oldest, next := u.queue(now)
		if first == nil || u.running >= u.allowed(now.Sub(oldest), now) {
			return next
		}
		u.start(ctx, first)
	}
}

// queue returns the lane that is next, since when the oldest waits, and when the
// answer may change by time alone. The caller holds u.mu.
func (u *uploader) queue(now time.Time) (first *lane, oldest, next time.Time) {
	if u.trouble.until.After(now) {
		next = u.trouble.until
	}
	// While as much is prepared as may be, that tries whether the store is back: what
	// is not would be read for nothing. Now and then another one tries all the same,
	// for it may be those alone that fail.
	crowded := u.held >= maxHeld && u.trouble.failures%maxHeld > 0
	for _, l := range u.lanes {
		switch {
		case crowded && l.held == nil:
		case l.ready(now):
			if first == nil || l.before(first, now) {
				first = l
			}
			oldest = earlier(oldest, l.since)
			if full := l.since.Add(patience); full.After(now) {
				next = earlier(next, full)
			}
		case l.waiting > 0 && !l.busy:
			next = earlier(next, l.again)
		}
	}
	return first, oldest, next
}

// allowed is how many uploads may run at once: one for every two segments that
// wait, and as many as there may be when one has waited for long. The caller holds
// u.mu.
func (u *uploader) allowed(waited time.Duration, now time.Time) int {
	switch most := u.b.opt.Concurrency; {
	case u.trouble.until.After(now):
		return 0
	case u.trouble.failures > 0:
		return 1
	case waited >= patience:
		return most
	default:
		return min(max((u.backlog+1)/2, 1), most)
	}
}

// start runs the lane's next upload. The caller holds u.mu.
func (u *uploader) start(ctx context.Context, l *lane) {
	a, stale := l.held, (*attempt)(nil)
	if a != nil {
		l.held = nil
		u.held--
		if !a.isOf(l.next) {
			a, stale = nil, a
		}
	}
	if a == nil {
		a = &attempt{p: l.p, s: l.next, changes: l.next.File.Changes()}
		if u.loose.isOf(l.next) {
			a.ahead, u.loose = u.loose, nil
		}
	}
	l.busy = true
	u.running++
	u.b.opt.Metrics.Running(1)
	go func() {
		if stale != nil {
			u.abort(stale)
		}
		u.results <- u.carry(ctx, l, a)
	}()
}

// finish takes the result of an upload, and looks at its partition again.
func (u *uploader) finish(ctx context.Context, r result) {
	u.b.opt.Metrics.Running(-1)
	u.mu.Lock()
	u.running--
	r.l.busy = false
	keep := r.store && ctx.Err() == nil && u.held < maxHeld
	if keep {
		r.l.held = r.a
		u.held++
	}
	u.mu.Unlock()
	u.loose = r.ahead
	if r.store && !keep {
		u.abort(r.a)
	}
	u.settle(ctx, r)
	u.refresh(r.l.p, false)
	u.changed.fire()
}

package upload

import (
	"context"
	"errors"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/tier"
)

const (
	// evictTick is how often the evictor looks at the disk and at what is due.
	evictTick = 5 * time.Second
	// evictPace is how often changes of the catalog are looked at, at most.
	evictPace = time.Second
	// evictPause is the longest pause after an eviction that failed.
	evictPause = time.Minute
)

// The evictor drops local copies one at a time. Only its own goroutine touches
// its fields.
type evictor struct {
	b    *Background
	bell bell

	plots     map[*tier.Partition]*plot
	shares    map[string]int // partitions by topic
	relieving bool           // the disk was above the high mark and is not below the low one yet
	diskFails bool           // the last statfs failed
}

// plot is a partition with something to evict, now or later.
type plot struct {
	due      time.Time // the next look by age; zero: none
	sized    bool      // the active segment's growth can make something due
	failures int
	again    time.Time // not before, after a failure
}

func newEvictor(b *Background) *evictor {
	return &evictor{b: b, bell: newBell(), plots: map[*tier.Partition]*plot{}}
}

func (e *evictor) run(ctx context.Context) {
	watch := e.b.opt.Volume.Watch()
	defer watch.Close()
	calm := pace{every: evictPace}
	tick := time.NewTicker(evictTick)
	defer tick.Stop()
	for {
		events, later := calm.events(watch.C())
		select {
		case <-ctx.Done():
			return
		case <-events:
			e.changed(ctx, watch.Take())
			calm.looked()
		case <-e.bell:
			e.tick(ctx)
		case <-tick.C:
			e.tick(ctx)
		case <-alarm(later):
		}
	}
}

// changed looks at partitions in which something changed.
func (e *evictor) changed(ctx context.Context, ps []*tier.Partition) {
	e.shares = shares(e.b.opt.Volume)
	pass := e.pass()
	for _, p := range ps {
		e.look(ctx, p, pass)
	}
}

// tick looks at the disk, and at each partition whose time has come.
func (e *evictor) tick(ctx context.Context) {
	now := time.Now()
	pass := e.pass()
	for p, l := range e.plots {
		if l.sized || !l.due.IsZero() && !l.due.After(now) {
			e.look(ctx, p, pass)
		}
	}
	e.relieve(ctx, pass)
}

// look evicts what retention does not keep of a partition, and finishes what stopped
// half way.
func (e *evictor) look(ctx context.Context, p *tier.Partition, pass *pass) {
	rule := e.b.opt.Retention.For(p.Name().Topic)
	segs := p.NotRemote()
	if p.Reason() != "" || !rule.Tiered || len(segs) == 0 {
		delete(e.plots, p)
		return
	}
	l := e.plots[p]
	if l == nil {
		l = &plot{}
		e.plots[p] = l
	}
	now := time.Now()
	n, next := rule.surplus(segs, e.shares[p.Name().Topic], now)
	l.due, l.sized = next, rule.Size != Unlimited
	if l.again.After(now) || !e.b.mayAct() {
		l.due = now // looked at again at the next tick
		return
	}
	for i, s := range segs {
		if stopped := s.State == tier.Leaving || s.State == tier.Filling; s.State == tier.Remote || i >= n && !stopped {
			continue
		}
		if !e.evict(ctx, l, p, s, pass) {
			l.due = now
			return
		}
	}
}

// evict drops one local copy; false: it stays, and so do those behind it.
func (e *evictor) evict(ctx context.Context, l *plot, p *tier.Partition, s tier.Segment, pass *pass) bool {
	if ctx.Err() != nil || !e.b.mayAct() {
		return false
	}
	reason, err := e.b.evict(ctx, p, s, pass)
	switch {
	case err == nil:
		l.failures = 0
		return reason == ""
	case ctx.Err() != nil:
		return false
	}
	l.again = time.Now().Add(min(evictTick<<min(l.failures, 10), evictPause))
	l.failures++
	e.b.opt.Log.Warn("eviction failed; it is tried again", "partition", p.Path(), "segment", s.Name(), "failures", l.failures, "err", err)
	return false
}

// pass is one look at the catalog, with the broker's checkpoints read at most once.
type pass struct {
	v      *tier.Volume
	read   bool
	bounds layout.Bounds
	err    error
}

func (e *evictor) pass() *pass { return &pass{v: e.b.opt.Volume} }

func (p *pass) ready() bool {
	if !p.read {
		p.bounds, p.err = p.v.Bounds()
		p.read = true
	}
	return p.err == nil
}

// allows says why a segment must stay, from all that the catalog knows.
func (p *pass) allows(part *tier.Partition, s tier.Segment) layout.Reason {
	if !p.ready() {
		return tier.ReasonBounds
	}
	return part.Evictable(s.Start, p.bounds)
}

// beyond says whether the broker's checkpoints stand against an eviction.
func (p *pass) beyond(part *tier.Partition, s tier.Segment) layout.Reason {
	if !p.ready() {
		return tier.ReasonBounds
	}
	return p.bounds.Evictable(part.Name(), s.Next)
}

// evict drops the local copy of a segment, or returns why it stays. Nothing is
// opened or flushed for a segment that must stay anyway.
func (b *Background) evict(ctx context.Context, p *tier.Partition, s tier.Segment, pass *pass) (layout.Reason, error) {
	if s.State != tier.Leaving && s.State != tier.Filling { // those may have stopped half way
		switch reason := pass.allows(p, s); reason {
		case "":
		case tier.ReasonRemote:
			return "", nil // somebody else was faster
		default:
			return reason, nil
		}
	}
	err := b.opt.Volume.Evict(ctx, p, s)
	var refused *tier.Refused
	switch {
	case err == nil:
		b.opt.Metrics.Evicted(s.Record.Size)
		b.opt.Log.Debug("evicted", "partition", p.Path(), "segment", s.Name(), "bytes", s.Record.Size)
		return "", nil
	case !errors.As(err, &refused):
		return "", err
	case refused.Reason == tier.ReasonRemote, s.File.State() == tier.Remote:
		return "", nil
	}
	return refused.Reason, nil
}

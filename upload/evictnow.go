package upload

import (
	"context"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/tier"
)

// Amount is a number of segments and their bytes.
type Amount struct {
	Segments int64
	Bytes    int64
}

func (a *Amount) add(bytes int64) {
	a.Segments++
	a.Bytes += bytes
}

// Step is one thing that EvictNow did or saw done.
type Step struct {
	Action  string // upload or evict
	Segment string // path relative to the volume's root
	Bytes   int64
	// Done and Total count bytes of all that is to be evicted.
	Done, Total int64
}

// Result is what EvictNow did or saw done, and what could not be done. Before counts
// what needed nothing any more when the call began: the background is always at work.
type Result struct {
	Uploaded, Evicted             Amount
	UploadedBefore, EvictedBefore Amount // in the store, of what was to be evicted; remote, of the topics asked for
	Stayed                        map[layout.Reason]Amount
}

const (
	// refusedLong is how long EvictNow waits for a segment that cannot be taken now.
	refusedLong = 10 * time.Second
	// evictNowPace is how often EvictNow looks while nothing happens: what stands
	// against an upload may end without one.
	evictNowPace = time.Second
)

// EvictNow uploads and evicts, of the topics that the function picks (nil: all),
// what retention says is due, or with all everything that may go. Segments sealed
// later do not count. It returns when each of them is remote or is known to stay,
// and says why those stay: the broker's checkpoints, an upload that failed since
// the call, and so on. progress, if not nil, is called for each step by this
// goroutine.
//
// It fails with [ErrPaused] or [ErrStopped], with the volume's error while this
// mount does not own it, or with ctx's; the Result then says what was done.
func (b *Background) EvictNow(ctx context.Context, topics func(string) bool, all bool, progress func(Step)) (Result, error) {
	r := &request{b: b, began: time.Now(), progress: progress, result: Result{Stayed: map[layout.Reason]Amount{}}}
	if err := b.admit(ctx); err != nil {
		return r.result, err
	}
	r.collect(topics, all)
	for {
		uploaded, changed := b.uploader.changed.wait(), b.changed.wait()
		if err := b.barred(); err != nil {
			return r.result, err
		}
		pass := &pass{v: b.opt.Volume}
		waiting := r.targets[:0]
		for _, t := range r.targets {
			if !r.advance(ctx, t, pass) {
				waiting = append(waiting, t)
			}
		}
		r.targets = waiting
		if err := ctx.Err(); err != nil || len(waiting) == 0 {
			return r.result, err
		}
		select {
		case <-ctx.Done():
		case <-uploaded:
		case <-changed:
		case <-time.After(evictNowPace):
		}
	}
}

// request is one EvictNow.
type request struct {
	b           *Background
	began       time.Time
	progress    func(Step)
	targets     []*target
	done, total int64
	result      Result
}

// target is a partition with the segments that are to go.
type target struct {
	p     *tier.Partition
	rest  []wanted      // oldest first
	stuck layout.Reason // why the first of rest stays
}

type wanted struct {
	start    uint64
	file     *tier.File
	bytes    int64
	uploaded bool // when it was last looked at
}

// collect finds what is to go. With all, what never can is counted at once.
func (r *request) collect(topics func(string) bool, all bool) {
	opt := &r.b.opt
	now := time.Now()
	parts := shares(opt.Volume)
	for _, p := range opt.Volume.Partitions() {
		topic := p.Name().Topic
		if topics != nil && !topics(topic) {
			continue
		}
		rule := opt.Retention.For(topic)
		segs := p.Segments()
		r.gone(segs)
		never := p.Reason()
		if never == "" && !rule.Tiered {
			never = ReasonOff
		}
		n := len(segs)
		if !all {
			n, _ = rule.surplus(segs, parts[topic], now)
		}
		if never != "" && !all {
			continue
		}
		t := &target{p: p}
		for _, s := range segs[:n] {
			r.sort(t, s, never)
		}
		if len(t.rest) > 0 {
			r.targets = append(r.targets, t)
			r.b.uploader.press(p)
		}
	}
}

// gone counts what is remote already.
func (r *request) gone(segs []tier.Segment) {
	for _, s := range segs {
		if s.State == tier.Remote || s.State == tier.Filling {
			r.result.EvictedBefore.add(s.Record.Size)
		}
	}
}

func (r *request) sort(t *target, s tier.Segment, never layout.Reason) {
	switch bytes := localSize(s); {
	case s.State == tier.Quarantined:
		r.stays(tier.ReasonQuarantine, bytes)
	case s.State == tier.Remote || s.State == tier.Filling:
	case never != "":
		r.stays(never, bytes)
	case s.Active:
		r.stays(tier.ReasonActive, bytes)
	default:
		t.rest = append(t.rest, wanted{s.Start, s.File, bytes, s.Held()})
		if s.Held() {
			r.result.UploadedBefore.add(bytes)
		}
		r.total += bytes
	}
}

func (r *request) stays(why layout.Reason, bytes int64) {
	a := r.result.Stayed[why]
	a.add(bytes)
	r.result.Stayed[why] = a
}

func (r *request) step(action string, t *target, s tier.Segment, bytes int64) {
	if action == "evict" {
		r.done += bytes
	}
	if r.progress != nil {
		r.progress(Step{action, t.p.Path() + "/" + s.Name(), bytes, r.done, r.total})
	}
}

// advance takes a target as far as it goes now; true: it needs no more looks.
func (r *request) advance(ctx context.Context, t *target, pass *pass) bool {
	segs := map[uint64]tier.Segment{}
	for _, s := range t.p.Segments() {
		segs[s.Start] = s
	}
	for i := range t.rest {
		w := &t.rest[i]
		if s, ok := w.in(segs); ok && s.Held() && !w.uploaded {
			w.uploaded = true
			r.result.Uploaded.add(w.bytes)
			r.step("upload", t, s, w.bytes)
		}
	}
	for t.stuck == "" && len(t.rest) > 0 && ctx.Err() == nil {
		w := t.rest[0]
		if s, ok := w.in(segs); ok {
			why, wait := r.evict(ctx, t, s, pass)
			if wait {
				return false
			}
			if t.stuck = why; why != "" {
				break
			}
			r.result.Evicted.add(w.bytes)
			r.step("evict", t, s, w.bytes)
		}
		t.rest = t.rest[1:] // else the broker has deleted it
	}
	if t.stuck != "" {
		if r.uploading(t, segs) {
			return false
		}
		r.giveUp(t, segs)
		return true
	}
	return len(t.rest) == 0
}

// in finds the wanted segment among those of now.
func (w wanted) in(segs map[uint64]tier.Segment) (tier.Segment, bool) {
	s, ok := segs[w.start]
	return s, ok && s.File == w.file
}

// uploading reports whether segments that cannot be evicted are still on their way
// to the store.
func (r *request) uploading(t *target, segs map[uint64]tier.Segment) bool {
	for _, w := range t.rest {
		s, ok := w.in(segs)
		if !ok || s.State != tier.Local {
			continue
		}
		why, final := r.b.uploader.gaveUp(t.p, s, r.began, refusedLong)
		switch {
		case !final:
			return true
		case why != tier.ReasonNotWhole && why != tier.ReasonTooLarge:
			return false // those behind wait for this one
		}
	}
	return false
}

// evict makes one segment remote; why: it stays; wait: it is not decided yet.
func (r *request) evict(ctx context.Context, t *target, s tier.Segment, pass *pass) (why layout.Reason, wait bool) {
	switch s.State {
	case tier.Remote, tier.Filling:
		return "", false
	case tier.Quarantined:
		return tier.ReasonQuarantine, false
	case tier.Local:
		r.b.uploader.press(t.p)
		why, final := r.b.uploader.gaveUp(t.p, s, r.began, refusedLong)
		return why, !final
	}
	why, err := r.b.evict(ctx, t.p, s, pass)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", true
	case err != nil:
		r.b.opt.Log.Warn("eviction failed", "partition", t.p.Path(), "segment", s.Name(), "err", err)
		return ReasonEvictionFailed, false
	}
	// What was refused because it changed is local again, and uploaded anew.
	return why, why != "" && s.File.State() == tier.Local
}

// giveUp counts what stays of a target: its first segment for the reason that it is
// stuck for, each one behind for its own, or because of the first.
func (r *request) giveUp(t *target, segs map[uint64]tier.Segment) {
	r.stays(t.stuck, t.rest[0].bytes)
	reasons := r.b.reasons(t.p)
	for _, w := range t.rest[1:] {
		if _, ok := w.in(segs); !ok {
			continue
		}
		own := reasons[w.start]
		if own == "" {
			own = ReasonBehind
		}
		r.stays(own, w.bytes)
	}
}

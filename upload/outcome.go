package upload

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// Why a segment stays local, beside tier's reasons and the layout's.
const (
	ReasonFailing        layout.Reason = "upload fails"
	ReasonEvictionFailed layout.Reason = "eviction fails"
	ReasonOff            layout.Reason = "tiered storage is off"
	ReasonBehind         layout.Reason = "behind one that stays"
)

// settle draws the consequences of a result for its lane and for the store.
func (u *uploader) settle(ctx context.Context, r result) {
	var refused *tier.Refused
	var notWhole *tier.NotWhole
	switch {
	case r.err == nil:
		u.succeeded(r)
	case ctx.Err() != nil:
		return
	case errors.As(r.err, &notWhole):
		u.rejects(r, rejectionReason(r.err), tier.ReasonNotWhole)
	case errors.As(r.err, &refused) && refused.Reason == tier.ReasonTooLarge:
		u.rejects(r, refused.Reason, refused.Reason)
	case errors.Is(r.err, objstore.ErrTooLarge):
		u.rejects(r, tier.ReasonTooLarge, tier.ReasonTooLarge)
	case errors.As(r.err, &refused):
		u.refuses(r, refused.Reason)
	case !r.store && (errors.Is(r.err, unix.ESTALE) || errors.Is(r.err, unix.ENOENT)):
		u.refuses(r, tier.ReasonGone)
	default:
		u.failed(r)
	}
}

func (u *uploader) succeeded(r result) {
	opt := &u.b.opt
	size := r.record.Size
	opt.Metrics.Uploaded(r.took.Seconds(), size)
	u.mu.Lock()
	over := u.trouble
	r.l.recovered()
	u.trouble = trouble{}
	u.mu.Unlock()
	if over.said {
		opt.Log.Info("uploads work again", "failed", over.failures)
	}
	opt.Log.Debug("uploaded", "partition", r.a.p.Path(), "segment", r.a.s.Name(), "bytes", size, "took", r.took)
}

// rejects leaves a segment alone until it changes. label is for the metric.
func (u *uploader) rejects(r result, label, why layout.Reason) {
	u.mu.Lock()
	r.l.reject(r.a.s, r.a.changes, why)
	u.mu.Unlock()
	u.b.opt.Metrics.Rejected(string(label))
	u.b.opt.Log.Warn("a sealed segment is left alone", "partition", r.a.p.Path(), "segment", r.a.s.Name(), "reason", why, "err", r.err)
}

// refuses waits for what stands against the upload to go away: that is no failure.
func (u *uploader) refuses(r result, why layout.Reason) {
	if r.prepared {
		u.b.opt.Metrics.Failed(string(why))
	}
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	r.l.refuse(why, now, now.Add(refusalPause))
}

func (u *uploader) failed(r result) {
	opt := &u.b.opt
	opt.Metrics.Failed(objstore.Class(r.err))
	now := time.Now()
	u.mu.Lock()
	l := r.l
	l.fail(r.err, now, opt.BackoffMax)
	if r.store {
		u.trouble.until = now.Add(backoff(u.trouble.failures, opt.BackoffMax))
		u.trouble.failures++
	}
	failures := l.failures
	say := failures == 1 || now.Sub(l.logged) >= logEvery
	if r.store && u.trouble.failures > 1 { // one line for all partitions
		say = now.Sub(u.logged) >= logEvery
	}
	if say {
		l.logged = now
		if r.store {
			u.logged, u.trouble.said = now, true
		}
	}
	all := u.trouble.failures
	u.mu.Unlock()
	if say {
		opt.Log.Warn("upload failed; it is tried again", "partition", r.a.p.Path(), "segment", r.a.s.Name(), "failures", failures, "of_all", all, "err", r.err)
	}
}

// press takes a partition to the head of the queue for a while.
func (u *uploader) press(p *tier.Partition) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.lanes[p]
	if l == nil {
		return
	}
	if !l.pressed.After(now) {
		u.bell.ring()
	}
	l.pressed = now.Add(pressTime)
}

// why says what stands against the upload of a sealed local segment.
func (u *uploader) why(p *tier.Partition, s tier.Segment) layout.Reason {
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.lanes[p]
	if l == nil {
		return tier.ReasonNotYet
	}
	if r, ok := l.rejected[s.Start]; ok && r.stands(s) {
		return r.reason
	}
	switch {
	case l.waiting == 0 || l.next.Start != s.Start || l.busy && l.failures == 0:
		return tier.ReasonNotYet
	case l.failures > 0:
		return ReasonFailing
	case l.refused != "":
		return l.refused
	}
	return tier.ReasonNotYet
}

// gaveUp reports whether a caller who waits since then for the partition's next
// segment, s, need wait no longer: it is left alone, its upload has failed in that
// time, or it was refused for long.
func (u *uploader) gaveUp(p *tier.Partition, s tier.Segment, since time.Time, long time.Duration) (layout.Reason, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.lanes[p]
	if l == nil {
		return "", false
	}
	if r, ok := l.rejected[s.Start]; ok && r.stands(s) {
		return r.reason, true
	}
	switch {
	case l.waiting == 0 || l.next.Start != s.Start:
		return "", false
	case l.failed.After(since):
		return ReasonFailing, true
	case l.refused != "":
		from := l.refusedSince
		if from.Before(since) {
			from = since
		}
		return l.refused, time.Since(from) >= long
	}
	return "", false
}

// stall says how long uploads have failed and why, by the partition that waits
// longest; zero: none fails.
func (u *uploader) stall(now time.Time) (time.Duration, string) {
	u.mu.Lock()
	var worst lane
	for _, l := range u.lanes {
		if l.failures > 0 && (worst.p == nil || l.failing.Before(worst.failing)) {
			worst = *l
		}
	}
	u.mu.Unlock()
	if worst.p == nil {
		return 0, ""
	}
	return now.Sub(worst.failing), worst.p.Path() + ": " + worst.err.Error()
}

// counts are the uploads that run and the segments that wait, those included.
func (u *uploader) counts() (running, queued int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running, u.backlog
}

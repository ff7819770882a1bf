package upload

import (
	"errors"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/tier"
)

// lane is one partition's place in the queue: its oldest segment that waits, and
// when that may be tried. Its fields are guarded by the uploader's mu.
type lane struct {
	p       *tier.Partition
	waiting int          // sealed segments to be uploaded
	next    tier.Segment // the oldest of them, while waiting > 0
	second  tier.Segment // the one behind it, while waiting > 1
	since   time.Time    // when it took its place in the queue
	busy    bool         // an upload runs
	again   time.Time    // not before
	pressed time.Time    // to the head of the queue until then

	failures int       // in a row
	failing  time.Time // since when
	failed   time.Time // the last one
	err      error     // of it
	logged   time.Time

	refused      layout.Reason // why next cannot be taken now, though nothing failed
	refusedSince time.Time

	rejected map[uint64]rejection // by start: segments that are left alone
	held     *attempt             // a prepared upload that failed in the store, for the next try
}

// rejection is a segment that does not verify. It is looked at again when its
// bytes or the segment behind it changed.
type rejection struct {
	file    *tier.File
	changes int64
	next    uint64
	reason  layout.Reason
}

func (r rejection) stands(s tier.Segment) bool {
	return r.file == s.File && r.changes == s.File.Changes() && r.next == s.Next
}

// look takes over what the catalog says of the partition now; event: something
// changed in it. It returns a held upload that is of no use any more, to be
// aborted.
func (l *lane) look(segs []tier.Segment, now time.Time, event bool) (drop *attempt) {
	waiting := l.wanted(segs)
	same := len(waiting) > 0 && l.waiting > 0 && waiting[0].File == l.next.File && waiting[0].Start == l.next.Start
	l.waiting = len(waiting)
	if l.waiting > 0 {
		l.next = waiting[0]
	}
	if l.waiting > 1 {
		l.second = waiting[1]
	}
	if !same {
		l.since = now
		l.recovered()
	}
	if event && l.refused != "" {
		l.again = now
	}
	if l.held != nil && !l.busy && (l.waiting == 0 || !l.held.isOf(l.next)) {
		drop, l.held = l.held, nil
	}
	return drop
}

// wanted lists the sealed segments without an object, oldest first, without those
// that are left alone.
func (l *lane) wanted(segs []tier.Segment) []tier.Segment {
	var out []tier.Segment
	kept := 0
	for _, s := range segs {
		if s.Active || s.State != tier.Local {
			continue
		}
		if r, ok := l.rejected[s.Start]; ok {
			if r.stands(s) {
				kept++
				continue
			}
			delete(l.rejected, s.Start)
		}
		out = append(out, s)
	}
	if kept < len(l.rejected) {
		l.prune(segs)
	}
	return out
}

// prune forgets rejections of segments that are gone.
func (l *lane) prune(segs []tier.Segment) {
	local := map[uint64]bool{}
	for _, s := range segs {
		local[s.Start] = !s.Active && s.State == tier.Local
	}
	for start := range l.rejected {
		if !local[start] {
			delete(l.rejected, start)
		}
	}
}

// recovered forgets failures and refusals.
func (l *lane) recovered() {
	l.failures, l.failing, l.failed, l.err = 0, time.Time{}, time.Time{}, nil
	l.refused, l.refusedSince, l.again = "", time.Time{}, time.Time{}
}

func (l *lane) refuse(why layout.Reason, now, again time.Time) {
	if l.refused == "" {
		l.refusedSince = now
	}
	l.refused, l.again = why, again
}

func (l *lane) fail(err error, now time.Time, most time.Duration) {
	if l.failures == 0 {
		l.failing = now
	}
	l.failures++
	l.failed, l.err = now, err
	l.again, l.since = now.Add(backoff(l.failures-1, most)), now
	l.refused, l.refusedSince = "", time.Time{}
}

func (l *lane) reject(s tier.Segment, changes int64, why layout.Reason) {
	if l.rejected == nil {
		l.rejected = map[uint64]rejection{}
	}
	l.rejected[s.Start] = rejection{s.File, changes, s.Next, why}
}

// ready reports whether the lane can start now.
func (l *lane) ready(now time.Time) bool { return l.waiting > 0 && !l.busy && !l.again.After(now) }

// before reports whether the lane goes ahead of another one.
func (l *lane) before(o *lane, now time.Time) bool {
	if a, b := l.pressed.After(now), o.pressed.After(now); a != b {
		return a
	}
	if !l.since.Equal(o.since) {
		return l.since.Before(o.since)
	}
	return l.next.Start < o.next.Start
}

// idle reports whether the uploader may forget the lane.
func (l *lane) idle() bool {
	return l.waiting == 0 && !l.busy && l.held == nil && len(l.rejected) == 0
}

// rejectionReason is a short phrase of a fixed set for why a segment does not
// verify.
func rejectionReason(err error) layout.Reason {
	for _, known := range []error{
		segment.ErrTorn, segment.ErrChecksum, segment.ErrNotBatch, segment.ErrOrder, segment.ErrEmpty,
	} {
		if errors.Is(err, known) {
			return layout.Reason(known.Error())
		}
	}
	return tier.ReasonNotWhole
}

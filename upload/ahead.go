package upload

import (
	"context"
	"time"

	"github.com/tierfs/tierfs/tier"
)

// ahead is the proof of a lane's next segment, made while the one before it is
// sent: the disk and the store then work at the same time. It is a look only, and
// what makes it an upload waits for the lane's turn. A nil one is none.
type ahead struct {
	s       tier.Segment
	changes int64 // of the file when the look began
	cancel  context.CancelFunc
	ended   <-chan struct{} // closed when the look is canceled
	result  chan look       // gets one
}

// look is what came of it: a proof or an error.
type look struct {
	proof *tier.Proof
	err   error
}

// lookAhead begins to prove the segment behind one that is being sent, unless that
// is already more than the lane should take: while uploads fail, or another lane
// waits for its turn.
func (u *uploader) lookAhead(ctx context.Context, l *lane, a *attempt) *ahead {
	if ctx.Err() != nil || !u.b.mayAct() {
		return nil
	}
	u.mu.Lock()
	s, ok := u.behind(l, a, time.Now())
	u.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	h := &ahead{s: s, changes: s.File.Changes(), cancel: cancel, ended: ctx.Done(), result: make(chan look)}
	u.aheads.Go(func() {
		defer cancel()
		proof, err := u.b.opt.Volume.Prove(ctx, a.p, s)
		select {
		case h.result <- look{proof, err}:
		case <-ctx.Done():
			if err == nil {
				proof.Close()
			}
		}
	})
	return h
}

// behind returns the segment that may be proved while the attempt is sent. The
// caller holds u.mu.
func (u *uploader) behind(l *lane, a *attempt, now time.Time) (s tier.Segment, ok bool) {
	if u.trouble.failures > 0 || l.failures > 0 || l.waiting < 2 || !a.isOf(l.next) {
		return s, false
	}
	for _, other := range u.lanes {
		if other.ready(now) {
			return s, false
		}
	}
	return l.second, true
}

func (h *ahead) isOf(s tier.Segment) bool {
	return h != nil && h.s.File == s.File && h.s.Start == s.Start && h.s.Next == s.Next && h.changes == s.File.Changes()
}

// begin makes an upload of the proof once it is there.
func (h *ahead) begin() (*tier.Upload, error) {
	select {
	case r := <-h.result:
		if r.err != nil {
			return nil, r.err
		}
		return r.proof.Begin()
	case <-h.ended:
		return nil, context.Canceled
	}
}

// drop ends the look, which gives back what it holds.
func (h *ahead) drop() {
	if h != nil {
		h.cancel()
	}
}

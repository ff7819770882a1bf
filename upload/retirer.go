package upload

import (
	"context"
	"errors"
	"time"

	"github.com/tierfs/tierfs/tier"
)

// The retirer deletes the objects of tombstones whose grace is over, a batch at a
// time, and one batch after the other while there are more.
type retirer struct {
	b    *Background
	bell bell

	failures int
	logged   time.Time
}

// retirePace bounds how often a closed file makes the retirer look.
const retirePace = 500 * time.Millisecond

func (r *retirer) run(ctx context.Context) {
	v := r.b.opt.Volume
	calm := pace{every: retirePace}
	for {
		next := r.pass(ctx)
		calm.looked()
		for again := false; !again; {
			events, later := calm.events(v.RetireC())
			select {
			case <-ctx.Done():
				return
			case <-events:
				again = true
			case <-r.bell:
				again = true
			case <-alarm(earlier(next, later)):
				again = !next.IsZero() && !time.Now().Before(next)
			}
		}
	}
}

// pass deletes all that is due, and returns when to look again.
func (r *retirer) pass(ctx context.Context) time.Time {
	for ctx.Err() == nil && r.b.mayAct() {
		due, next := r.b.opt.Volume.Due(time.Now(), r.b.opt.DeleteBatch)
		if len(due) == 0 {
			return next
		}
		n, err := r.b.opt.Volume.Retire(ctx, due)
		r.b.opt.Metrics.Retired(n)
		if err != nil {
			return r.failed(ctx, err)
		}
		r.failures = 0
	}
	return time.Time{} // Resume and the claim ring the bell
}

func (r *retirer) failed(ctx context.Context, err error) time.Time {
	if ctx.Err() != nil {
		return time.Time{}
	}
	if errors.Is(err, tier.ErrNotOwner) {
		r.b.notOwner(err)
		return time.Time{}
	}
	if r.failures == 0 || time.Since(r.logged) >= logEvery {
		r.b.opt.Log.Warn("objects cannot be deleted; it is tried again", "failures", r.failures+1, "err", err)
		r.logged = time.Now()
	}
	r.failures++
	return time.Now().Add(backoff(r.failures-1, r.b.opt.BackoffMax))
}

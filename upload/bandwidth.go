package upload

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/time/rate"
)

// Pieces in which bytes are let through, so that a slow rate flows evenly and a
// fast one costs few waits.
const (
	minPiece = 16 << 10
	maxPiece = 1 << 20
)

// newLimiter shares bytesPerSecond among all readers; nil: no limit.
func newLimiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond == Unlimited {
		return nil
	}
	piece := min(max(bytesPerSecond/8, minPiece), maxPiece)
	return rate.NewLimiter(rate.Limit(bytesPerSecond), int(piece))
}

// throttled reads r no faster than its limiter lets it.
type throttled struct {
	ctx context.Context
	l   *rate.Limiter
	r   io.ReaderAt
}

// throttle limits r; with a nil limiter it is r itself.
func throttle(ctx context.Context, l *rate.Limiter, r io.ReaderAt) io.ReaderAt {
	if l == nil {
		return r
	}
	return &throttled{ctx, l, r}
}

// ReadAt implements io.ReaderAt.
func (t *throttled) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		piece := p[done:min(len(p), done+t.l.Burst())]
		if err := t.l.WaitN(t.ctx, len(piece)); err != nil {
			if t.ctx.Err() == nil { // the limiter sees that the wait would end too late
				err = fmt.Errorf("%w: upload bandwidth: %v", context.DeadlineExceeded, err)
			}
			return done, err
		}
		n, err := t.r.ReadAt(piece, off+int64(done))
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tierfs/tierfs/metrics"
)

// RetryOptions say how long a job is tried. A zero field means its default.
type RetryOptions struct {
	// Total bounds a job, with all its tries, whose context has no deadline: 90 s.
	// A context's deadline counts instead where there is one.
	Total time.Duration
	// Patience is how long a job may go on failing, from the first failure since it
	// last got on. 0: as long as its deadline lets it.
	Patience time.Duration
	// The pause before try n+1 is random between 0 and Base × 2^(n-1), at most
	// Max; Throttle takes the place of Base after ErrThrottled. 100 ms, 1 s, 10 s.
	Base, Throttle, Max time.Duration
	// Metrics counts the tries beyond the first; may be nil.
	Metrics *metrics.Store
}

func (o RetryOptions) withDefaults() RetryOptions {
	if o.Total == 0 {
		o.Total = 90 * time.Second
	}
	if o.Base == 0 {
		o.Base = 100 * time.Millisecond
	}
	if o.Throttle == 0 {
		o.Throttle = time.Second
	}
	if o.Max == 0 {
		o.Max = 10 * time.Second
	}
	return o
}

// WithRetry repeats calls to s that failed for a Retryable reason, after a random
// pause that grows. A pause that would not end before the job's deadline, or within
// its patience, is not begun: the last error is returned at once. The reader of a GetRange goes on
// after a broken connection with a new range from where it was.
func WithRetry(s Store, o RetryOptions) Store { return &retrying{s, o.withDefaults()} }

type retrying struct {
	s Store
	o RetryOptions
}

// job is one call with all its tries.
type job struct {
	o        RetryOptions
	op       string
	deadline time.Time
	tries    int       // since the last progress
	failing  time.Time // since when; zero: the job gets on
}

func (r *retrying) job(ctx context.Context, op string) *job {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(r.o.Total)
	}
	return &job{o: r.o, op: op, deadline: deadline}
}

// pause waits before the next try; when there must be none it returns the error
// to give up with.
func (j *job) pause(ctx context.Context, err error) error {
	if ctx.Err() != nil || !Retryable(err) || errors.Is(err, ErrInvalid) {
		return err
	}
	wait := max(j.backoff(errors.Is(err, ErrThrottled)), RetryAfter(err))
	if !time.Now().Add(wait).Before(j.end()) {
		return err
	}
	j.tries++
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		j.o.Metrics.Retry(j.op)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w, after: %w", context.Cause(ctx), err)
	}
}

// end is when the job, which failed just now, must not be tried any more.
func (j *job) end() time.Time {
	if j.failing.IsZero() {
		j.failing = time.Now()
	}
	if end := j.failing.Add(j.o.Patience); j.o.Patience > 0 && end.Before(j.deadline) {
		return end
	}
	return j.deadline
}

// progress notes that the job gets on.
func (j *job) progress() { j.tries, j.failing = 0, time.Time{} }

func (j *job) backoff(throttled bool) time.Duration {
	base := j.o.Base
	if throttled {
		base = j.o.Throttle
	}
	limit := min(base<<min(j.tries, 16), j.o.Max)
	return rand.N(limit + 1)
}

func (j *job) do(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if err = j.pause(ctx, err); err != nil {
			return err
		}
	}
}

func (r *retrying) Put(ctx context.Context, key string, body Body, opts PutOptions) error {
	return r.job(ctx, "put").do(ctx, func() error { return r.s.Put(ctx, key, body, opts) })
}

func (r *retrying) Head(ctx context.Context, key string) (info Info, err error) {
	err = r.job(ctx, "head").do(ctx, func() error {
		info, err = r.s.Head(ctx, key)
		return err
	})
	return info, err
}

func (r *retrying) Delete(ctx context.Context, keys ...string) error {
	return r.job(ctx, "delete").do(ctx, func() error { return r.s.Delete(ctx, keys...) })
}

func (r *retrying) List(ctx context.Context, prefix, after string) (page Page, err error) {
	err = r.job(ctx, "list").do(ctx, func() error {
		page, err = r.s.List(ctx, prefix, after)
		return err
	})
	return page, err
}

func (r *retrying) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	rr := &resumingReader{ctx: ctx, s: r.s, job: r.job(ctx, "get"), key: key, off: off, rest: n}
	if err := rr.open(); err != nil {
		return nil, err
	}
	return rr, nil
}

// resumingReader is the rest bytes of an object from off, over as many
// connections as it takes.
type resumingReader struct {
	ctx  context.Context
	s    Store
	job  *job
	key  string
	off  int64
	rest int64
	body io.ReadCloser // nil after a failure
	err  error         // final
}

func (r *resumingReader) open() error {
	return r.job.do(r.ctx, func() (err error) {
		r.body, err = r.s.GetRange(r.ctx, r.key, r.off, r.rest)
		return err
	})
}

func (r *resumingReader) Read(p []byte) (int, error) {
	for r.err == nil {
		n, err := r.body.Read(p)
		r.off += int64(n)
		r.rest -= int64(n)
		if n > 0 {
			r.job.progress()
		}
		if err == io.EOF && r.rest > 0 {
			err = shortRead(r.key, r.rest)
		}
		switch {
		case err == nil:
			return n, nil
		case err == io.EOF || r.rest == 0:
			r.err = io.EOF
		default:
			r.err = r.again(err)
		}
		if n > 0 || r.err != nil {
			return n, r.err
		}
	}
	return 0, r.err
}

// again replaces a broken body by a new one.
func (r *resumingReader) again(err error) error {
	r.body.Close() // its failure is the one in err
	r.body = nil
	if err = r.job.pause(r.ctx, err); err != nil {
		return err
	}
	return r.open()
}

func (r *resumingReader) Close() error {
	if r.err == nil {
		r.err = fmt.Errorf("%w: read of a closed body", ErrInvalid)
	}
	if r.body == nil {
		return nil
	}
	b := r.body
	r.body = nil
	return b.Close()
}

// shortRead is the error of a body that ended rest bytes early.
func shortRead(key string, rest int64) error {
	return fmt.Errorf("%w: %s: %d bytes missing: %w", ErrShort, key, rest, io.ErrUnexpectedEOF)
}

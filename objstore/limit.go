package objstore

import (
	"context"
	"io"
	"sync"

	"github.com/tierfs/tierfs/metrics"
)

// Limit lets at most n calls to s be under way at once; a GetRange is under way
// until its reader is closed. The others wait, or end with their context. Two
// limits around one store are independent: so uploads and fetches have budgets of
// their own.
func Limit(s Store, n int) Store { return &limited{s, make(chan struct{}, max(n, 1))} }

type limited struct {
	s     Store
	slots chan struct{}
}

func (l *limited) acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *limited) release() { <-l.slots }

func (l *limited) Put(ctx context.Context, key string, body Body, opts PutOptions) error {
	if err := l.acquire(ctx); err != nil {
		return err
	}
	defer l.release()
	return l.s.Put(ctx, key, body, opts)
}

func (l *limited) Head(ctx context.Context, key string) (Info, error) {
	if err := l.acquire(ctx); err != nil {
		return Info{}, err
	}
	defer l.release()
	return l.s.Head(ctx, key)
}

func (l *limited) Delete(ctx context.Context, keys ...string) error {
	if err := l.acquire(ctx); err != nil {
		return err
	}
	defer l.release()
	return l.s.Delete(ctx, keys...)
}

func (l *limited) List(ctx context.Context, prefix, after string) (Page, error) {
	if err := l.acquire(ctx); err != nil {
		return Page{}, err
	}
	defer l.release()
	return l.s.List(ctx, prefix, after)
}

func (l *limited) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if err := l.acquire(ctx); err != nil {
		return nil, err
	}
	r, err := l.s.GetRange(ctx, key, off, n)
	if err != nil {
		l.release()
		return nil, err
	}
	return &limitedReader{ReadCloser: r, release: sync.OnceFunc(l.release)}, nil
}

type limitedReader struct {
	io.ReadCloser
	release func()
}

func (r *limitedReader) Close() error {
	defer r.release()
	return r.ReadCloser.Close()
}

// Options are those of all decorators.
type Options struct {
	Metrics  *metrics.Store // may be nil
	Deadline DeadlineOptions
	Retry    RetryOptions // its Metrics is that above
}

// Decorate puts metrics, deadlines and retries around a bare store.
func Decorate(s Store, o Options) Store {
	o.Retry.Metrics = o.Metrics
	return WithRetry(WithDeadline(WithMetrics(s, o.Metrics), o.Deadline), o.Retry)
}

package objstore

import (
	"context"
	"fmt"
	"io"
	"time"
)

// DeadlineOptions bound one try. A zero field means its default.
type DeadlineOptions struct {
	Put     time.Duration // 30 s, and the time that the body needs at MinRate
	Get     time.Duration // 5 s, and likewise
	Request time.Duration // 10 s: Head, List, and Delete, which gets 20 ms more for each key
	MinRate int64         // 1 MiB/s: below that a connection counts as hanging
}

func (o DeadlineOptions) withDefaults() DeadlineOptions {
	if o.Put == 0 {
		o.Put = 30 * time.Second
	}
	if o.Get == 0 {
		o.Get = 5 * time.Second
	}
	if o.Request == 0 {
		o.Request = 10 * time.Second
	}
	if o.MinRate == 0 {
		o.MinRate = 1 << 20
	}
	return o
}

func (o DeadlineOptions) transfer(base time.Duration, bytes int64) time.Duration {
	return base + time.Duration(float64(bytes)/float64(o.MinRate)*float64(time.Second))
}

// WithDeadline ends every call to s, and the reading of its body, after a time
// that suits the call. When that time runs out, and not the caller's, the error
// is ErrTransient.
func WithDeadline(s Store, o DeadlineOptions) Store { return &bounded{s, o.withDefaults()} }

type bounded struct {
	s Store
	o DeadlineOptions
}

// outcome says whose deadline it was that made err.
func outcome(parent, try context.Context, limit time.Duration, op string, err error) error {
	if err == nil || err == io.EOF || parent.Err() != nil || try.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %s not done within %v: %v", ErrTransient, op, limit, err)
}

func (b *bounded) do(ctx context.Context, op string, limit time.Duration, f func(context.Context) error) error {
	try, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return outcome(ctx, try, limit, op, f(try))
}

func (b *bounded) Put(ctx context.Context, key string, body Body, opts PutOptions) error {
	return b.do(ctx, "put", b.o.transfer(b.o.Put, body.Size), func(ctx context.Context) error {
		return b.s.Put(ctx, key, body, opts)
	})
}

func (b *bounded) Head(ctx context.Context, key string) (info Info, err error) {
	err = b.do(ctx, "head", b.o.Request, func(ctx context.Context) error {
		info, err = b.s.Head(ctx, key)
		return err
	})
	return info, err
}

func (b *bounded) Delete(ctx context.Context, keys ...string) error {
	limit := b.o.Request + time.Duration(len(keys))*20*time.Millisecond
	return b.do(ctx, "delete", limit, func(ctx context.Context) error {
		return b.s.Delete(ctx, keys...)
	})
}

func (b *bounded) List(ctx context.Context, prefix, after string) (page Page, err error) {
	err = b.do(ctx, "list", b.o.Request, func(ctx context.Context) error {
		page, err = b.s.List(ctx, prefix, after)
		return err
	})
	return page, err
}

func (b *bounded) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	limit := b.o.transfer(b.o.Get, n)
	try, cancel := context.WithTimeout(ctx, limit)
	r, err := b.s.GetRange(try, key, off, n)
	if err != nil {
		err = outcome(ctx, try, limit, "get", err)
		cancel()
		return nil, err
	}
	return &boundedReader{r: r, parent: ctx, try: try, cancel: cancel, limit: limit}, nil
}

type boundedReader struct {
	r           io.ReadCloser
	parent, try context.Context
	cancel      context.CancelFunc
	limit       time.Duration
}

func (r *boundedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	return n, outcome(r.parent, r.try, r.limit, "get", err)
}

func (r *boundedReader) Close() error {
	defer r.cancel()
	return r.r.Close()
}

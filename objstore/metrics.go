package objstore

import (
	"context"
	"io"
	"time"

	"github.com/tierfs/tierfs/metrics"
)

// WithMetrics counts and times every call to s; m may be nil. A GetRange lasts
// until its reader is closed, and its result is that of the reading.
func WithMetrics(s Store, m *metrics.Store) Store { return &measured{s, m} }

type measured struct {
	s Store
	m *metrics.Store
}

func (c *measured) count(op string, start time.Time, err error, bytes int64) {
	c.m.Request(op, Class(err), time.Since(start).Seconds(), bytes)
}

func (c *measured) Put(ctx context.Context, key string, body Body, opts PutOptions) error {
	start := time.Now()
	err := c.s.Put(ctx, key, body, opts)
	sent := body.Size
	if err != nil {
		sent = 0
	}
	c.count("put", start, err, sent)
	return err
}

func (c *measured) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	start := time.Now()
	r, err := c.s.GetRange(ctx, key, off, n)
	if err != nil {
		c.count("get", start, err, 0)
		return nil, err
	}
	return &measuredReader{ReadCloser: r, c: c, start: start}, nil
}

func (c *measured) Head(ctx context.Context, key string) (Info, error) {
	start := time.Now()
	info, err := c.s.Head(ctx, key)
	c.count("head", start, err, 0)
	return info, err
}

func (c *measured) Delete(ctx context.Context, keys ...string) error {
	start := time.Now()
	err := c.s.Delete(ctx, keys...)
	c.count("delete", start, err, 0)
	return err
}

func (c *measured) List(ctx context.Context, prefix, after string) (Page, error) {
	start := time.Now()
	page, err := c.s.List(ctx, prefix, after)
	c.count("list", start, err, 0)
	return page, err
}

type measuredReader struct {
	io.ReadCloser
	c      *measured
	start  time.Time
	n      int64
	err    error
	closed bool
}

func (r *measuredReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.n += int64(n)
	if err != nil && err != io.EOF && r.err == nil {
		r.err = err
	}
	return n, err
}

func (r *measuredReader) Close() error {
	if !r.closed {
		r.closed = true
		r.c.count("get", r.start, r.err, r.n)
	}
	return r.ReadCloser.Close()
}

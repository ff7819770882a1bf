package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/objstore"
)

// observed tells the outcome of each call to a store.
type observed struct {
	objstore.Store
	tell func(error)
}

func (o *observed) Put(ctx context.Context, key string, body objstore.Body, opts objstore.PutOptions) error {
	err := o.Store.Put(ctx, key, body, opts)
	o.tell(err)
	return err
}

func (o *observed) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	r, err := o.Store.GetRange(ctx, key, off, n)
	o.tell(err)
	return r, err
}

func (o *observed) Head(ctx context.Context, key string) (objstore.Info, error) {
	info, err := o.Store.Head(ctx, key)
	o.tell(err)
	return info, err
}

func (o *observed) Delete(ctx context.Context, keys ...string) error {
	err := o.Store.Delete(ctx, keys...)
	o.tell(err)
	return err
}

func (o *observed) List(ctx context.Context, prefix, after string) (objstore.Page, error) {
	page, err := o.Store.List(ctx, prefix, after)
	o.tell(err)
	return page, err
}

// lateStore is a store that could not be opened yet, such as a directory on a
// network file system that is away: each call tries again.
type lateStore struct {
	open func(ctx context.Context) (objstore.Store, error)

	mu    sync.Mutex
	store objstore.Store // guarded by mu; nil until it could be opened
}

func newLateStore(c *config.Config, log *slog.Logger) *lateStore {
	return &lateStore{open: func(ctx context.Context) (objstore.Store, error) {
		s, _, err := openStore(ctx, c, log)
		return s, err
	}}
}

func (l *lateStore) get(ctx context.Context) (objstore.Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store != nil {
		return l.store, nil
	}
	s, err := l.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", objstore.ErrTransient, err)
	}
	l.store = s
	return s, nil
}

// Close implements io.Closer.
func (l *lateStore) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store == nil {
		return nil
	}
	return closeStore(l.store)
}

func (l *lateStore) Put(ctx context.Context, key string, body objstore.Body, opts objstore.PutOptions) error {
	s, err := l.get(ctx)
	if err != nil {
		return err
	}
	return s.Put(ctx, key, body, opts)
}

func (l *lateStore) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	s, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return s.GetRange(ctx, key, off, n)
}

func (l *lateStore) Head(ctx context.Context, key string) (objstore.Info, error) {
	s, err := l.get(ctx)
	if err != nil {
		return objstore.Info{}, err
	}
	return s.Head(ctx, key)
}

func (l *lateStore) Delete(ctx context.Context, keys ...string) error {
	s, err := l.get(ctx)
	if err != nil {
		return err
	}
	return s.Delete(ctx, keys...)
}

func (l *lateStore) List(ctx context.Context, prefix, after string) (objstore.Page, error) {
	s, err := l.get(ctx)
	if err != nil {
		return objstore.Page{}, err
	}
	return s.List(ctx, prefix, after)
}

package main

import (
	"context"
	"fmt"
	"io"
	"sync"

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
// network file system that is away: a call that finds it closed has it tried again.
// The trying may hang in the kernel; a call waits for it only as long as its
// context lives.
type lateStore struct {
	open func(ctx context.Context) (objstore.Store, error)
	life context.Context // ends with the store
	end  context.CancelFunc

	mu      sync.Mutex     // guards what follows; not held while the store is opened
	store   objstore.Store // nil until it could be opened
	opening *opening       // nil: nobody tries
	closed  bool
}

// opening is one try to open a store, shared by all who call meanwhile.
type opening struct {
	done  chan struct{}
	store objstore.Store // set, as err, before done is closed
	err   error
}

func newLateStore(open func(ctx context.Context) (objstore.Store, error)) *lateStore {
	l := &lateStore{open: open}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

func (l *lateStore) get(ctx context.Context) (objstore.Store, error) {
	l.mu.Lock()
	store, o := l.store, l.opening
	switch {
	case store != nil || o != nil:
	case l.closed:
		l.mu.Unlock()
		return nil, fmt.Errorf("%w: it is closed", objstore.ErrTransient)
	default:
		o = &opening{done: make(chan struct{})}
		l.opening = o
		go l.try(o)
	}
	l.mu.Unlock()
	if store != nil {
		return store, nil
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("open the store: %w", context.Cause(ctx))
	}
	if o.err != nil {
		return nil, fmt.Errorf("%w: %w", objstore.ErrTransient, o.err)
	}
	return o.store, nil
}

// try opens the store. Close waits for it.
func (l *lateStore) try(o *opening) {
	o.store, o.err = l.open(l.life)
	l.mu.Lock()
	if o.err == nil {
		l.store = o.store
	}
	l.opening = nil
	l.mu.Unlock()
	close(o.done)
}

// Close implements io.Closer. It waits for a try that hangs: nothing can end that
// but the kernel.
func (l *lateStore) Close() error {
	l.mu.Lock()
	l.closed = true
	o := l.opening
	l.mu.Unlock()
	l.end()
	if o != nil {
		<-o.done
	}
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

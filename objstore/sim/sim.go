// Package sim is an object store in memory, for tests and for trying tierfs out.
//
// It keeps the promises of objstore.Store except durability: its objects live as
// long as the Store. It counts calls, and a test can fail, delay or hang any of
// them, change stored bytes, and take away features that real stores lack.
// Nothing is kept on disk.
package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

// Options take features away. The zero value is a store that has all of them.
type Options struct {
	IgnoreChecksum bool // take bodies whose checksum is wrong
	HideChecksum   bool // Head returns no checksum
	NoConditional  bool // Put with IfAbsent is ErrUnsupported
}

// Hook is called with the operation (put, get, read, head, delete, list) and its
// key (for list the prefix, for delete each key). It may block until ctx ends. An
// error that it returns is the operation's result. read is one Read of the reader
// that get returned.
type Hook func(ctx context.Context, op, key string) error

// Store is an objstore.Store in memory. All methods may be called in parallel.
type Store struct {
	opts Options

	mu      sync.Mutex // guards what follows; never held in a hook
	objects map[string]object
	counts  map[string]int
	before  Hook
	after   Hook
}

type object struct {
	data     []byte // never changed in place
	sum      uint64
	modified time.Time
	metadata map[string]string
}

var _ objstore.Store = (*Store)(nil)

// New returns an empty store.
func New(opts Options) *Store {
	return &Store{opts: opts, objects: map[string]object{}, counts: map[string]int{}}
}

// SetHook sets what is called before each operation takes effect; nil for none.
func (s *Store) SetHook(h Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = h
}

// SetAfter sets what is called after a put or delete took effect, so that a test
// can lose the answer; nil for none.
func (s *Store) SetAfter(h Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = h
}

// Count returns how many calls of op there were: put, get, head, delete, list.
func (s *Store) Count(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[op]
}

// Keys returns the keys of all objects in ascending order.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Bytes returns a copy of an object's bytes.
func (s *Store) Bytes(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	return bytes.Clone(o.data), ok
}

// Corrupt replaces an object's bytes behind everybody's back: its checksum and
// metadata stay. It does nothing when there is no such object.
func (s *Store) Corrupt(key string, change func(data []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[key]; ok {
		o.data = change(bytes.Clone(o.data))
		s.objects[key] = o
	}
}

// enter counts a call and runs the hook before it.
func (s *Store) enter(ctx context.Context, op, key string) error {
	s.mu.Lock()
	hook := s.before
	s.counts[op]++
	s.mu.Unlock()
	return call(ctx, hook, op, key)
}

func call(ctx context.Context, hook Hook, op, key string) error {
	if hook != nil {
		if err := hook(ctx, op, key); err != nil {
			return fmt.Errorf("%s %s: %w", op, key, err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", op, key, context.Cause(ctx))
	}
	return nil
}

func (s *Store) leave(ctx context.Context, op, key string) error {
	s.mu.Lock()
	hook := s.after
	s.mu.Unlock()
	return call(ctx, hook, op, key)
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body objstore.Body, opts objstore.PutOptions) error {
	if err := objstore.CheckPut(key, body, opts); err != nil {
		return err
	}
	if err := s.enter(ctx, "put", key); err != nil {
		return err
	}
	if opts.IfAbsent && s.opts.NoConditional {
		return fmt.Errorf("put %s: %w: if-absent", key, objstore.ErrUnsupported)
	}
	o, err := s.receive(ctx, key, body)
	if err != nil {
		return err
	}
	o.metadata = maps.Clone(opts.Metadata)
	if err := s.store(key, o, opts.IfAbsent); err != nil {
		return err
	}
	return s.leave(ctx, "put", key)
}

// receive reads the body, a piece at a time so that ctx can end it.
func (s *Store) receive(ctx context.Context, key string, body objstore.Body) (object, error) {
	var buf bytes.Buffer
	buf.Grow(int(body.Size))
	r := body.Reader()
	for {
		if ctx.Err() != nil {
			return object{}, fmt.Errorf("put %s: %w", key, context.Cause(ctx))
		}
		_, err := io.CopyN(&buf, r, 1<<20)
		if err == io.EOF {
			break
		}
		if err != nil {
			return object{}, fmt.Errorf("put %s: %w", key, err)
		}
	}
	o := object{data: buf.Bytes(), sum: objstore.BytesBody(buf.Bytes()).CRC64NVME, modified: time.Now()}
	if o.sum != body.CRC64NVME && !s.opts.IgnoreChecksum {
		return object{}, fmt.Errorf("put %s: %w", key, objstore.ErrChecksum)
	}
	return o, nil
}

func (s *Store) store(key string, o object, ifAbsent bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.objects[key]; ok && ifAbsent {
		if bytes.Equal(old.data, o.data) {
			return nil
		}
		return fmt.Errorf("put %s: %w", key, objstore.ErrExists)
	}
	s.objects[key] = o
	return nil
}

func (s *Store) object(op, key string) (object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if !ok {
		return o, fmt.Errorf("%s %s: %w", op, key, objstore.ErrNotFound)
	}
	return o, nil
}

// GetRange implements objstore.Store.
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if err := objstore.CheckRange(key, off, n); err != nil {
		return nil, err
	}
	if err := s.enter(ctx, "get", key); err != nil {
		return nil, err
	}
	o, err := s.object("get", key)
	if err != nil {
		return nil, err
	}
	if off+n > int64(len(o.data)) {
		return nil, fmt.Errorf("get %s: %w: %d bytes at %d of %d", key, objstore.ErrRange, n, off, len(o.data))
	}
	return &reader{s: s, ctx: ctx, key: key, r: bytes.NewReader(o.data[off : off+n])}, nil
}

type reader struct {
	s   *Store
	ctx context.Context
	key string
	r   *bytes.Reader // nil when closed
}

func (r *reader) Read(p []byte) (int, error) {
	if r.r == nil {
		return 0, fmt.Errorf("get %s: %w: read of a closed body", r.key, objstore.ErrInvalid)
	}
	if r.r.Len() == 0 {
		return 0, io.EOF
	}
	if err := r.s.enter(r.ctx, "read", r.key); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (r *reader) Close() error {
	r.r = nil
	return nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	if err := s.enter(ctx, "head", key); err != nil {
		return objstore.Info{}, err
	}
	o, err := s.object("head", key)
	if err != nil {
		return objstore.Info{}, err
	}
	info := objstore.Info{Key: key, Size: int64(len(o.data)), Modified: o.modified, Metadata: maps.Clone(o.metadata)}
	if !s.opts.HideChecksum {
		info.CRC64NVME, info.HasCRC = o.sum, true
	}
	return info, nil
}

// Delete implements objstore.Store. It counts as one call.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	for _, key := range keys {
		if err := objstore.CheckKey(key); err != nil {
			return err
		}
	}
	s.mu.Lock()
	hook := s.before
	s.counts["delete"]++
	s.mu.Unlock()
	for _, key := range keys {
		if err := call(ctx, hook, "delete", key); err != nil {
			return err
		}
		s.mu.Lock()
		delete(s.objects, key)
		s.mu.Unlock()
		if err := s.leave(ctx, "delete", key); err != nil {
			return err
		}
	}
	return nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string) (objstore.Page, error) {
	if err := s.enter(ctx, "list", prefix); err != nil {
		return objstore.Page{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var page objstore.Page
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if key <= after || !strings.HasPrefix(key, prefix) {
			continue
		}
		if len(page.Objects) == objstore.PageSize {
			page.More = true
			break
		}
		o := s.objects[key]
		page.Objects = append(page.Objects, objstore.Info{Key: key, Size: int64(len(o.data)), Modified: o.modified})
	}
	return page, nil
}

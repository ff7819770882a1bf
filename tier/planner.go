package tier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/objstore"
)

// The planner decides how long a cold read may wait. Brokers read on threads that
// their producers need, so only some reads may wait the full time; and a failed
// readahead is repeated by the kernel as a second READ, which must not wait again.
type planner struct {
	v       *Volume
	blocked atomic.Int64 // reads that wait longer than the short time now
}

const (
	defaultBusyTimeout = 300 * time.Millisecond
	// rememberFor is how long the error of a cold read answers the same read.
	rememberFor = 500 * time.Millisecond
)

type callerKey struct{}

// WithCaller tells the planner which thread a read is for.
func WithCaller(ctx context.Context, tid uint32) context.Context {
	return context.WithValue(ctx, callerKey{}, tid)
}

// callerOf returns the thread that WithCaller named; 0: nobody knows.
func callerOf(ctx context.Context) uint32 {
	tid, _ := ctx.Value(callerKey{}).(uint32)
	return tid
}

// read fills b from the cache within the time that this read may take. The fetch
// behind it goes on after the read has given up. Every read may take the short
// time; only one that is not served by then takes a place among those that block.
func (p *planner) read(ctx context.Context, f *File, o chunkcache.Object, b []byte, off int64) error {
	if err := f.missed.recall(off, len(b)); err != nil && !p.mustNotFail(ctx) {
		return err
	}
	full := p.full()
	short := min(p.busy(), full)
	err := p.try(ctx, o, b, off, short)
	if unserved(ctx, err) {
		err = p.block(ctx, o, b, off, full, full-short, err)
	}
	if err != nil && ctx.Err() == nil {
		f.missed.note(off, len(b), err)
	}
	return err
}

// unserved reports whether a read that ended with err could go on waiting.
func unserved(ctx context.Context, err error) bool {
	return errors.Is(err, ErrUnavailable) && ctx.Err() == nil
}

// block goes on with a read that the short time was not enough for, and that err
// would end: for the rest of the full time if there is a place, and without limit
// where that is wanted.
func (p *planner) block(ctx context.Context, o chunkcache.Object, b []byte, off int64, full, rest time.Duration, err error) error {
	most := p.places()
	placed := p.blocked.Add(1) <= int64(most) || most <= 0
	defer p.blocked.Add(-1)
	endless := placed && p.v.opt.FetchTimeout < 0
	if placed && rest > 0 {
		err = p.try(ctx, o, b, off, rest)
	}
	for unserved(ctx, err) && (endless || p.mustNotFail(ctx)) {
		err = p.try(ctx, o, b, off, full)
	}
	return err
}

func (p *planner) try(ctx context.Context, o chunkcache.Object, b []byte, off int64, limit time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := p.v.opt.Cache.ReadAt(wait, o, b, off)
	switch {
	case err == nil || final(err):
		return err
	case wait.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%w after %v: %s at %d", ErrUnavailable, limit, o.Key, off)
	case ctx.Err() != nil:
		return err
	}
	return p.outlast(wait, o, b, off, err)
}

// final reports whether waiting cannot change a failure to get bytes of an object.
// Everything else may pass: an outage, credentials, a bucket or an endpoint that is
// not what the settings say, an answer that nobody knows.
func final(err error) bool {
	for _, e := range []error{
		objstore.ErrNotFound, objstore.ErrRange, objstore.ErrUnsupported,
		chunkcache.ErrBadObject, chunkcache.ErrRange, chunkcache.ErrClosed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// outlast repeats a read that the store failed, until its time is over: a
// consumer gets data late rather than an error early.
func (p *planner) outlast(wait context.Context, o chunkcache.Object, b []byte, off int64, err error) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case <-wait.Done():
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		case <-time.After(pause):
		}
		if err = p.v.opt.Cache.ReadAt(wait, o, b, off); err == nil || final(err) {
			return err
		}
	}
}

// full is how long a read may wait that nothing hurries.
func (p *planner) full() time.Duration {
	switch t := p.v.opt.FetchTimeout; {
	case t > 0:
		return t
	case t < 0:
		return time.Minute // and again, for ever
	}
	if rules := p.v.Layout(); rules != nil {
		return rules.FetchTimeout()
	}
	return 30 * time.Second
}

// busy is the short time, which every read may wait.
func (p *planner) busy() time.Duration {
	if t := p.v.opt.BusyTimeout; t > 0 {
		return t
	}
	return defaultBusyTimeout
}

// places is how many reads may block; 0: any number.
func (p *planner) places() int {
	most := p.v.opt.MaxBlocked
	if rules := p.v.Layout(); most == 0 && rules != nil {
		most = rules.MaxBlocked(runtime.NumCPU())
	}
	return most
}

// mustNotFail reports whether the reading thread is one that an error makes give
// up more than the read: Kafka's log cleaner takes its log directory offline, a
// broker that starts cuts the log.
func (p *planner) mustNotFail(ctx context.Context) bool {
	tid := callerOf(ctx)
	if tid == 0 {
		return false
	}
	if p.v.starts.reading(tid, time.Now()) {
		return true
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	return err == nil && strings.HasPrefix(string(name), "kafka-log-clean")
}

// remembered is the last cold read of a file that failed. Methods may be called in
// parallel.
type remembered struct {
	mu   sync.Mutex
	off  int64
	size int64
	at   time.Time
	err  error
}

func (r *remembered) note(off int64, size int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.off, r.size, r.at, r.err = off, int64(size), time.Now(), err
}

func (r *remembered) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = nil
}

// recall returns the error of a read that failed just now and overlapped this one.
func (r *remembered) recall(off int64, size int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return nil
	}
	if time.Since(r.at) > rememberFor {
		r.err = nil
		return nil
	}
	if off < r.off+r.size && r.off < off+int64(size) {
		return r.err
	}
	return nil
}

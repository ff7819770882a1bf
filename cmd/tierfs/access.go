package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/upload"
)

// access is the daemon's way to the object store, and what is known about it.
type access struct {
	bare     objstore.Store
	store    objstore.Store // decorated, for reads and all else
	uploads  objstore.Store // decorated, for uploads
	checks   objstore.Store // decorated, for what somebody waits for at a terminal
	location string
	prefix   string
	log      *slog.Logger

	mu       sync.Mutex // guards what follows
	features objstore.Features
	err      error // of the last request that failed for the store's fault; nil: it answers
	asked    bool  // there has been a request
}

// readPause is the longest pause between two tries of a read: well below what the
// least patient broker waits, so that a reader who comes after an outage does not
// join a fetch that sleeps until he has given up.
const readPause = 2 * time.Second

// openAccess opens the store. For the first mount of a volume it must answer,
// and as the settings say; later it may be away. Nothing of it keeps a mount from being taken
// over: a file that the settings name, such as the certificates of a CA, may have
// gone since the mount was made.
func openAccess(ctx context.Context, c *config.Config, known, takeover bool, m *metrics.Metrics, log *slog.Logger) (*access, error) {
	bare, location, err := openStore(ctx, c, log)
	if err != nil && (takeover || known && c.Store.Backend == "fs") {
		log.Error("the store cannot be opened; it is tried again when it is needed", "err", err)
		late := newLateStore(func(ctx context.Context) (objstore.Store, error) {
			s, _, err := openStore(ctx, c, log)
			return s, err
		})
		bare, location, err = late, c.Store.Backend, nil
		if c.Store.Backend == "fs" {
			location += ":" + c.Store.FS.Path
		}
	}
	if err != nil {
		return nil, err
	}
	a := newAccess(bare, c, m, log)
	a.location = location
	if known {
		return a, nil
	}
	if err := a.probe(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", location, err), a.close())
	}
	return a, nil
}

// newAccess puts around a store what each of its users needs.
func newAccess(bare objstore.Store, c *config.Config, m *metrics.Metrics, log *slog.Logger) *access {
	a := &access{bare: bare, prefix: c.Store.Prefix, log: log}
	seen := &observed{bare, a.observe}
	a.store = objstore.Decorate(seen, objstore.Options{Metrics: m.Store, Retry: objstore.RetryOptions{Max: readPause}})
	a.uploads = objstore.Decorate(seen, objstore.Options{
		Metrics:  m.Store,
		Deadline: objstore.DeadlineOptions{MinRate: upload.FloorRate(int64(c.Upload.Bandwidth), c.Upload.Concurrency)},
		Retry:    objstore.RetryOptions{Patience: upload.Patience},
	})
	a.checks = brief(seen, m.Store)
	return a
}

// brief decorates a store so that a call says soon that the store is away.
func brief(s objstore.Store, m *metrics.Store) objstore.Store {
	return objstore.Decorate(s, objstore.Options{Metrics: m, Retry: objstore.RetryOptions{Patience: upload.Patience}})
}

func (a *access) close() error { return closeStore(a.bare) }

// probe tries the store once and keeps what it learns.
func (a *access) probe(ctx context.Context) error {
	report, err := objstore.Probe(ctx, a.bare, a.prefix)
	a.observe(err)
	if err != nil {
		return err
	}
	for _, w := range report.Warnings {
		a.log.Warn("the store's own settings work against tierfs", "store", a.location, "warning", w)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.features = report.Features
	return nil
}

// Pauses between probes of a store that does not answer.
const (
	firstProbePause = time.Second
	lastProbePause  = time.Minute
)

// probeUntil probes until the store answers. Until then nothing is known about
// it, and every upload is read back.
func (a *access) probeUntil(ctx context.Context) {
	for pause := firstProbePause; ; pause = min(2*pause, lastProbePause) {
		err := a.probe(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if pause == firstProbePause {
			a.log.Error("the store does not answer as it should; what is local is served, it is tried again", "store", a.location, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// known returns what the store supports.
func (a *access) known() objstore.Features {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.features
}

// observe notes the outcome of one try of a request.
func (a *access) observe(err error) {
	switch {
	case errors.Is(err, context.Canceled):
		return
	case errors.Is(err, objstore.ErrTransient), errors.Is(err, objstore.ErrAuth), errors.Is(err, objstore.ErrConfig),
		errors.Is(err, objstore.ErrThrottled), errors.Is(err, context.DeadlineExceeded):
	default: // any other answer is an answer
		err = nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err, a.asked = err, true
}

// reachable says whether the store answered the last request, and if not, why.
func (a *access) reachable() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.asked {
		return errors.New("not asked yet")
	}
	return a.err
}

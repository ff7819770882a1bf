package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// openCacheDir makes, opens and locks the cache's directory, before the mount may
// cover its path. Two caches in one directory would drop each other's chunks.
func openCacheDir(c *config.Config, root int) (int, error) {
	fd, err := makeCacheDir(c, root)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("cache.path = %q: another tierfs has its cache there; give each mount a directory of its own", c.Cache.Path)
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func makeCacheDir(c *config.Config, root int) (int, error) {
	state, err := durable.Mkdir(root, ".tierfs", 0o700)
	if err != nil {
		return -1, fmt.Errorf("%s/.tierfs: %w", c.Mount.Source, err)
	}
	defer unix.Close(state)
	if c.Cache.Path == filepath.Join(c.Mount.Source, ".tierfs", "cache") {
		fd, err := durable.Mkdir(state, "cache", 0o700)
		if err != nil {
			return -1, fmt.Errorf("%s: %w", c.Cache.Path, err)
		}
		return fd, nil
	}
	if err := os.MkdirAll(c.Cache.Path, 0o700); err != nil {
		return -1, fmt.Errorf("cache.path: %w", err)
	}
	fd, err := unix.Open(c.Cache.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open cache.path", Path: c.Cache.Path, Err: err}
	}
	return fd, nil
}

// unknownFirstFetch is the first fetch while nobody knows the layout: the
// largest that one asks for.
const unknownFirstFetch = 1 << 20

// firstFetch is the least that a cold read fetches, by the layout as far as the
// source shows it.
func firstFetch(c *config.Config, root int) int64 {
	kind := layoutOf(c)
	if kind == "" {
		var ok bool
		kind, ok = layout.Detect(func(dir string) ([]string, error) {
			entries, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d/%s", root, dir)) // the path may lead into the mount
			names := make([]string, 0, len(entries))
			for _, e := range entries {
				if name, ok := tier.Visible(e.Name()); ok {
					names = append(names, name)
				}
			}
			return names, err
		})
		if !ok {
			return unknownFirstFetch
		}
	}
	rules, err := layout.New(kind, c.Mount.GenericQuietTime.Std())
	if err != nil {
		return unknownFirstFetch
	}
	return rules.FirstFetch()
}

// layoutOf is the layout that the settings fix, "" for auto.
func layoutOf(c *config.Config) layout.Kind {
	if c.Mount.Layout == "auto" {
		return ""
	}
	return layout.Kind(c.Mount.Layout)
}

func openCache(c *config.Config, root, dir int, store objstore.Store, m *metrics.Metrics, log *slog.Logger) (*chunkcache.Cache, error) {
	return chunkcache.New(chunkcache.Options{
		Dir:                 dir,
		Store:               store,
		ChunkSize:           int64(c.Cache.ChunkSize),
		Size:                int64(c.Cache.Size),
		SizePercent:         c.Cache.SizePercent,
		MaxObjects:          c.Cache.MaxObjects,
		FirstFetch:          firstFetch(c, root),
		LowWatermarkPercent: c.Cache.LowWatermarkPercent,
		TrimMinInterval:     max(c.Cache.TrimMinInterval.Std(), 1), // 0 would be the cache's own default
		Concurrency:         c.Fetch.Concurrency,
		ReadaheadMax:        c.Cache.ReadaheadMax,
		Memory:              int64(c.Cache.Memory),
		Log:                 log,
		Metrics:             m.Cache,
	})
}

// openTier opens the volume.
func (d *daemon) openTier(ctx context.Context) (*tier.Volume, error) {
	c := d.cfg
	o := tier.Options{
		Root:          d.source.fd,
		Takeover:      d.takeover,
		Flush:         d.flusher.flush,
		Layout:        layoutOf(c),
		QuietTime:     c.Mount.GenericQuietTime.Std(),
		Store:         d.access.store,
		Cache:         d.cache,
		Prefix:        c.Store.Prefix,
		Name:          c.Store.Volume,
		TakeOwnership: c.Store.TakeOwnership,
		BusyTimeout:   c.Fetch.BusyTimeout.Std(),
		DeleteGrace:   c.Retention.DeleteGrace.Std(),
		Log:           d.log,
		Metrics:       d.metrics.Tier,
		Step:          d.step,
	}
	var may bool
	if may, d.writes.why = d.mayGather(); may {
		var err error
		if d.dirty, err = dirtyCap(d.source.fd); err != nil {
			return nil, err
		}
		o.Writeback, o.DirtyCap = true, d.dirty
	}
	if d.takeover {
		lock, err := inherit(d.keep, keptLock)
		if err != nil {
			return nil, err
		}
		defer unix.Close(lock) // the volume has its own
		o.Lock = lock
	}
	switch c.Fetch.Timeout {
	case config.Auto:
	case config.Block:
		o.FetchTimeout = -1
	default:
		o.FetchTimeout = c.Fetch.Timeout.Std()
	}
	if c.Fetch.MaxBlocked != config.CountAuto {
		o.MaxBlocked = int(c.Fetch.MaxBlocked)
	}
	v, err := tier.Open(ctx, o)
	if errors.Is(err, tier.ErrLocked) {
		return nil, inUse(c.Mount.Source)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Mount.Source, err)
	}
	return v, nil
}

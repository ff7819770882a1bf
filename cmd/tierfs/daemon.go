package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/fs"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
	"github.com/tierfs/tierfs/upload"
)

// daemon is one mount with all that belongs to it. It is the admin.Daemon of
// its control socket.
type daemon struct {
	cfg        *config.Config
	log        *slog.Logger
	step       func(string) // of tier.Options
	registry   *prometheus.Registry
	metrics    *metrics.Metrics
	source     *source
	access     *access
	cache      *chunkcache.Cache
	volume     *tier.Volume
	background *upload.Background
	server     *fs.Server
	admin      *admin.Server

	closers []func() error // in the order in which things were opened
}

// opened notes how to close what was opened.
func (d *daemon) opened(f func() error) { d.closers = append(d.closers, f) }

// close closes everything, the last opened first. The mount is gone by then.
func (d *daemon) close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers = nil
	return errors.Join(errs...)
}

// startDaemon mounts, or leaves the source as it was: nothing is changed before the
// settings, the source and (at a volume's first mount) the store are right, and what
// was changed until the mount itself fails is taken back.
func (p *program) startDaemon(ctx context.Context, c *config.Config, log *slog.Logger) (_ *daemon, err error) {
	d := &daemon{cfg: c, log: log, step: p.crashpoints(), registry: prometheus.NewRegistry()}
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.metrics = metrics.New(d.registry)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.source, err = openSource(c, log); err != nil {
		return nil, err
	}
	d.opened(func() error { return d.source.release(d.server != nil) })
	if d.access, err = openAccess(ctx, c, d.source.known, d.metrics, log); err != nil {
		return nil, err
	}
	d.opened(d.access.close)
	raiseFileLimit(log)
	if err := d.openVolume(ctx); err != nil {
		return nil, err
	}
	if err := d.listen(p.runDir); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("stopped while starting: %w", err)
	}
	if err := d.mount(ctx); err != nil {
		return nil, err
	}
	d.serve()
	return d, nil
}

// openVolume opens what is on the local disk.
func (d *daemon) openVolume(ctx context.Context) error {
	dir, err := openCacheDir(d.cfg, d.source.fd)
	if err != nil {
		return err
	}
	d.opened(func() error { return unix.Close(dir) })
	if d.cache, err = openCache(d.cfg, dir, d.access.store, d.metrics, d.log); err != nil {
		return err
	}
	d.opened(d.cache.Close)
	d.volume, err = openVolume(ctx, d.cfg, d.source.fd, d.access.store, d.cache, d.metrics, d.log, d.step)
	if err != nil {
		return err
	}
	d.opened(d.volume.Close)
	return nil
}

// listen opens the sockets, before the mount, which cannot be taken back once
// somebody is in it.
func (d *daemon) listen(runDir string) (err error) {
	d.admin, err = admin.Listen(admin.Options{
		Daemon: d, RunDir: runDir, Volume: d.volume.Identity().ID, Listen: d.cfg.Admin.Listen,
		Metrics: d.registry, Ready: d.ready, Log: d.log,
	})
	if err == nil {
		d.opened(d.admin.Close)
	}
	return err
}

// mount closes the source and mounts. It is the last step that can fail.
func (d *daemon) mount(ctx context.Context) error {
	if err := d.volume.CloseSource(); err != nil {
		return err
	}
	root, err := d.volume.RootAttr()
	if err != nil {
		return err
	}
	d.server, err = fs.Mount(ctx, fs.Options{
		Root:        d.source.fd,
		Volume:      d.volume,
		Mountpoint:  d.cfg.Mount.Mountpoint,
		FsName:      d.admin.Name(),
		ReadAhead:   int64(d.cfg.Mount.ReadAhead),
		RootAttr:    fs.RootAttr(root),
		SetRootAttr: func(a fs.RootAttr) error { return d.volume.SetRootAttr(tier.RootAttr(a)) },
		Log:         d.log,
		Metrics:     d.metrics.Fuse,
	})
	return err
}

// serve starts what runs beside the mount.
func (d *daemon) serve() {
	d.background = newBackground(d)
	d.metrics.Tier.Collect(d.snapshot)
	d.admin.Serve()
	d.opened(d.runBackground())
}

// runBackground starts what needs the store, and returns what ends it.
func (d *daemon) runBackground() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var result error
	running.Go(func() { result = d.background.Run(ctx) })
	if d.source.known {
		running.Go(func() { d.access.probeUntil(ctx) })
	}
	return func() error {
		cancel()
		running.Wait()
		return result
	}
}

// newBackground is the background as the settings have it.
func newBackground(d *daemon) *upload.Background {
	c := d.cfg
	return upload.New(upload.Options{
		Volume:            d.volume,
		Store:             d.access.uploads,
		Features:          d.access.known,
		VerifyAlways:      c.Store.VerifyUploads == "always",
		ConditionalWrites: c.Store.ConditionalWrites,
		StorageClass:      c.Store.S3.StorageClass,
		Concurrency:       c.Upload.Concurrency,
		BackoffMax:        c.Upload.LoopBackoffMax.Std(),
		SegmentTimeout:    c.Upload.SegmentTimeout.Std(),
		Bandwidth:         int64(c.Upload.Bandwidth),
		Retention: upload.Retention{
			For:      d.rule,
			DiskHigh: c.Retention.DiskHighPercent,
			DiskLow:  c.Retention.DiskLowPercent,
		},
		DeleteBatch: c.Retention.DeleteBatchPerPass,
		Log:         d.log,
		Metrics:     d.metrics.Upload,
	})
}

// rule is the retention of a topic as the settings have it.
func (d *daemon) rule(topic string) upload.Rule {
	t := d.cfg.Retention.For(topic)
	return upload.Rule{Tiered: t.TieredStorage, Age: t.LocalRetentionAge.Std(), Size: int64(t.LocalRetentionSize)}
}

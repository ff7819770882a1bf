package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/fs"
	"github.com/tierfs/tierfs/holder"
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

	keep     *holder.Keeper
	table    *holder.Table
	takeover bool     // the mount was there when this process started
	drained  bool     // and no request was under way
	environ  []string // of processes that this one starts
	upgrades chan upgrade
	writes   writes
	dirty    int64 // bytes that the kernel may gather; 0: it gathers none
	flusher  *flusher

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

// startDaemon mounts, or takes a mount over. A mount that fails leaves the source as it
// was: nothing is changed before the settings, the source and (at a volume's first mount)
// the store are right, and what was changed until the mount itself fails is taken back.
// A takeover that fails leaves everything to the holder.
func (p *program) startDaemon(ctx context.Context, keep *holder.Keeper, c *config.Config, log *slog.Logger) (_ *daemon, err error) {
	d := &daemon{
		cfg: c, log: log, keep: keep, takeover: keep.Has(keptFuse), drained: p.handedOver, environ: p.environ, upgrades: make(chan upgrade),
		step: p.crashpoints(keep.PID()), registry: prometheus.NewRegistry(),
	}
	d.flusher = newFlusher(c.Mount.Mountpoint, p.environ)
	d.opened(func() error { d.flusher.stop(); return nil })
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	d.metrics = metrics.New(d.registry)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
		if err != nil && !d.takeover {
			err = errors.Join(err, d.dropKept())
		}
	}()
	if err := d.openSource(); err != nil {
		return nil, err
	}
	if d.access, err = openAccess(ctx, c, d.source.known, d.takeover, d.metrics, log); err != nil {
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
	if err := ctx.Err(); err != nil && !d.takeover {
		return nil, fmt.Errorf("stopped while starting: %w", err)
	}
	if err := d.mount(ctx); err != nil {
		return nil, err
	}
	d.serve()
	return d, nil
}

// openSource opens the source and the table, or takes over what a predecessor had open.
func (d *daemon) openSource() (err error) {
	if d.takeover {
		d.source, err = inheritSource(d.keep, d.cfg.Mount.Source)
	} else {
		d.source, err = openSource(d.cfg, d.log)
	}
	if err != nil {
		return err
	}
	d.opened(func() error { return d.source.release(d.takeover || d.server != nil) })
	d.table, err = d.openTable()
	if err != nil {
		return err
	}
	d.opened(d.table.Close)
	if d.takeover {
		return nil
	}
	return errors.Join(d.keep.Put(keptSource, d.source.fd), d.keep.Put(keptTable, d.table.FD()))
}

func (d *daemon) openTable() (*holder.Table, error) {
	if !d.takeover {
		return holder.NewTable()
	}
	fd, err := inherit(d.keep, keptTable)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) // OpenTable has its own
	return holder.OpenTable(fd)
}

// openVolume opens what is on the local disk.
func (d *daemon) openVolume(ctx context.Context) error {
	dir, err := d.openCacheDir()
	if err != nil {
		return err
	}
	d.opened(func() error { return unix.Close(dir) })
	if d.cache, err = openCache(d.cfg, d.source.fd, dir, d.access.store, d.metrics, d.log); err != nil {
		return err
	}
	d.opened(d.cache.Close)
	d.volume, err = d.openTier(ctx)
	if err != nil {
		return err
	}
	d.opened(d.volume.Close)
	if d.takeover {
		return nil
	}
	return d.keep.Put(keptLock, d.volume.LockFD())
}

func (d *daemon) openCacheDir() (int, error) {
	if d.takeover {
		return inherit(d.keep, keptCache)
	}
	dir, err := openCacheDir(d.cfg, d.source.fd)
	if err == nil {
		err = d.keep.Put(keptCache, dir)
	}
	return dir, err
}

// listen opens the sockets, before the mount, which cannot be taken back once
// somebody is in it.
func (d *daemon) listen(runDir string) (err error) {
	o := admin.Options{
		Daemon: d, RunDir: runDir, Volume: d.volume.Identity().ID, Listen: d.cfg.Admin.Listen,
		Metrics: d.registry, Ready: d.ready, Log: d.log,
	}
	for name, file := range map[string]**os.File{keptControl: &o.Control, keptMonitoring: &o.Monitoring} {
		if fd, ok := d.keep.Take(name); ok {
			*file = os.NewFile(uintptr(fd), name)
		}
	}
	if d.admin, err = admin.Listen(o); err != nil {
		return err
	}
	d.opened(d.admin.Close)
	if d.takeover {
		return nil
	}
	return d.admin.Lend(
		func(fd int) error { return d.keep.Put(keptControl, fd) },
		func(fd int) error { return d.keep.Put(keptMonitoring, fd) },
	)
}

// mount closes the source and mounts. It is the last step that can fail.
func (d *daemon) mount(ctx context.Context) error {
	if !d.takeover { // on a disk that is read-only by now it could not be done again
		if err := d.volume.CloseSource(); err != nil {
			return err
		}
	}
	root, err := d.volume.RootAttr()
	if err != nil {
		return err
	}
	o := fs.Options{
		Root:        d.source.fd,
		Volume:      d.volume,
		Mountpoint:  d.cfg.Mount.Mountpoint,
		FsName:      d.admin.Name(),
		ReadAhead:   int64(d.cfg.Mount.ReadAhead),
		RootAttr:    fs.RootAttr(root),
		SetRootAttr: func(a fs.RootAttr) error { return d.volume.SetRootAttr(tier.RootAttr(a)) },
		Table:       d.table,
		Keeper:      d.keep,
		MaxDirty:    d.dirty,
		Opened:      func(fuse int) error { return d.keep.Put(keptFuse, fuse) },
		Log:         d.log,
		Metrics:     d.metrics.Fuse,
	}
	var why string
	if o.Writeback, why = d.gathers(); !o.Writeback && d.cfg.Mount.Writes == writeback && !d.takeover {
		return d.settled(why)
	}
	if d.takeover {
		if o.Fuse, err = inherit(d.keep, keptFuse); err != nil {
			return err
		}
		o.Drained = d.drained
		d.server, err = fs.TakeOver(ctx, o)
	} else {
		d.server, err = fs.Mount(ctx, o)
	}
	if err != nil {
		return err
	}
	if err := d.settled(why); err != nil {
		return errors.Join(err, d.server.Unmount())
	}
	return nil
}

// serve starts what runs beside the mount.
func (d *daemon) serve() {
	d.background = newBackground(d)
	if d.table.Paused() {
		d.background.Pause()
	}
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

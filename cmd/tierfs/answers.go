package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/mountinfo"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/tier"
	"github.com/tierfs/tierfs/upload"
)

var _ admin.Daemon = (*daemon)(nil)

// snapshot is what a scrape reads.
func (d *daemon) snapshot() metrics.Snapshot {
	s := d.background.Snapshot()
	s.Bytes["cache"] = d.cache.Stats().Bytes
	return s
}

// Status implements admin.Daemon.
func (d *daemon) Status(topics bool) admin.Status {
	b, c, id := d.background.Status(), d.cache.Stats(), d.volume.Identity()
	name, _ := buildVersion()
	s := admin.Status{
		PID:                 os.Getpid(),
		Binary:              executable(),
		Holder:              admin.Holder{Kind: string(d.keep.Kind()), PID: d.keep.PID()},
		Writes:              d.writes.mode,
		WritesWhy:           d.writes.why,
		Takeovers:           d.table.Takeovers(),
		Version:             name,
		Source:              d.cfg.Mount.Source,
		Mountpoint:          d.cfg.Mount.Mountpoint,
		Volume:              id.ID,
		VolumeName:          id.Name,
		Owner:               b.Owner == nil,
		OwnerWhy:            message(b.Owner),
		Store:               admin.Store{Backend: d.cfg.Store.Backend, Location: d.access.location},
		Paused:              b.Paused,
		Segments:            b.Segments,
		Bytes:               b.Bytes,
		NotEvictableBytes:   make(map[string]int64),
		UploadStalled:       b.Stalled,
		UploadStalledWhy:    b.StalledWhy,
		UploadLagBytes:      b.LagBytes,
		UploadOldestSeconds: b.Oldest.Seconds(),
		UploadsQueued:       int64(b.Queued),
		UploadsRunning:      int64(b.Running),
		ColdReadsWaiting:    int64(c.Waiting),
		Tombstones:          b.Tombstones,
		Quarantined:         b.Quarantined,
		Cache: admin.Cache{
			Bytes: c.Bytes, Budget: c.Budget, Chunks: int64(c.Chunks), Hits: c.Hits, Misses: c.Misses, Degraded: c.Degraded,
		},
	}
	s.Bytes["cache"] = c.Bytes
	for _, state := range metrics.States() {
		s.Segments[state] += 0
	}
	for _, place := range metrics.Places() {
		s.Bytes[place] += 0
	}
	for why, amount := range b.NotEvictable {
		s.NotEvictableBytes[string(why)] = amount.Bytes
	}
	if err := d.access.reachable(); err != nil {
		s.Store.Error = err.Error()
	} else {
		s.Store.Reachable = true
	}
	if rules := d.volume.Layout(); rules != nil {
		s.Layout = string(rules.Kind())
	}
	if topics {
		s.Topics = topicList(b.Topics)
	}
	return s
}

// executable is the path of this process' binary, as far as it has one.
func executable() string {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err.Error()
	}
	return path
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func topicList(topics []upload.Topic) []admin.Topic {
	list := make([]admin.Topic, 0, len(topics))
	for _, t := range topics {
		list = append(list, admin.Topic{
			Name: t.Name, Partitions: t.Partitions, Segments: t.Segments,
			LocalBytes: t.Local, RemoteBytes: t.Remote, LagBytes: t.LagBytes, Why: string(t.Why),
		})
	}
	return list
}

// Segments implements admin.Daemon.
func (d *daemon) Segments(partition string) ([]admin.Segment, error) {
	p, ok := d.volume.PartitionOf(partition)
	if !ok {
		return nil, fmt.Errorf("%s: %w: there is no partition of that name, or it has no segments", partition, admin.ErrNotFound)
	}
	segments := d.background.Segments(p)
	list := make([]admin.Segment, 0, len(segments))
	for _, s := range segments {
		line := admin.Segment{
			Stem: segment.Stem(s.Start), Size: s.Usage.Size, Allocated: s.Usage.Allocated, State: stateName(s.Segment), Why: string(s.Why),
		}
		if s.Held() {
			line.End = &s.Record.End
		}
		list = append(list, line)
	}
	return list, nil
}

// stateName is a segment's state in the words of the metrics, or that of a
// segment whose bytes cannot be found.
func stateName(s tier.Segment) string {
	switch {
	case s.State == tier.Local && s.Active:
		return "active"
	case s.State == tier.Local:
		return "sealed"
	case s.State == tier.Uploaded, s.State == tier.Quarantined:
		return s.State.String()
	}
	return "remote"
}

// Evict implements admin.Daemon.
func (d *daemon) Evict(ctx context.Context, what admin.EvictRequest, progress func(admin.EvictStep)) (admin.EvictResult, error) {
	var topics func(string) bool
	if what.Topic != "" {
		topics = func(topic string) bool { return config.Match(what.Topic, topic) }
	}
	r, err := d.background.EvictNow(ctx, topics, what.All, func(s upload.Step) { progress(admin.EvictStep(s)) })
	result := admin.EvictResult{
		Uploaded: r.Uploaded.Segments, UploadedBytes: r.Uploaded.Bytes,
		Evicted: r.Evicted.Segments, EvictedBytes: r.Evicted.Bytes,
		UploadedBefore: r.UploadedBefore.Segments, UploadedBeforeBytes: r.UploadedBefore.Bytes,
		EvictedBefore: r.EvictedBefore.Segments, EvictedBeforeBytes: r.EvictedBefore.Bytes,
		Stayed: []admin.Stayed{},
	}
	for _, why := range slices.SortedFunc(maps.Keys(r.Stayed), cmp.Compare) {
		result.Stayed = append(result.Stayed, admin.Stayed{Reason: string(why), Segments: r.Stayed[why].Segments, Bytes: r.Stayed[why].Bytes})
	}
	return result, err
}

// Check implements admin.Daemon.
func (d *daemon) Check(ctx context.Context, what admin.CheckRequest, report func(admin.Finding), progress func(admin.Progress)) (admin.CheckResult, error) {
	c := &checker{root: d.source.fd, store: d.access.checks, rules: d.volume.Layout(), deep: what.Deep, report: report, progress: progress}
	return c.run(ctx)
}

// Pause implements admin.Daemon.
func (d *daemon) Pause(paused bool) {
	d.table.SetPaused(paused)
	if paused {
		d.background.Pause()
		return
	}
	d.background.Resume()
}

// ready says whether the mount serves reads.
func (d *daemon) ready() error {
	select {
	case <-d.server.Done():
		return errors.New("unmounted")
	default:
		return nil
	}
}

// Unmount implements admin.Daemon.
func (d *daemon) Unmount() error {
	d.flusher.pause()
	defer d.flusher.resume()
	err := d.server.Unmount()
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	point := d.cfg.Mount.Mountpoint
	u, found, lookErr := whoIsIn(d.server.Device())
	if lookErr != nil || !found {
		return fmt.Errorf("%s: %w by a process that cannot be seen, or by another mount (%w)", point, admin.ErrBusy, err)
	}
	return fmt.Errorf("%s: %w: %s open; stop it first", point, admin.ErrBusy, u)
}

// tryUnmount is what a signal does.
func (d *daemon) tryUnmount() {
	if err := d.Unmount(); err != nil {
		d.log.Warn("not unmounted, serving on", "err", err)
	}
}

// stillMounted is an error if the session has ended and the mount is still
// there: it is left, so that no broker starts on the bare source.
func (d *daemon) stillMounted() error {
	point := d.cfg.Mount.Mountpoint
	m, mounted, err := mountinfo.At(point)
	if err == nil && mounted && m.Source == d.admin.Name() {
		return fmt.Errorf("%s: the kernel ended the session; the dead mount stays, mount again to replace it", point)
	}
	return err
}

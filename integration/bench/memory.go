package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
)

const (
	bigPieces = 16 // of a segment that is uploaded: 1 GiB
	bigs      = 4  // partitions with one each, as many as uploads run at once
)

// memoryRows is what the daemon takes at most while segments of 1 GiB are uploaded, as many at once as there may be, and 64 readers
// read remote segments that are in no cache.
func memoryRows(ctx context.Context, b bench) (rows []row, err error) {
	server, err := b.s3Server(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, server.Stop()) }()
	v, cold, err := b.coldVolume("memory")
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, v.unmount()) }()
	mount, settings := "layout = \"kafka\"", b.coldCache()
	if err := v.mount(ctx, b, server.at(server.Endpoint), mount, settings); err != nil {
		return nil, err
	}
	if _, err := v.d.Do(ctx, "evict", "--all", v.source); err != nil {
		return nil, err
	}
	if err := v.unmount(); err != nil {
		return nil, err
	}
	for n := range bigs {
		if _, err := v.fill(fmt.Sprint("big-", n), 1, b.scaled(bigPieces), piece); err != nil {
			return nil, err
		}
	}
	if err := v.mount(ctx, b, server.at(server.Endpoint), mount, settings); err != nil {
		return nil, err
	}
	readers, err := coldReaders(hanging, true, cold)
	if err != nil {
		return nil, err
	}
	heap, err := watchUploads(ctx, v.d, bigs)
	peak, peakErr := memoryOf(v.d, daemon.Serves, "VmHWM")
	if err = joined(joined(err, peakErr), readers.Kill()); err != nil {
		return nil, err
	}
	what := "daemon while 1 GiB segments upload and 64 readers read cold, S3 (versitygw): "
	return []row{
		{what: what + "peak RSS", unit: "MiB", goal: "at most 200 MiB", lefts: []float64{peak}},
		{what: what + "peak Go heap in use", unit: "MiB", lefts: []float64{heap}},
	}, nil
}

// watchUploads waits until so many uploads are done, and for a while in any case, and returns the most that the heap took, in MiB.
func watchUploads(ctx context.Context, d *daemon.Daemon, uploads int) (heap float64, err error) {
	least := time.Now().Add(10 * time.Second)
	err = until(ctx, 100*time.Millisecond, func() (bool, error) {
		done, err := d.Metric(ctx, "tierfs_uploads_total", "result", "ok")
		if err != nil {
			return false, err
		}
		used, err := d.Metric(ctx, "go_memstats_heap_inuse_bytes")
		heap = max(heap, used/(1<<20))
		return int(done) >= uploads && time.Now().After(least), err
	})
	return heap, err
}

// memoryOf is a line of a process' status, in MiB: VmRSS now, VmHWM at most so far.
func memoryOf(d *daemon.Daemon, role, line string) (float64, error) {
	pid, err := d.PID(role)
	if err != nil {
		return 0, err
	}
	kib, err := child.Status(pid, line)
	return float64(kib) / 1024, err
}

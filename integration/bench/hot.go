package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/proxy"
)

const (
	hanging     = 64              // cold readers
	hotFile     = 4               // pieces of the local segment that is read hot: 256 MiB
	coldPieces  = 24              // segments of one piece each that are read cold
	coldLatency = 2 * time.Second // of each GET
)

// hotRows compares what a read of local data takes at most (p99) while 64 readers wait for a slow store with what it takes alone.
// First so that all of them may wait long, then with the settings as they are: then 4 of them wait, and the others are turned away
// and come again.
func hotRows(ctx context.Context, b bench) (rows []row, err error) {
	server, err := b.s3Server(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, server.Stop()) }()
	slow, err := proxy.Start(server.Endpoint)
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, slow.Close()) }()
	slow.Latency(coldLatency)
	slow.Bandwidth(0)
	v, cold, err := b.coldVolume("hot")
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, v.unmount()) }()
	hot, err := v.hotSegment()
	if err != nil {
		return nil, err
	}
	for _, c := range []struct {
		what, settings string
		waiting        int
	}{
		{"64 cold readers hang", fmt.Sprintf("[fetch]\nmax_blocked = %d\n", hanging), hanging},
		{"64 cold readers, of which 4 may hang", "", 4},
	} {
		if err := v.mount(ctx, b, server.at(slow.Endpoint), "layout = \"kafka\"", c.settings+b.coldCache()); err != nil {
			return rows, err
		}
		if _, err := v.d.Do(ctx, "evict", "--all", "--topic", "cold", v.source); err != nil {
			return rows, err
		}
		h := hotRun{b: b, v: v, slow: slow, cold: cold, hot: filepath.Join(v.source, hot), waiting: c.waiting}
		more, err := h.rows(ctx, c.what)
		rows = append(rows, more...)
		if err = joined(err, v.unmount()); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// coldCache are settings under which most of what is read cold is in no cache.
func (b bench) coldCache() string {
	return fmt.Sprintf("[cache]\nsize = \"%d MiB\"\n", b.scaled(coldPieces)*64/8)
}

// hotSegment makes a segment that is active, and stays local for that.
func (v *volume) hotSegment() (name string, err error) {
	if err := os.Mkdir(filepath.Join(v.source, "hot-0"), 0o755); err != nil {
		return "", err
	}
	name = "hot-0/00000000000000000000"
	_, err = writeSegment(filepath.Join(v.source, name), 0, hotFile, piece)
	return name + ".log", err
}

// hotRun is the rounds on one mount.
type hotRun struct {
	b       bench
	v       *volume
	slow    *proxy.Proxy
	cold    []string
	hot     string
	waiting int // how many of the cold readers wait at once, at least
}

func (h hotRun) rows(ctx context.Context, what string) (rows []row, err error) {
	var reads []hotReads
	for _, kind := range []struct {
		size  int
		cache string
		warm  bool
		count int
	}{
		{4 << 10, "not in the page cache", false, 30_000}, {4 << 10, "in the page cache", true, 200_000},
		{64 << 10, "not in the page cache", false, 8_000}, {64 << 10, "in the page cache", true, 50_000},
	} {
		reads = append(reads, hotReads{path: h.hot, size: kind.size, count: h.b.scaled(kind.count), warm: kind.warm})
		rows = append(rows, row{
			what: fmt.Sprintf("p99 of hot random reads, %d KiB, %s", kind.size>>10, kind.cache), unit: "µs", goal: "at most 1.5",
			left: what, right: "idle",
		})
	}
	measure := func(into func(r *row, v float64)) error {
		for i := range rows {
			p99, err := reads[i].run(ctx)
			if err != nil {
				return err
			}
			into(&rows[i], p99)
		}
		return nil
	}
	err = alternate(h.b.rounds, func(counted bool) (err error) {
		stop, err := h.hang(ctx)
		if err != nil {
			return err
		}
		defer func() { err = joined(err, stop()) }()
		return measure(func(r *row, v float64) {
			if counted {
				r.lefts = append(r.lefts, v)
			}
		})
	}, func(counted bool) error {
		return measure(func(r *row, v float64) {
			if counted {
				r.rights = append(r.rights, v)
			}
		})
	})
	return rows, err
}

// hang starts the cold readers and returns when nearly as many wait as should. stop ends them, and waits until the daemon fetches nothing
// more for them.
func (h hotRun) hang(ctx context.Context) (stop func() error, err error) {
	if err := h.slow.Set(ctx, proxy.Slow); err != nil {
		return nil, err
	}
	readers, err := coldReaders(hanging, false, h.cold)
	if err != nil {
		return nil, err
	}
	stop = func() error { return h.settle(ctx, readers) }
	if err := h.until(ctx, "tierfs_cold_reads_waiting", func(waiting float64) bool { return int(waiting) >= h.waiting*7/8 }); err != nil {
		return nil, joined(err, stop())
	}
	return stop, nil
}

func (h hotRun) settle(ctx context.Context, readers *child.Process) error {
	if err := joined(h.slow.Set(ctx, proxy.Pass), readers.Kill()); err != nil {
		return err
	}
	last := -1.0
	return h.until(ctx, "tierfs_store_requests_total", func(requests float64) bool {
		same := requests == last
		last = requests
		return same
	})
}

// until waits until a metric is what it should be.
func (h hotRun) until(ctx context.Context, metric string, is func(float64) bool) error {
	return until(ctx, 250*time.Millisecond, func() (bool, error) {
		v, err := h.v.d.Metric(ctx, metric)
		return is(v), err
	})
}

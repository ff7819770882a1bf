package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// manyPartitions have 1000 remote segments each.
const manyPartitions = 100

// manyRows mounts over 100,000 remote segments.
func manyRows(ctx context.Context, b bench) ([]row, error) {
	bucket, err := b.bucket()
	if err != nil {
		return nil, err
	}
	source := filepath.Join(b.root, "many")
	if err := os.Mkdir(source, 0o755); err != nil {
		return nil, err
	}
	partitions := b.scaled(manyPartitions)
	if err := tiertest.Plant(source, tiertest.Plan{Prefix: "tierfs", Partitions: partitions, Segments: 1000}); err != nil {
		return nil, err
	}
	ready := row{what: "mount over 100,000 remote segments: until it is ready", unit: "s", goal: "at most 5 s"}
	rss := row{what: "mount over 100,000 remote segments: RSS when it is ready", unit: "MiB", goal: "at most 300 MiB"}
	known := row{what: "mount over 100,000 remote segments: peak RSS after a look at the attributes of each", unit: "MiB"}
	for round := -1; round < b.rounds; round++ {
		took, at, after, err := mountMany(ctx, b, source, rig.FS(bucket), partitions)
		if err != nil {
			return nil, err
		}
		if round >= 0 {
			ready.lefts, rss.lefts, known.lefts = append(ready.lefts, took.Seconds()), append(rss.lefts, at), append(known.lefts, after)
		}
	}
	return []row{ready, rss, known}, nil
}

// mountMany mounts once. at and after are MiB.
func mountMany(ctx context.Context, b bench, source string, store rig.Store, partitions int) (took time.Duration, at, after float64, err error) {
	dir, err := os.MkdirTemp(b.root, "daemon-")
	if err != nil {
		return 0, 0, 0, err
	}
	d, err := daemon.New(daemon.Options{Binary: b.binary, Dir: dir, Source: source, Settings: store.Settings})
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = joined(err, d.Close()) }()
	began := time.Now()
	if err := d.Start(ctx); err != nil {
		return 0, 0, 0, err
	}
	took = time.Since(began)
	if at, err = memoryOf(d, daemon.Serves, "VmRSS"); err != nil {
		return 0, 0, 0, err
	}
	logs := 0
	for n := range partitions {
		names, err := os.ReadDir(filepath.Join(source, fmt.Sprint("t-", n)))
		if err != nil {
			return 0, 0, 0, err
		}
		for _, name := range names {
			if info, err := name.Info(); err != nil {
				return 0, 0, 0, err
			} else if filepath.Ext(name.Name()) == ".log" && info.Size() == tiertest.SegmentSize {
				logs++
			}
		}
	}
	if logs != partitions*1000 {
		return 0, 0, 0, fmt.Errorf("%d remote segments can be seen, not %d", logs, partitions*1000)
	}
	after, err = memoryOf(d, daemon.Serves, "VmHWM")
	return took, at, after, err
}

var passLine = regexp.MustCompile(`BenchmarkPass/(\d+)\S*\s+\d+\s+([0-9.]+) ns/op`)

// passRows has the uploader and the evictor look at 100,000 segments of which some changed. Nobody sees that from outside: it is a
// benchmark of their package.
func passRows(ctx context.Context, b bench) (rows []row, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkPass$", "-benchtime", "100x", "-count", fmt.Sprint(b.rounds),
		"github.com/tierfs/tierfs/upload")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test: %w: %s", err, out)
	}
	by := map[string]*row{}
	for _, m := range passLine.FindAllSubmatch(out, -1) {
		changed := string(m[1])
		if by[changed] == nil {
			by[changed] = &row{what: "a pass of uploader and evictor over 100,000 segments of which " + changed + " changed", unit: "ms"}
		}
		ns, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return nil, err
		}
		by[changed].lefts = append(by[changed].lefts, ns/1e6)
	}
	for _, changed := range []string{"1", "10", "100"} {
		r := by[changed]
		if r == nil {
			return nil, fmt.Errorf("go test printed no BenchmarkPass/%s: %s", changed, out)
		}
		if changed == "10" {
			r.goal = "at most 50 ms"
		}
		rows = append(rows, *r)
	}
	return rows, nil
}

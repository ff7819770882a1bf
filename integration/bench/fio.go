package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// fioFile is what fio reads, in MiB: small enough to stay in the page cache whole.
const fioFile = 256

// fio runs one job on a file of so many MiB and returns MiB/s.
func fio(ctx context.Context, path, rw, bs string, mib int, more ...string) (float64, error) {
	args := append([]string{
		"--name=job", "--filename=" + path, "--rw=" + rw, "--bs=" + bs, fmt.Sprintf("--size=%dm", mib),
		"--ioengine=psync", "--invalidate=0", "--fallocate=none", "--output-format=json",
	}, more...)
	cmd := exec.CommandContext(ctx, "fio", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("fio %s %s: %w: %s%s", rw, bs, err, stderr.String(), out)
	}
	var report struct {
		Jobs []struct {
			Read struct {
				BWBytes float64 `json:"bw_bytes"`
			}
			Write struct {
				BWBytes float64 `json:"bw_bytes"`
			}
		}
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Jobs) != 1 {
		return 0, fmt.Errorf("fio %s %s printed something else than one job (%v): %s", rw, bs, err, out)
	}
	return (report.Jobs[0].Read.BWBytes + report.Jobs[0].Write.BWBytes) / (1 << 20), nil
}

// warmRead reads a file that is wholly in the page cache.
func warmRead(path, rw, bs string) side {
	return side{run: func(ctx context.Context) (float64, error) {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if _, err := fio(ctx, path, "write", "1m", fioFile, "--end_fsync=1"); err != nil {
				return 0, err
			}
			if _, err := fio(ctx, path, "read", "1m", fioFile); err != nil {
				return 0, err
			}
		}
		return fio(ctx, path, rw, bs, fioFile, "--time_based", "--runtime=2")
	}}
}

// fioRows compares reads of the mount with those of a plain directory on the same disk. The files are named and placed as a broker's
// segments are. FUSE keeps its page cache in pages of 4 KiB, as tmpfs does, and ext4 and XFS in larger folios: tmpfs shows what that
// alone costs.
func fioRows(ctx context.Context, b bench) (rows []row, err error) {
	root := filepath.Join(b.root, "fio")
	native, source := filepath.Join(root, "native"), filepath.Join(root, "data")
	for _, dir := range []string{native, source} {
		if err := os.MkdirAll(filepath.Join(dir, "read-0"), 0o755); err != nil {
			return nil, err
		}
	}
	memory, err := os.MkdirTemp("/dev/shm", "tierfs-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, os.RemoveAll(memory)) }()
	bucket, err := b.bucket()
	if err != nil {
		return nil, err
	}
	d, err := daemon.New(daemon.Options{
		Binary: b.binary, Dir: filepath.Join(root, "tierfs"), Source: source, Mount: "layout = \"kafka\"", Settings: rig.FS(bucket).Settings,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, d.Close()) }()
	if err := d.Start(ctx); err != nil {
		return nil, err
	}
	for _, job := range fioJobs(d.Mountpoint(), native, memory) {
		r, err := compare(ctx, b.rounds, job.what, "MiB/s", job.goal, job.left, job.right)
		if err != nil {
			return rows, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// fioJob is one row of fio.
type fioJob struct {
	what, goal  string
	left, right side
}

func fioJobs(mount, native, memory string) (jobs []fioJob) {
	named := func(name string, s side) side {
		s.name = name
		return s
	}
	const segment = "read-0/00000000000000000000.log"
	for _, read := range []struct{ what, rw, bs string }{
		{"warm sequential reads, 128k", "read", "128k"}, {"warm random reads, 4k", "randread", "4k"},
	} {
		m := named("mount", warmRead(filepath.Join(mount, segment), read.rw, read.bs))
		jobs = append(jobs,
			fioJob{read.what, "0.9", m, named("native", warmRead(filepath.Join(native, segment), read.rw, read.bs))},
			fioJob{read.what, "", m, named("tmpfs", warmRead(filepath.Join(memory, "file"), read.rw, read.bs))})
	}
	return jobs
}

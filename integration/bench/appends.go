package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// burst is how many MiB are appended where that shall stay in memory.
const burst = 256

// appendTarget is one directory that is appended to.
type appendTarget struct {
	name, goal string
	dir        string // the directory of the file
	disk       string // a directory of the file system below
}

// appends has fio write a new file of so many MiB in pieces of bs.
func (t appendTarget) appends(bs string, mib int, more ...string) side {
	path := filepath.Join(t.dir, "00000000000000000000.log")
	return side{name: t.name, goal: t.goal, run: func(ctx context.Context) (rate float64, err error) {
		if err := settle(path, t.disk); err != nil {
			return 0, err
		}
		defer func() { err = joined(err, settle(path, t.disk)) }()
		return fio(ctx, path, "write", bs, mib, more...)
	}}
}

// settle removes the file that was written, and waits until the disk below has nothing left to do.
func settle(path, disk string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, err := os.Open(disk)
	if err != nil {
		return err
	}
	return joined(unix.Syncfs(int(dir.Fd())), dir.Close())
}

// appendRows compares buffered appends to mounts of both ways of writing with those to a plain directory on the same disk.
//
// The rows that count append as much as long says: see there. Another row has an fsync at the end of the same, inside the time that
// is measured, and so it is of the disk for the most part. The rows of a burst append so little that it stays in memory natively.
func appendRows(ctx context.Context, b bench) (rows []row, err error) {
	root := filepath.Join(b.root, "appends")
	native := appendTarget{name: "native", dir: filepath.Join(root, "native", "append-0"), disk: root}
	if err := os.MkdirAll(native.dir, 0o755); err != nil {
		return nil, err
	}
	var targets []appendTarget
	for _, writes := range []string{writeback, through} {
		d, err := b.appendMount(ctx, filepath.Join(root, writes), writes)
		if d != nil {
			defer func() { err = joined(err, d.Close()) }()
		}
		if err != nil {
			return nil, err
		}
		targets = append(targets, appendTarget{name: writes, dir: filepath.Join(d.Mountpoint(), "append-0"), disk: root})
	}
	return appendsTo(ctx, b, targets[0], targets[1], native)
}

func appendsTo(ctx context.Context, b bench, back, thru, native appendTarget) (rows []row, err error) {
	mib, err := long(back.dir)
	if err != nil {
		return nil, err
	}
	mib = b.scaled(mib)
	counting := back
	counting.goal = "0.7 (aim 0.95)"
	for _, bs := range []string{"4k", "16k", "128k"} {
		for _, c := range []struct {
			what  string
			mib   int
			more  []string
			sides []appendTarget
		}{
			{"", mib, nil, []appendTarget{counting, thru, native}},
			{", with an fsync at the end", mib, []string{"--end_fsync=1"}, []appendTarget{back, native}},
			{"", b.scaled(burst), nil, []appendTarget{back, thru, native}},
		} {
			var sides []side
			for _, t := range c.sides {
				sides = append(sides, t.appends(bs, c.mib, c.more...))
			}
			more, err := compareAll(ctx, b.rounds, fmt.Sprintf("buffered appends, %s, %d MiB%s", bs, c.mib, c.what), "MiB/s", sides...)
			if err != nil {
				return rows, err
			}
			rows = append(rows, more...)
		}
	}
	return rows, nil
}

// appendMount mounts a directory with one partition. The daemon has to be closed, also after an error, if there is one.
func (b bench) appendMount(ctx context.Context, root, writes string) (*daemon.Daemon, error) {
	source := filepath.Join(root, "data")
	if err := os.MkdirAll(filepath.Join(source, "append-0"), 0o755); err != nil {
		return nil, err
	}
	bucket, err := b.bucket()
	if err != nil {
		return nil, err
	}
	d, err := daemon.New(daemon.Options{
		Binary: b.binary, Dir: filepath.Join(root, "tierfs"), Source: source, Mount: writesSetting(writes), Settings: rig.FS(bucket).Settings,
	})
	if err != nil {
		return nil, err
	}
	if err := d.Start(ctx); err != nil {
		return d, err
	}
	return d, writesAs(ctx, d, writes)
}

// long is how many MiB have to be appended so that neither side only fills memory and neither is only as fast as the disk: a quarter
// more than what may be dirty before the kernel begins to write it (it makes writers wait at one and a half of that), and at least
// four times what the mount at dir may have dirty, so that most of it has gone through the daemon at the end.
func long(dir string) (mib int, err error) {
	stats, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, err
	}
	pages := 0
	for line := range strings.Lines(string(stats)) {
		if value, ok := strings.CutPrefix(line, "nr_dirty_background_threshold "); ok {
			if pages, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return 0, err
			}
		}
	}
	limit, err := dirtyLimit(dir)
	if err != nil {
		return 0, err
	}
	return max(pages*os.Getpagesize()/4*5, 4*limit) >> 20, nil
}

// dirtyLimit is how many bytes of the file system of dir may be dirty.
func dirtyLimit(dir string) (int, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/max_bytes", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

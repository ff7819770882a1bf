package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

const (
	takeovers       = 20     // of each kind
	knownFiles      = 10_000 // at least, of which the kernel knows the inodes
	openFiles       = 1000
	takeoverBatches = 4                // of 16 KiB, of a segment
	coldEach        = 100              // segments of each partition that are evicted
	bigEach         = 50               // that stay
	partitionsEach  = 4                // of both
	takeoverLimit   = 60 * time.Second // for one
)

// keepLocal has retention evict nothing by itself.
const keepLocal = "[retention]\ndefault_local_retention_age = \"unlimited\"\n"

// takeoverRows is how long one that reads and one that appends wait when the daemon is killed, and when another binary takes over: in
// both ways of writing, on a mount of which the kernel knows 10,000 inodes, 1,000 of them open. And what holder and daemon take at
// rest after that.
func takeoverRows(ctx context.Context, b bench) (rows []row, err error) {
	for _, writes := range []string{writeback, through} {
		more, err := b.takeoversOf(ctx, writes)
		rows = append(rows, more...)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", writes, err)
		}
	}
	return rows, nil
}

// takeoverRun is the rounds on one mount.
type takeoverRun struct {
	b        bench
	writes   string
	v        *volume
	load     *loader
	size     loadReply // to "ready"
	binaries [2]string // the same twice: one after the other takes over
	done     uint64    // takeovers so far
}

func (b bench) takeoversOf(ctx context.Context, writes string) (rows []row, err error) {
	v, err := b.takeoverVolume(writes)
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, v.unmount()) }()
	t := takeoverRun{b: b, writes: writes, v: v, binaries: [2]string{b.binary, filepath.Join(b.root, "tierfs-"+writes)}}
	if err := os.Link(t.binaries[0], t.binaries[1]); err != nil {
		return nil, err
	}
	if err := t.mount(ctx); err != nil {
		return nil, err
	}
	flags := []string{"-dir", v.source, "-read", "[cb]*/*.log", "-append", "hot-0/00000000000000000000.log", "-open", fmt.Sprint(b.scaled(openFiles))}
	if writes == writeback {
		flags = append(flags, "-sync")
	}
	if t.load, err = startLoad(flags...); err != nil {
		return nil, err
	}
	defer func() { err = joined(err, t.load.end()) }()
	if err := t.ready(ctx); err != nil {
		return nil, err
	}
	if rows, err = t.rows(ctx); err != nil {
		return rows, err
	}
	if writes == writeback {
		rest, err := t.atRest(ctx)
		rows = append(rows, rest...)
		if err != nil {
			return rows, err
		}
	}
	return rows, t.verify(ctx)
}

// takeoverVolume makes a log directory with some hundred small segments, an active one that is appended to, and many other files.
func (b bench) takeoverVolume(writes string) (*volume, error) {
	v, err := newVolume(filepath.Join(b.root, "takeover-"+writes))
	if err != nil {
		return nil, err
	}
	for topic, segments := range map[string]int{"cold": coldEach, "big": bigEach} {
		for n := range partitionsEach {
			if _, err := v.fill(fmt.Sprintf("%s-%d", topic, n), b.scaled(segments), 1, takeoverBatches); err != nil {
				return nil, err
			}
		}
	}
	for n := range b.scaled(knownFiles) {
		dir := filepath.Join(v.source, fmt.Sprint("others-", n/1000))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("file-", n)), []byte("small"), 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(filepath.Join(v.source, "hot-0"), 0o755); err != nil {
		return nil, err
	}
	return v, os.WriteFile(filepath.Join(v.source, "hot-0/00000000000000000000.log"), nil, 0o644)
}

// mount mounts, and evicts what shall be evicted.
func (t *takeoverRun) mount(ctx context.Context) error {
	bucket, err := t.b.bucket()
	if err != nil {
		return err
	}
	if err := t.v.mount(ctx, t.b, rig.FS(bucket), writesSetting(t.writes), keepLocal); err != nil {
		return err
	}
	if err := writesAs(ctx, t.v.d, t.writes); err != nil {
		return err
	}
	if _, err := t.v.d.Do(ctx, "evict", "--all", "--topic", "cold", t.v.source); err != nil {
		return err
	}
	s, err := t.v.d.Status(ctx)
	if want := int64(t.b.scaled(coldEach) * partitionsEach); err == nil && s.Segments["remote"] != want {
		err = fmt.Errorf("%d segments are evicted instead of %d", s.Segments["remote"], want)
	}
	return err
}

// ready waits until the load has begun, and insists on what it should be: enough files, and reads that do reach the daemon.
func (t *takeoverRun) ready(ctx context.Context) (err error) {
	if t.size, err = t.load.ask(ctx, askReady); err != nil {
		return err
	}
	if t.size.Known < t.b.scaled(knownFiles) || t.size.Open != t.b.scaled(openFiles) {
		return fmt.Errorf("%d files are known and %d open", t.size.Known, t.size.Open)
	}
	before, err := t.v.d.Metric(ctx, "tierfs_fuse_requests_total", "op", "read")
	if err != nil {
		return err
	}
	if _, err := t.load.ask(ctx, askPauses); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	seen, err := t.load.ask(ctx, askPauses)
	if err != nil {
		return err
	}
	after, err := t.v.d.Metric(ctx, "tierfs_fuse_requests_total", "op", "read")
	if err == nil && int(after-before) < seen.Reads {
		err = fmt.Errorf("of %d reads only %.0f reached the daemon", seen.Reads, after-before)
	}
	return err
}

// rows are the takeovers of both kinds.
func (t *takeoverRun) rows(ctx context.Context) (rows []row, err error) {
	var quiet []loadReply
	for _, kind := range []struct {
		what string
		act  func(ctx context.Context) error
	}{{"kill -9", t.kill}, {"upgrade", t.upgrade}} {
		var seen []loadReply
		for range max(t.b.scaled(takeovers), 2) {
			before, during, err := t.once(ctx, kind.act)
			if err != nil {
				return rows, fmt.Errorf("%s, takeover %d: %w", kind.what, t.done, err)
			}
			quiet, seen = append(quiet, before), append(seen, during)
		}
		what := fmt.Sprintf("%s, %s, %d inodes known, %d open", kind.what, t.writes, t.size.Known, t.size.Open)
		rows = append(rows, t.pauses(what, seen, "at most 1000 ms (aim 200)")...)
	}
	return append(rows, t.pauses("between two takeovers, "+t.writes, quiet, "")...), nil
}

// once has one takeover happen at a random moment. before is what the load saw since the one before.
func (t *takeoverRun) once(ctx context.Context, act func(ctx context.Context) error) (before, during loadReply, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, takeoverLimit, errors.New("the takeover takes too long"))
	defer cancel()
	time.Sleep(time.Duration(100+rand.IntN(300)) * time.Millisecond)
	if before, err = t.load.ask(ctx, askPauses); err != nil {
		return before, during, err
	}
	if err := act(ctx); err != nil {
		return before, during, err
	}
	if during, err = t.load.ask(ctx, askPauses); err != nil {
		return before, during, fmt.Errorf("%w; tierfs' last lines:\n%s", err, t.v.d.Log().Tail(20))
	}
	t.done++
	if err := t.v.d.TakenOver(ctx, t.done); err != nil {
		return before, during, err
	}
	return before, during, writesAs(ctx, t.v.d, t.writes)
}

// kill ends the daemon, and waits for its end and no more: what the load asks from then on, the successor answers. Whoever waited for
// the successor by asking it would take the processor away from it.
func (t *takeoverRun) kill(ctx context.Context) (err error) {
	pid, err := t.v.d.PID(daemon.Serves)
	if err != nil {
		return err
	}
	end, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { err = joined(err, unix.Close(end)) }()
	if killed, err := t.v.d.KillRole(daemon.Serves); err != nil {
		return err
	} else if killed != pid {
		return fmt.Errorf("killed %d, not %d", killed, pid)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(end), Events: unix.POLLIN}}, 100)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("process %d does not end: %w", pid, context.Cause(ctx))
		}
	}
}

// upgrade hands the mount over to the other binary.
func (t *takeoverRun) upgrade(ctx context.Context) error {
	slices.Reverse(t.binaries[:])
	_, err := t.v.d.DoWith(ctx, t.binaries[0], "upgrade", t.v.source)
	return err
}

// pauses makes the rows of what reader and writer saw.
func (t *takeoverRun) pauses(what string, seen []loadReply, goal string) (rows []row) {
	writer := "the appending writer"
	if t.writes == writeback {
		writer += ", who also waits for an fsync after 16 appends"
	}
	for _, who := range []struct {
		name string
		of   func(loadReply) float64
	}{{"the reader", loadReply.reader}, {writer, loadReply.writer}} {
		var all []float64
		for _, r := range seen {
			all = append(all, who.of(r))
		}
		rows = append(rows,
			row{what: fmt.Sprintf("%s: longest pause of %s, median of %d", what, who.name, len(all)), unit: "ms", goal: goal, lefts: all},
			row{what: fmt.Sprintf("%s: longest pause of %s, maximum of those", what, who.name), unit: "ms", goal: goal, lefts: []float64{slices.Max(all)}})
	}
	return rows
}

// verify has the load read back what it has appended.
func (t *takeoverRun) verify(ctx context.Context) error {
	if _, err := t.load.ask(ctx, askRest); err != nil {
		return err
	}
	if r, err := t.load.ask(ctx, askVerify); err != nil {
		return fmt.Errorf("read back what was appended: %w", err)
	} else if r.Appended == 0 {
		return errors.New("nothing was appended")
	}
	_, err := t.load.ask(ctx, askWork)
	return err
}

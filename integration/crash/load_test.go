package crash

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierfs/tierfs/segment"
)

const (
	loadPartitions = 3
	loadBatches    = 5 // of a segment
	loadKept       = 4 // segments
	mostDeaths     = 2 // of daemons, by one kill
)

// load is a broker at work on partitions of its own until the mount dies.
type load struct {
	v     *volume
	quiet bool // only what reaches no durable step
	stop  context.CancelFunc
	wait  sync.WaitGroup

	done   [loadPartitions]atomic.Int64 // batches that each broker has written
	mu     sync.Mutex
	failed []error
}

// startLoad goes on with the load; quiet: without anything that reaches a durable step.
func (v *volume) startLoad(quiet bool) {
	ctx, cancel := context.WithCancel(v.ctx)
	l := &load{v: v, quiet: quiet, stop: cancel}
	v.load = l
	rolled := make(chan struct{}, 1)
	for i := range loadPartitions {
		p := &partition{v: v, topic: "load", dir: fmt.Sprintf("load-%d", i)}
		l.wait.Go(func() { l.ended(l.broker(ctx, p, &l.done[i], rolled)) })
	}
	l.wait.Go(func() { l.ended(l.evictor(ctx, rolled)) })
}

// stopLoad ends the load, and returns what it met that the death of a mount does not explain.
func (v *volume) stopLoad() []error {
	if v.load == nil {
		return nil
	}
	l := v.load
	v.load = nil
	l.stop()
	l.wait.Wait()
	return l.failed
}

func (l *load) ended(err error) {
	if err != nil && !l.v.byDeath(err) {
		l.mu.Lock()
		l.failed = append(l.failed, err)
		l.mu.Unlock()
	}
}

// broker appends, flushes, rolls, reads back, writes into old segments and deletes the oldest.
func (l *load) broker(ctx context.Context, p *partition, done *atomic.Int64, rolled chan<- struct{}) error {
	if err := l.takeUp(p); err != nil {
		return err
	}
	if l.quiet {
		return l.rest(ctx, p, done)
	}
	for turn := 0; ctx.Err() == nil; turn++ {
		if err := l.roll(p, done); err != nil {
			return err
		}
		if err := l.old(p); err != nil {
			return err
		}
		if turn%2 == 1 {
			select {
			case rolled <- struct{}{}:
			default:
			}
		}
		l.behind(ctx, p)
	}
	return nil
}

// takeUp finds the partition as a restarted broker does.
func (l *load) takeUp(p *partition) error {
	if _, there := l.v.ledger.of(p.dir + "/"); !there {
		if err := l.v.mkdir(p.dir); err != nil {
			return err
		}
	}
	for _, path := range l.v.ledger.below(p.dir + "/") {
		if start, suffix, ok := segment.ParseStem(path[len(p.dir)+1:]); ok && suffix == ".log" {
			p.starts = append(p.starts, start)
		}
	}
	slices.Sort(p.starts)
	return nil
}

// roll fills the active segment and begins the next one. What a crash left of the active one is cut to whole batches.
func (l *load) roll(p *partition, done *atomic.Int64) error {
	if len(p.starts) == 0 {
		p.starts = []uint64{0}
	}
	i := len(p.starts) - 1
	log, index, next, ends := content(p.starts[i], loadBatches)
	f, have, err := l.active(p.log(i), ends)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, end := range ends {
		if end <= have {
			continue
		}
		if err := l.v.add(f, p.log(i), log[have:end]); err != nil {
			return err
		}
		done.Add(1)
		have = end
		if rand.IntN(2) == 0 {
			if err := f.Sync(); err != nil {
				return err
			}
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if _, left := l.v.ledger.of(p.index(i)); left {
		if err := l.v.unlink(p.index(i)); err != nil {
			return err
		}
	}
	if err := l.v.put(p.index(i), index); err != nil {
		return err
	}
	p.starts = append(p.starts, next)
	begun, err := l.v.create(p.log(i + 1))
	if err != nil {
		return err
	}
	begun.Close()
	if err := l.v.flushedTo(p.dir, next); err != nil {
		return err
	}
	if len(p.starts) > loadKept {
		oldest := p.starts[0]
		p.starts = p.starts[1:]
		return p.deleteSegment(oldest)
	}
	return nil
}

// active opens the active segment and cuts it to whole batches.
func (l *load) active(path string, ends []int) (f *os.File, have int, err error) {
	b, there := l.v.ledger.of(path)
	if !there {
		f, err = l.v.create(path)
		return f, 0, err
	}
	for _, end := range ends {
		if end <= len(b) {
			have = end
		}
	}
	if have < len(b) {
		if err := l.v.truncate(path, have); err != nil {
			return nil, 0, err
		}
	}
	f, err = os.OpenFile(l.v.at(path), os.O_RDWR|os.O_APPEND, 0)
	return f, have, err
}

// old reads a sealed segment back, and now and then writes into it.
func (l *load) old(p *partition) error {
	i := rand.IntN(len(p.starts))
	if i == len(p.starts)-1 {
		return nil
	}
	if rand.IntN(4) == 0 {
		if err := l.v.touch(p.log(i), byte(rand.IntN(256))); err != nil {
			return err
		}
	}
	return l.v.same(p.log(i))
}

// idle is what a broker does without reaching a durable step: it writes a small file, and reads.
func (l *load) idle(p *partition, f *os.File, path string) error {
	if b, _ := l.v.ledger.of(path); len(b) > 1<<16 {
		if err := l.v.truncate(path, 0); err != nil {
			return err
		}
	}
	if err := l.v.add(f, path, fmt.Appendf(nil, "%d\n", rand.IntN(100))); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	for i := range max(len(p.starts)-1, 0) {
		if err := l.v.same(p.log(i)); err != nil {
			return err
		}
	}
	return nil
}

// rest is idle until the mount dies.
func (l *load) rest(ctx context.Context, p *partition, done *atomic.Int64) error {
	path := p.dir + "/leader-epoch-checkpoint"
	f, err := os.OpenFile(l.v.at(path), os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = l.v.create(path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for ctx.Err() == nil {
		if err := l.idle(p, f, path); err != nil {
			return err
		}
		done.Add(1)
	}
	return nil
}

// behind waits until all but the last two segments have been uploaded: a broker that outruns its uploads would only fill the disk.
func (l *load) behind(ctx context.Context, p *partition) {
	for i := range max(len(p.starts)-2, 0) {
		for ctx.Err() == nil && exists(l.v.at(p.log(i))) && !l.v.isUploaded(p.log(i)) && !l.v.isRemote(p.log(i)) {
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// evictor evicts the load's segments as it goes on.
func (l *load) evictor(ctx context.Context, rolled <-chan struct{}) error {
	for deaths := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-rolled:
		}
		r, err := l.v.daemon.Run(ctx, "evict", "--all", "--topic", "load", l.v.daemon.Mountpoint())
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if r.Code == 0 {
			continue
		}
		failed := fmt.Errorf("tierfs evict ended with %d: %s%s", r.Code, r.Stdout, r.Stderr)
		if deaths++; deaths > mostDeaths {
			return failed
		}
		select { // it fails when the daemon dies, which shows a moment later
		case <-l.v.death.came:
			if l.v.verb == crash {
				return nil
			}
		case <-time.After(patience):
			return failed
		}
	}
}

package powercut

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

const (
	recordsPerBatch = 4
	payload         = 1100 // bytes of a record: a batch is more than 4 KiB
	batches         = 5    // of a segment
	kept            = 5    // sealed segments of a partition
	lifetime        = 25   // segments of a topic, which is deleted then and made again
	epochAt         = 12   // in a batch: the leader's epoch, which the batch's checksum leaves out
)

// pace is how much there is to do.
type pace struct {
	partitions int
	rest       time.Duration // at most, after each change of an old segment
}

// A busy broker has a flush for one or the other reason all the time; a quiet one shows what tierfs itself flushes.
var (
	busy  = pace{partitions: 3}
	quiet = pace{1, 400 * time.Millisecond}
	idle  = pace{}
)

// broker works on a volume until it is told to stop.
type broker struct {
	*view
	daemon *daemon.Daemon
	pace   pace

	root    sync.Mutex // one works on the names of the volume's own directory
	offsets map[string]uint64
	rolled  chan struct{}
}

// run works until ctx ends, and returns the first error of anybody.
func (b *broker) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	errs := make([]error, b.pace.partitions+1)
	for i := range b.pace.partitions {
		all.Go(func() {
			p := &partition{broker: b, dir: fmt.Sprintf("load-%d", i), random: rand.New(rand.NewPCG(uint64(i), 1))}
			if errs[i] = p.work(ctx); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	all.Go(func() {
		if err := b.evict(ctx); err != nil {
			errs[b.pace.partitions] = err
			cancel(err)
		}
	})
	all.Wait()
	return errors.Join(errs...)
}

// evict asks for evictions all the time, for what retention would do in hours.
func (b *broker) evict(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.rolled:
		}
		if _, err := b.daemon.Run(ctx, "evict", "--all", b.point); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// flushedTo raises the recovery point and the high watermark of a partition, as Kafka does; with 0 it forgets the partition.
func (b *broker) flushedTo(dir string, offset uint64) error {
	b.root.Lock()
	defer b.root.Unlock()
	b.offsets[dir] = offset
	if offset == 0 {
		delete(b.offsets, dir)
	}
	text := fmt.Sprintf("0\n%d\n", len(b.offsets))
	for _, name := range slices.Sorted(maps.Keys(b.offsets)) {
		dash := strings.LastIndexByte(name, '-')
		text += fmt.Sprintf("%s %s %d\n", name[:dash], name[dash+1:], b.offsets[name])
	}
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		if err := errors.Join(b.make(name+".tmp", []byte(text)), b.rename(name+".tmp", name), b.syncDir("")); err != nil {
			return err
		}
	}
	return nil
}

// partition is one directory of segments. One goroutine works on it.
type partition struct {
	*broker
	dir    string
	random *rand.Rand
	starts []uint64 // of the segments; the last one is active
	active *opened
	made   int
}

func (p *partition) perhaps() bool { return p.random.IntN(2) == 0 }

func (p *partition) name(start uint64, suffix string) string {
	return p.dir + "/" + segment.Stem(start) + suffix
}

// content is a segment of five batches, its index, the start of the next one, and where each batch ends.
func content(start uint64) (log, index []byte, next uint64, ends []int) {
	log, index, next = segmenttest.Kafka(start, batches, recordsPerBatch, payload)
	for end := 0; end < len(log); {
		end += 12 + int(binary.BigEndian.Uint32(log[end+8:]))
		ends = append(ends, end)
	}
	return log, index, next, ends
}

func (p *partition) work(ctx context.Context) (err error) {
	defer func() {
		if p.active != nil {
			err = errors.Join(err, p.active.Close())
		}
	}()
	for ctx.Err() == nil && err == nil {
		if p.active == nil {
			err = p.begin()
		}
		if err == nil {
			err = p.roll()
		}
		if err == nil {
			err = p.old()
			p.rest(ctx)
		}
		if err == nil && p.made >= lifetime {
			err = p.end()
		}
	}
	return err
}

// rest does nothing for a while.
func (p *partition) rest(ctx context.Context) {
	if p.pace.rest > 0 {
		timer := time.NewTimer(time.Duration(p.random.Int64N(int64(p.pace.rest))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// begin makes the topic.
func (p *partition) begin() (err error) {
	p.root.Lock()
	err = errors.Join(p.mkdir(p.dir+"/"), p.syncDir(""))
	p.root.Unlock()
	if err == nil {
		p.starts, p.made = []uint64{0}, 0
		p.active, err = p.create(p.name(0, ".log"), p.mode())
	}
	return err
}

// roll fills the active segment and begins the next one.
func (p *partition) roll() error {
	start := p.starts[len(p.starts)-1]
	log, index, next, ends := content(start)
	have := 0
	for _, end := range ends {
		if err := p.active.put(log[have:end], have); err != nil {
			return err
		}
		have = end
		var err error
		switch p.random.IntN(4) {
		case 0:
			err = p.active.sync()
		case 1:
			err = p.active.syncData()
		}
		if err != nil {
			return err
		}
	}
	err := errors.Join(p.active.sync(), p.index(p.name(start, ".index"), index))
	if err != nil {
		return err
	}
	fresh, err := p.create(p.name(next, ".log"), p.mode())
	if err != nil {
		return err
	}
	err = errors.Join(p.active.Close(), p.syncDir(p.dir))
	p.active = fresh
	p.starts = append(p.starts, next)
	p.made++
	if err != nil {
		return err
	}
	if err := p.flushedTo(p.dir, next); err != nil {
		return err
	}
	select {
	case p.rolled <- struct{}{}:
	default:
	}
	return nil
}

// mode is how an active segment is opened.
func (p *partition) mode() int {
	return []int{0, 0, os.O_APPEND, unix.O_DSYNC}[p.random.IntN(4)]
}

// index makes a segment's index, by writes or through a mapping.
func (p *partition) index(name string, b []byte) error {
	if p.perhaps() {
		return p.make(name, b)
	}
	o, err := p.create(name, 0)
	if err != nil {
		return err
	}
	return errors.Join(o.mapped(b), o.Close())
}

// old does something to a sealed segment, wherever its bytes are, and keeps the number of segments.
func (p *partition) old() error {
	start := p.starts[p.random.IntN(len(p.starts)-1)]
	log := p.name(start, ".log")
	var err error
	switch p.random.IntN(6) {
	case 0: // a new leader
		err = p.change(log, p.perhaps(), func(o *opened) error { return o.put(p.epoch(), epochAt) })
	case 1: // a follower that its leader does not follow
		err = p.truncate(start)
	case 2:
		err = p.replace(start)
	case 3:
		err = p.delete(p.starts[0])
	default:
		err = p.same(log)
	}
	for err == nil && len(p.starts) > kept+1 {
		err = p.delete(p.starts[0])
	}
	return err
}

func (p *partition) epoch() []byte { return []byte{0, 0, 1, byte(p.random.IntN(256))} }

func (p *partition) truncate(start uint64) error {
	sync := p.perhaps()
	_, _, _, ends := content(start)
	err := p.change(p.name(start, ".index"), sync, func(o *opened) error { return o.cut(0) })
	if err != nil {
		return err
	}
	return p.change(p.name(start, ".log"), sync, func(o *opened) error { return o.cut(min(ends[1], len(o.file.latest()))) })
}

// remote makes the topic with segments, and has those evicted that may be.
func (p *partition) remote(ctx context.Context) error {
	err := p.begin()
	for range kept {
		if err == nil {
			err = p.roll()
		}
	}
	if err != nil {
		return err
	}
	_, err = p.daemon.Do(ctx, "evict", "--all", p.point)
	return err
}

// replace puts another segment of the same batches in the place of one. (By the names that Kafka's cleaner uses for it the topic would be
// compacted, and not tiered.)
func (p *partition) replace(start uint64) error {
	err := p.replaceBy(start)
	if err == nil && p.perhaps() {
		err = p.syncDir(p.dir)
	}
	return err
}

func (p *partition) replaceBy(start uint64) error {
	log := p.name(start, ".log")
	b := slices.Clone(p.ledger.of(log).latest())
	copy(b[epochAt:], p.epoch())
	return errors.Join(p.make(log+".new", b), p.rename(log+".new", log))
}

// delete does what Kafka does for retention.
func (p *partition) delete(start uint64) error {
	if start == p.starts[len(p.starts)-1] {
		return nil
	}
	p.starts = slices.DeleteFunc(p.starts, func(s uint64) bool { return s == start })
	suffixes := []string{".log", ".index"}
	for _, suffix := range suffixes {
		if err := p.rename(p.name(start, suffix), p.name(start, suffix+".deleted")); err != nil {
			return err
		}
	}
	if p.perhaps() {
		if err := p.syncDir(p.dir); err != nil {
			return err
		}
	}
	for _, suffix := range suffixes {
		if err := p.remove(p.name(start, suffix+".deleted")); err != nil {
			return err
		}
	}
	if p.perhaps() {
		return p.syncDir(p.dir)
	}
	return nil
}

// end does what Kafka does when a topic is deleted.
func (p *partition) end() error {
	err := errors.Join(p.active.Close(), p.syncDir(p.dir))
	p.active = nil
	if err != nil {
		return err
	}
	if err := p.flushedTo(p.dir, 0); err != nil {
		return err
	}
	p.root.Lock()
	defer p.root.Unlock()
	gone := fmt.Sprintf("%s.%032x-delete", p.dir, p.random.Uint64())
	if err := errors.Join(p.rename(p.dir+"/", gone+"/"), p.syncDir("")); err != nil {
		return err
	}
	for _, name := range p.ledger.below(gone) {
		if err := p.remove(name); err != nil {
			return err
		}
	}
	err = errors.Join(p.rmdir(gone+"/"), p.syncDir(""))
	if err == nil {
		p.ledger.forget(gone + "/")
	}
	return err
}

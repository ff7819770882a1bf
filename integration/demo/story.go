package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// records is how many the demo produces to each topic, of about 4 KiB each.
const records = 24000

const (
	// deleteGrace is the demo's retention.delete_grace: nobody wants to watch the default.
	deleteGrace = "2 s"
	// goneWithin is how long a deleted topic's objects may stay in the store: the broker's own delay, the grace, and the next look.
	goneWithin = 40 * time.Second
)

// topics are what the demo produces: plain, compressed, and transactional with aborts.
var topics = []struct{ name, create, produce string }{
	{"orders", "partitions=2", "mode=idempotent"},
	{"clicks", "partitions=2 payload=text", "mode=idempotent compression=zstd"},
	{"payments", "partitions=1", "mode=txn txn=500 abort=5"},
}

// story is the demo's steps in order. Each says what it is about to do and fails when it does not come true.
type story struct {
	rig     *rig.Rig
	store   rig.Store
	started time.Time
	full    int64    // bytes that the directory took before the eviction
	open    []string // the broker's descriptors of segments
}

func (s *story) chapter(title string) {
	fmt.Printf("\n%3.0f s  %s\n", time.Since(s.started).Seconds(), title)
}

func (s *story) say(format string, args ...any) { fmt.Printf("       "+format+"\n", args...) }

func (s *story) native(ctx context.Context) error {
	s.chapter("A Kafka broker runs on a plain directory, as it does everywhere.")
	if err := s.rig.Client.Format(ctx, s.rig.Broker); err != nil {
		return err
	}
	if err := s.rig.Broker.Start(ctx); err != nil {
		return err
	}
	for _, topic := range topics {
		if err := s.produce(ctx, topic.name, topic.create, topic.produce); err != nil {
			return err
		}
	}
	used, err := s.rig.Used()
	s.say("its directory takes %s", size(used))
	return err
}

func (s *story) produce(ctx context.Context, name, create, produce string) error {
	topic := "topic=" + name
	if _, err := s.rig.Do(ctx, "create", topic, create, "min=2000", "max=6000"); err != nil {
		return err
	}
	r, err := s.rig.Do(ctx, "produce", topic, fmt.Sprint("records=", records), "batch=65536", produce)
	if err != nil {
		return err
	}
	s.say("produced %d records, %s, to %s (%s)", r.Int("acked"), size(r.Int("bytes")), name, produce)
	return nil
}

func (s *story) refused(ctx context.Context) error {
	s.chapter("tierfs does not mount over a directory that a broker is using.")
	r, err := s.rig.Daemon.Run(ctx, "mount", "--config", s.rig.Daemon.Config(), s.rig.Source)
	if err != nil {
		return err
	}
	if r.Code == 0 {
		return errors.New("it did")
	}
	s.say("%s", strings.TrimSpace(r.Stderr))
	return nil
}

func (s *story) adopt(ctx context.Context) error {
	s.chapter("The broker stops, tierfs mounts over its directory, the broker starts again.")
	if err := s.rig.Broker.Stop(); err != nil {
		return err
	}
	if err := s.rig.Up(ctx); err != nil {
		return err
	}
	s.say("broker: pid %d, unmodified, on the same path", s.rig.Broker.PID())
	if r, err := s.rig.Do(ctx, "produce", "topic=orders", "records=2000", "batch=65536"); err != nil {
		return err
	} else {
		s.say("produced %d records more, through the mount", r.Int("acked"))
	}
	return nil
}

func (s *story) evict(ctx context.Context) error {
	s.chapter("tierfs uploads the sealed segments and drops their local copies, while the broker holds them open.")
	if err := s.rig.Checkpointed(ctx); err != nil {
		return err
	}
	var err error
	if s.full, err = s.rig.Used(); err != nil {
		return err
	}
	if s.open, err = s.openLogs(); err != nil {
		return err
	}
	if _, err := s.rig.Daemon.Do(ctx, "evict", "--all", s.rig.View()); err != nil {
		return err
	}
	used, err := s.rig.Used()
	if err != nil {
		return err
	}
	objects, err := s.store.Objects("", ".log")
	if err != nil {
		return err
	}
	s.say("disk before: %s, after: %s; %d segments, %s, are in the store", size(s.full), size(used), len(objects), size(total(objects)))
	if used > s.full/5 {
		return fmt.Errorf("the directory still takes %s of %s", size(used), size(s.full))
	}
	return s.sameBroker()
}

// sameBroker insists that the broker is the process that it was, with the descriptors that it had.
func (s *story) sameBroker() error {
	open, err := s.openLogs()
	if err != nil {
		return err
	}
	if !s.rig.Broker.Process().Running() || !slices.Equal(open, s.open) {
		return fmt.Errorf("the broker's open segments changed from %d to %d", len(s.open), len(open))
	}
	s.say("broker: still pid %d, with the same %d segments open", s.rig.Broker.PID(), len(open))
	return nil
}

func (s *story) readCold(ctx context.Context) error {
	s.chapter("A consumer reads everything from offset 0; each record is compared byte for byte.")
	if err := s.rig.Forget(); err != nil {
		return err
	}
	if err := s.consume(ctx, "read"); err != nil {
		return err
	}
	gets, err := s.rig.Daemon.Metric(ctx, "tierfs_store_requests_total", "op", "get")
	if err != nil {
		return err
	}
	s.say("that took %.0f GETs", gets)
	if gets == 0 {
		return errors.New("nothing came from the store")
	}
	return s.sameBroker()
}

// kill ends the daemon while the broker runs.
func (s *story) kill(ctx context.Context) error {
	s.chapter("tierfs is killed with -9 under the running broker; its successor takes the mount over.")
	killed, err := s.rig.Daemon.KillRole(daemon.Serves)
	if err != nil {
		return err
	}
	if err := s.rig.Daemon.TakenOver(ctx, 1); err != nil {
		return err
	}
	now, err := s.rig.Daemon.PID(daemon.Serves)
	if err != nil {
		return err
	}
	s.say("pid %d is dead, pid %d serves", killed, now)
	if err := s.consume(ctx, "read again"); err != nil {
		return err
	}
	return s.sameBroker()
}

func (s *story) consume(ctx context.Context, word string) error {
	for _, topic := range topics {
		for _, isolation := range []string{"read_uncommitted", "read_committed"} {
			if isolation == "read_committed" && !strings.Contains(topic.produce, "txn") {
				continue
			}
			r, err := s.rig.Do(ctx, "consume", "topic="+topic.name, "isolation="+isolation)
			if err != nil {
				return err
			}
			s.say("%s %s: %d records, %s, all right%s", word, topic.name, r.Int("records"), size(r.Int("bytes")), aside(isolation))
		}
	}
	return nil
}

func aside(isolation string) string {
	if isolation == "read_committed" {
		return ", without the aborted ones"
	}
	return ""
}

func (s *story) restart(ctx context.Context) error {
	s.chapter("The broker restarts over its evicted segments.")
	gets := func() (float64, error) { return s.rig.Daemon.Metric(ctx, "tierfs_store_requests_total", "op", "get") }
	before, err := gets()
	if err != nil {
		return err
	}
	if err := s.rig.Broker.Stop(); err != nil {
		return err
	}
	start := time.Now()
	if err := s.rig.Broker.Start(ctx); err != nil {
		return err
	}
	after, err := gets()
	if err != nil {
		return err
	}
	s.say("started in %.1f s, pid %d, with %.0f GETs", time.Since(start).Seconds(), s.rig.Broker.PID(), after-before)
	if after != before {
		return errors.New("a clean start needs nothing from the store")
	}
	if err := s.consume(ctx, "read again"); err != nil {
		return err
	}
	r, err := s.rig.Do(ctx, "random", "topic=orders", "count=50", "seed=1")
	if err != nil {
		return err
	}
	s.say("and 50 random offsets: %d records, all right", r.Int("records"))
	return nil
}

func (s *story) deleteTopic(ctx context.Context) error {
	s.chapter("A topic is deleted with Kafka's own means: that is the broker's retention, tierfs has none of its own.")
	before, err := s.store.Objects("clicks-", "")
	if err != nil {
		return err
	}
	if len(before) == 0 {
		return errors.New("it has no object in the store")
	}
	if _, err := s.rig.Do(ctx, "delete", "topic=clicks"); err != nil {
		return err
	}
	s.say("its %d objects, %s, leave the store when the broker has let go of the files and delete_grace (here %s) is over", len(before), size(total(before)), deleteGrace)
	start := time.Now()
	if err := s.gone(ctx, "clicks-"); err != nil {
		return err
	}
	s.say("after %.0f s all of them are gone", time.Since(start).Seconds())
	if _, err := s.rig.Do(ctx, "consume", "topic=orders"); err != nil {
		return err
	}
	s.say("the others are as they were")
	return nil
}

// gone waits until no object's key contains part. Only the store's own files tell, which announce nothing.
func (s *story) gone(ctx context.Context, part string) error {
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	for tick := time.Tick(100 * time.Millisecond); ; {
		left, err := s.store.Objects(part, "")
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return fmt.Errorf("%d of its objects are still in the store after %v: %w", len(left), goneWithin, ctx.Err())
		}
	}
}

func (s *story) openLogs() ([]string, error) {
	open, err := child.OpenFiles(s.rig.Broker.PID(), s.rig.View())
	open = slices.DeleteFunc(open, func(line string) bool { return !strings.HasSuffix(line, ".log") })
	slices.Sort(open)
	return open, err
}

func total(objects map[string]int64) int64 {
	var sum int64
	for _, size := range objects {
		sum += size
	}
	return sum
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(0, bytes))) }

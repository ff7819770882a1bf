package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/rig"
)

// durableTopic is a topic whose acknowledged records are on disk: the broker flushes every batch before it answers.
var durableTopic = []string{"topic=durable", "partitions=3", "min=1000", "max=5000", "config.flush.messages=1", "config.segment.bytes=1048576"}

// load starts a producer, waits until segments have been evicted behind it, and leaves it running.
func (f *fixture) load() *kafka.Call {
	f.t.Helper()
	f.do("create", durableTopic...)
	run := f.Go("produce", "topic=durable", "rate=2000", "timeout=180000")
	f.must(run.Acked(f.ctx, 3000))
	f.evict()
	if len(f.remote()) == 0 {
		f.t.Fatal("nothing was evicted under load")
	}
	return run
}

// finish stops the producer, evicts again, and reads everything that was acknowledged. refused is how many records at most the
// broker may have refused.
func (f *fixture) finish(run *kafka.Call, evicted map[string]int64, sizes map[string]attributes, refused int64) {
	f.t.Helper()
	unchanged(f.t, evicted, restrict(f.remote(), evicted))
	unchanged(f.t, restrict(sizes, evicted), restrict(f.segments(), evicted))
	r, err := run.Stop(f.ctx)
	f.must(err)
	if r.Int("failed") > refused {
		f.t.Errorf("records failed: %v", r)
	}
	f.evict()
	f.must(f.Forget())
	f.t.Logf("produced %v, consumed %v", r, f.do("consume", "topic=durable"))
	if dirs := f.do("logdirs"); dirs.Int("offline") != 0 {
		f.t.Errorf("a log directory is offline: %v", dirs)
	}
	if n := f.metric("tierfs_batch_checksum_failures_total"); n != 0 {
		f.t.Errorf("%v batches from the store were wrong", n)
	}
}

// restrict keeps those entries of m that are in by, too.
func restrict[V, W any](m map[string]V, by map[string]W) map[string]V {
	kept := map[string]V{}
	for path, value := range m {
		if _, ok := by[path]; ok {
			kept[path] = value
		}
	}
	return kept
}

// TestKilledBroker ends the broker by SIGKILL while it is written to, over segments that are partly evicted.
func TestKilledBroker(t *testing.T) {
	t.Parallel()
	f := newFixture(t, fsStore(t), rig.Options{Binary: checked})
	f.up()
	run := f.load()
	evicted, sizes := f.remote(), f.segments()
	f.must(run.Acked(f.ctx, 6000))
	f.must(f.Broker.Kill())
	f.must(f.Broker.Start(f.ctx))
	f.must(run.Acked(f.ctx, 10000))
	f.finish(run, evicted, sizes, 0)
}

// inFlight is more than the records that a producer has sent and not got an answer for: 5 batches of 16 KiB.
const inFlight = 5 * 16384 / 1000

// TestKilledDaemon ends tierfs by SIGKILL while the broker is written to. The broker halts, as it does on a failed disk, and may
// answer what is in flight with an error that a producer does not retry; both are started again.
func TestKilledDaemon(t *testing.T) {
	t.Parallel()
	f := newFixture(t, fsStore(t), rig.Options{Binary: checked})
	f.up()
	run := f.load()
	evicted, sizes := f.remote(), f.segments()
	f.must(run.Acked(f.ctx, 6000))
	f.must(f.Daemon.Kill())
	ctx, cancel := context.WithTimeout(f.ctx, 30*time.Second)
	defer cancel()
	select {
	case <-f.Broker.Process().Done():
	case <-ctx.Done():
		f.t.Error("the broker did not halt when its disk was gone")
		f.must(f.Broker.Kill())
	}
	f.must(f.Daemon.Start(f.ctx))
	f.must(f.Broker.Start(f.ctx))
	f.must(run.Acked(f.ctx, 10000))
	f.finish(run, evicted, sizes, inFlight)
}

// TestDeletedTopic shows that the broker's delete reaches the store, after the grace and for this topic only.
func TestDeletedTopic(t *testing.T) {
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, store.open(t), rig.Options{Binary: checked, Settings: "[retention]\ndelete_grace = \"2 s\"\n"})
			f.up()
			for _, name := range []string{"kept", "gone"} {
				f.do("create", "topic="+name, "partitions=2", "config.segment.bytes=1048576")
				f.do("produce", "topic="+name, "records=8000")
			}
			f.evict()
			kept, gone := f.objects("kept-"), f.objects("gone-")
			if len(kept) < 4 || len(gone) < 4 {
				f.t.Fatalf("objects: %v, %v", kept, gone)
			}
			f.do("delete", "topic=gone")
			f.eventually("objects of the deleted topic go", 40*time.Second, func() (bool, error) {
				left, err := f.store.Objects("gone-", "")
				return len(left) == 0, err
			})
			f.eventually("directories of the deleted topic go", 20*time.Second, func() (bool, error) {
				found := false
				for path := range f.segments() {
					found = found || strings.HasPrefix(path, "gone-")
				}
				return !found, nil
			})
			unchanged(f.t, kept, f.objects("kept-"))
			f.must(f.Forget())
			f.do("consume", "topic=kept")

			f.do("create", "topic=gone", "partitions=1") // the same name again: its data are its own
			f.do("produce", "topic=gone", "records=2000")
			f.do("consume", "topic=gone")
		})
	}
}

// objects are the sizes of a topic's objects, side files included.
func (f *fixture) objects(part string) map[string]int64 {
	f.t.Helper()
	all, err := f.store.Objects(part, "")
	f.must(err)
	return all
}

package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/rig"
)

// lifeTopics are named after what the broker does to them once they are evicted.
var lifeTopics = []string{"shortened", "compacted", "reindexed", "trimmed", "aged"}

// TestBrokersOwnWork has the broker do to evicted segments what it does to any: delete the oldest, compact, rebuild an index.
func TestBrokersOwnWork(t *testing.T) {
	t.Parallel()
	f := newFixture(t, fsStore(t), rig.Options{
		Binary: checked, Settings: "[retention]\ndelete_grace = \"1 s\"\n", Broker: map[string]string{"log.cleaner.backoff.ms": "200"},
	})
	f.up()
	for _, name := range lifeTopics {
		f.do("create", "topic="+name, "partitions=2", "min=1000", "max=5000", "config.segment.bytes=1048576")
		f.do("produce", "topic="+name, "records=5000", "batch=65536")
	}
	f.evict()
	for _, name := range lifeTopics {
		if n := len(f.evicted(name)); n < 10 {
			t.Fatalf("%d segments of %s were evicted", n, name)
		}
	}
	f.must(f.Forget())
	t.Run("retention", func(t *testing.T) { f.in(t).retention() })
	t.Run("compaction", func(t *testing.T) { f.in(t).compaction() })
	t.Run("delete records", func(t *testing.T) { f.in(t).trimmed() })
	t.Run("age", func(t *testing.T) { f.in(t).aged() })
	t.Run("lost index", func(t *testing.T) { f.in(t).lostIndex() })
	if dirs := f.do("logdirs"); dirs.Int("offline") != 0 {
		t.Errorf("a log directory is offline: %v", dirs)
	}
}

// in is the fixture for a subtest.
func (f *fixture) in(t *testing.T) *fixture {
	sub := *f
	sub.t = t
	return &sub
}

// evicted are the evicted segments of a topic.
func (f *fixture) evicted(topic string) []string {
	f.t.Helper()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.remote())), func(path string) bool { return !strings.HasPrefix(path, topic+"-") })
}

// retention lets the broker delete all but the last few segments. Their objects go; what is left is read as before.
func (f *fixture) retention() {
	before := f.evicted("shortened")
	f.do("alter", "topic=shortened", "config.retention.bytes=3145728")
	f.eventually("the oldest segments go", 30*time.Second, func() (bool, error) { return len(f.evicted("shortened")) <= 6, nil })
	f.eventually("their objects go", 30*time.Second, func() (bool, error) {
		objects, err := f.store.Objects("shortened-", ".log")
		return len(objects) == len(f.evicted("shortened")), err
	})
	r := f.do("consume", "topic=shortened", "from=start")
	f.t.Logf("of %d evicted segments %d are left, consumed %v", len(before), len(f.evicted("shortened")), r)
	if r.Int("records") == 0 || r.Int("records") >= 5000 {
		f.t.Errorf("consumed %v", r)
	}
}

// compaction switches a topic to cleanup.policy=compact. Each key is there once, so that the cleaner reads and rewrites every
// evicted segment and all records stay. What it has rewritten is no longer tiered, and the objects go.
func (f *fixture) compaction() {
	before := f.evicted("compacted")
	f.do("alter", "topic=compacted", "config.cleanup.policy=compact", "config.min.cleanable.dirty.ratio=0.001")
	f.eventually("the evicted segments are rewritten", time.Minute, func() (bool, error) { return len(f.evicted("compacted")) == 0, nil })
	f.eventually("their objects go", 30*time.Second, func() (bool, error) {
		objects, err := f.store.Objects("compacted-", ".log")
		return len(objects) == 0, err
	})
	f.must(f.Forget())
	r := f.do("consume", "topic=compacted")
	f.t.Logf("%d evicted segments were compacted, consumed %v", len(before), r)
	if r.Int("records") != 5000 {
		f.t.Errorf("consumed %v", r)
	}
}

// lostIndex takes the indexes of evicted segments away while the broker is stopped: it rebuilds them from the segments' bytes.
func (f *fixture) lostIndex() {
	evicted := f.evicted("reindexed")
	f.must(f.Broker.Stop())
	f.must(f.Forget())
	logs := f.segments()
	was := map[string]string{}
	for _, path := range evicted[:3] {
		index := filepath.Join(f.View(), strings.TrimSuffix(path, ".log")+".index")
		text, err := os.ReadFile(index)
		f.must(err)
		f.must(os.Remove(index))
		was[index] = string(text)
	}
	before := f.gets()
	f.must(f.Broker.Start(f.ctx))
	if f.gets() == before {
		f.t.Error("the broker rebuilt its indexes without a GET")
	}
	for index, text := range was {
		if info, err := os.Stat(index); err != nil || info.Size() == 0 {
			f.t.Errorf("%s of %d bytes was not rebuilt: %v", index, len(text), err)
		}
	}
	unchanged(f.t, restrict(logs, f.remote()), restrict(f.segments(), f.remote()))
	if now := f.evicted("reindexed"); !slices.Equal(now, evicted) {
		f.t.Errorf("evicted were %v and are %v", evicted, now)
	}
	f.do("consume", "topic=reindexed")
	f.do("times", "topic=reindexed", fmt.Sprint("count=", 20), "seed=4")
}

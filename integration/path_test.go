package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/rig"
)

// topic is something to produce.
type topic struct {
	name    string
	create  []string
	produce []string
	records int64
	txn     bool
}

// wide is data of every kind that a producer can make: 560 MiB in the broker's logs, 11 partitions.
var wide = []topic{
	{name: "plain", create: []string{"partitions=3", "min=1000", "max=9000"}, produce: []string{"mode=idempotent", "batch=65536"}, records: 42000},
	{name: "small", create: []string{"partitions=2", "min=10", "max=300"}, produce: []string{"mode=plain"}, records: 100000},
	{name: "lz4", create: []string{"partitions=2", "min=1000", "max=9000", "payload=text"}, produce: []string{"compression=lz4", "batch=131072"}, records: 32000},
	{name: "zstd", create: []string{"partitions=1", "min=1000", "max=9000", "payload=text"}, produce: []string{"compression=zstd", "batch=131072"}, records: 32000},
	{name: "gzip", create: []string{"partitions=1", "min=1000", "max=9000", "payload=text"}, produce: []string{"compression=gzip", "batch=131072"}, records: 6000},
	{name: "txn", create: []string{"partitions=2", "min=1000", "max=9000"}, produce: []string{"mode=txn", "txn=400", "abort=5", "batch=65536"}, records: 32000, txn: true},
}

func (f *fixture) produce(topics []topic) {
	f.t.Helper()
	for _, topic := range topics {
		name := "topic=" + topic.name
		f.do("create", append([]string{name}, topic.create...)...)
		r := f.do("produce", append([]string{name, fmt.Sprint("records=", topic.records)}, topic.produce...)...)
		if r.Int("acked") != topic.records {
			f.t.Fatalf("%s: %v", topic.name, r)
		}
		f.t.Logf("produced %s: %v", topic.name, r)
	}
}

// consume reads everything from the beginning, as each kind of reader sees it, then by timestamp and at random offsets.
func (f *fixture) consume(topics []topic, random int) {
	f.t.Helper()
	for _, topic := range topics {
		name := "topic=" + topic.name
		if r := f.do("consume", name); r.Int("records") != topic.records {
			f.t.Errorf("%s: read %v of %d records", topic.name, r, topic.records)
		} else {
			f.t.Logf("consumed %s: %v", topic.name, r)
		}
		f.do("random", name, fmt.Sprint("count=", random), "seed=7")
		if topic.txn {
			if r := f.do("consume", name, "isolation=read_committed"); r.Int("records") >= topic.records || r.Int("records") == 0 {
				f.t.Errorf("%s, read_committed: %v", topic.name, r)
			}
			f.do("random", name, "isolation=read_committed", fmt.Sprint("count=", random), "seed=8")
		} else {
			f.do("times", name, fmt.Sprint("count=", random), "seed=9")
		}
	}
}

// TestWholePath is the promise of the project: a broker's segments leave the disk while it holds them open, and every byte is there.
func TestWholePath(t *testing.T) {
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			wholePath(newFixture(t, store.open(t), rig.Options{}))
		})
	}
}

func wholePath(f *fixture) {
	f.up()
	f.produce(wide)
	f.must(f.Checkpointed(f.ctx))
	before, open, logs, pid := f.used(), f.openLogs(), f.segments(), f.Broker.PID()
	if before < 512<<20 {
		f.t.Fatalf("only %d MiB were produced", before>>20)
	}

	f.evict()
	after := f.used()
	f.t.Logf("the source took %d MiB, now %d MiB", before>>20, after>>20)
	if after > before/5 {
		f.t.Errorf("the source took %d bytes and still takes %d", before, after)
	}
	f.sameBroker(pid, open)
	unchanged(f.t, logs, f.segments())
	remote := f.remote()
	for path := range sealed(logs) {
		if size, ok := remote[path]; !strings.HasPrefix(path, "__") && (!ok || size != 128) {
			f.t.Errorf("%s is sealed and was not evicted (marker of %d bytes)", path, size)
		}
	}
	f.checkHidden()

	f.must(f.Forget())
	f.consume(wide, 40)
	if got, want := f.metric("tierfs_store_bytes_total", "op", "get"), f.status().Bytes["remote"]; want == 0 || int64(got) < want {
		f.t.Errorf("%d bytes are in the store only, and %.0f were fetched to read them all", want, got)
	}
	f.sameBroker(pid, open)
	restartBroker(f)
	restartDaemon(f)
	f.checkHidden()
}

// sameBroker insists that the broker is the process that it was, with the descriptors of segments that it had.
func (f *fixture) sameBroker(pid int, open []string) {
	f.t.Helper()
	if !f.Broker.Process().Running() || f.Broker.PID() != pid {
		f.t.Fatal("the broker is not the process that it was")
	}
	if now := f.openLogs(); !slices.Equal(now, open) {
		f.t.Errorf("the broker's descriptors changed from\n%s\nto\n%s", strings.Join(open, "\n"), strings.Join(now, "\n"))
	}
}

// restartBroker shows that a clean start over evicted segments needs nothing from the store.
func restartBroker(f *fixture) {
	f.must(f.Broker.Stop())
	f.must(f.Forget())
	before := f.metric("tierfs_store_requests_total", "op", "get")
	f.must(f.Broker.Start(f.ctx))
	if after := f.gets(); after != before {
		f.t.Errorf("a clean start of the broker made %v GETs", after-before)
	}
	f.consume(wide[1:2], 5)
}

// ownerSize is more than the owner object, which a mount reads from the store to claim the volume.
const ownerSize = 2048

// restartDaemon shows that a clean restart changes nothing, what was cached included.
func restartDaemon(f *fixture) {
	f.must(f.Broker.Stop())
	logs, status := f.segments(), f.status()
	f.must(f.Daemon.Stop())
	f.must(f.Daemon.Start(f.ctx))
	unchanged(f.t, logs, f.segments())
	now := f.status()
	if now.Volume != status.Volume || !maps.Equal(now.Segments, status.Segments) {
		f.t.Errorf("the status changed from %+v to %+v", status, now)
	}
	f.eventually("the volume is claimed again", 10*time.Second, func() (bool, error) { return f.status().Owner, nil }) // no mount waits for that
	f.must(f.Broker.Start(f.ctx))
	f.consume(wide, 10)
	misses, fetched := f.metric("tierfs_cache_misses_total"), f.metric("tierfs_store_bytes_total", "op", "get")
	if misses != 0 || fetched > ownerSize {
		f.t.Errorf("all was cached before the restart, and after it there were %v misses and %v bytes from the store", misses, fetched)
	}
}

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/kafka"
)

// TestThreeBrokers runs a cluster, each broker on its own mount and volume, all in one bucket. Brokers, disks and daemons go and come
// back while records are produced. After each, every record is read from every broker's own copy.
func TestThreeBrokers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, fsStore(t))
	c.nodes[0].must(c.Up(c.ctx))
	for topic, partitions := range map[string]int{"main": 2, "small": 1} {
		c.do("create", "topic="+topic, fmt.Sprint("partitions=", partitions), "replication=3", "min=1000", "max=3000",
			"config.min.insync.replicas=2", "config.segment.bytes=1048576", "config.file.delete.delay.ms=3000")
		c.do("produce", "topic="+topic, fmt.Sprint("records=", 2500*partitions), "batch=65536")
	}
	var strays []stray
	rounds := 1
	if soak() {
		rounds = 4
	}
	for i := range rounds {
		other, victim := c.nodes[i%3], (i+2)%3
		run := func(name string, refused int64, stage func(c *cluster, f *fixture, load *kafka.Call)) {
			if !t.Run(fmt.Sprintf("%s, round %d", name, i+1), func(t *testing.T) {
				c := c.in(t)
				c.underLoad(refused, func(load *kafka.Call) { stage(c, c.nodes[victim], load) })
				c.verify("main", "small")
			}) {
				t.FailNow()
			}
		}
		run("a broker is killed", 0, func(c *cluster, _ *fixture, load *kafka.Call) { c.killed(other.in(c.t), load) })
		run("a disk is lost", 0, func(c *cluster, f *fixture, _ *kafka.Call) { c.wiped(f) })
		var old map[string]bool
		run("replicas go away and come back", 0, func(c *cluster, f *fixture, _ *kafka.Call) { old = c.away(f) })
		run("a tierfs is killed", inFlight, func(c *cluster, f *fixture, load *kafka.Call) {
			strays = append(strays, c.diskGone(f, load, old))
		})
	}
	c.exact()
	c.deleted(strays)
}

// underLoad runs a stage while records are produced, of which so many at most may be refused.
func (c *cluster) underLoad(refused int64, stage func(load *kafka.Call)) {
	c.t.Helper()
	load := c.nodes[0].Go("produce", "topic=main", "rate=200", "timeout=180000")
	stage(load)
	r, err := load.Stop(c.ctx)
	c.nodes[0].must(err)
	c.t.Logf("produced %v", r)
	if r.Int("failed") > refused {
		c.t.Errorf("records failed: %v", r)
	}
}

// killed ends a broker by SIGKILL while segments go. The others go on, and it catches up.
func (c *cluster) killed(f *fixture, load *kafka.Call) {
	c.evict()
	evicted, sizes := f.remote(), f.segments()
	if len(evicted) < 4 {
		c.t.Fatalf("evicted under load: %v", evicted)
	}
	evictions := f.metric("tierfs_evictions_total")
	f.must(f.Broker.Kill())
	f.must(load.More(c.ctx, 600))
	f.must(f.Broker.Start(c.ctx))
	c.inSync()
	f.eventually("segments go again", 30*time.Second, func() (bool, error) { return f.metric("tierfs_evictions_total") > evictions, nil })
	unchanged(c.t, evicted, restrict(f.remote(), evicted))
	unchanged(c.t, restrict(sizes, evicted), restrict(f.segments(), evicted))
}

// wiped gives a broker a new disk: its volume is a new one, and its replicas come from the others, who have most of it in the store.
func (c *cluster) wiped(f *fixture) {
	c.evict()
	old := f.volume()
	f.must(f.Broker.Stop())
	f.must(f.Daemon.Stop())
	c.lost[old] = f.objects(old)
	f.set(shortGrace, longGrace)
	entries, err := os.ReadDir(f.Source)
	f.must(err)
	for _, e := range entries {
		f.must(os.RemoveAll(filepath.Join(f.Source, e.Name())))
	}
	var fetched float64
	var remote int64
	for _, other := range c.nodes {
		if other != f {
			fetched -= other.metric("tierfs_store_bytes_total", "op", "get")
			remote = other.status().Bytes["remote"]
		}
	}
	f.must(f.Up(c.ctx))
	c.inSync()
	for _, other := range c.nodes {
		if other != f {
			fetched += other.metric("tierfs_store_bytes_total", "op", "get")
		}
	}
	c.t.Logf("%d bytes of each replica were in the store only; to rebuild one, %.0f were fetched", remote, fetched)
	if remote == 0 || fetched < float64(remote)/2 {
		c.t.Errorf("the replicas were rebuilt from something else")
	}
	if f.volume() == old {
		c.t.Errorf("an empty disk has the volume %s of the old one", old)
	}
}

// away moves the replicas of a topic off a broker and back, while its deleted objects wait for their grace. Returned are the uploads
// that wait.
func (c *cluster) away(f *fixture) map[string]bool {
	c.evict()
	topic := f.volume() + "main-"
	old := f.uploads(topic)
	c.do("reassign", "topic=main", c.brokers(f))
	f.eventually("the directories are renamed", 20*time.Second, func() (bool, error) {
		return len(f.directories("main-", "-delete")) == 2 && len(f.directories("main-", "")) == 2, nil
	})
	back := f.Go("reassign", "topic=main", c.brokers(nil))
	f.eventually("the directories are there again", 20*time.Second, func() (bool, error) {
		return len(f.directories("main-", "0")) == 1 && len(f.directories("main-", "1")) == 1, nil
	})
	c.t.Logf("back, and there are %v", f.directories("main-", ""))
	_, err := back.Wait(c.ctx)
	f.must(err)
	c.inSync()
	f.eventually("the old directories go", 30*time.Second, func() (bool, error) { return len(f.directories("main-", "-delete")) == 0, nil })
	c.evict()
	now := f.uploads(topic)
	if len(old) < 4 || len(now) < len(old)+4 {
		c.t.Errorf("%d uploads wait for their grace, and there are %d", len(old), len(now))
	}
	for key := range old {
		if !now[key] {
			c.t.Errorf("%s was deleted before its grace was over", key)
		}
	}
	if n := f.metric("tierfs_tombstones"); n < float64(len(old)) {
		c.t.Errorf("%v tombstones for %d uploads", n, len(old))
	}
	return old
}

// directories are those of the view whose names begin and end so.
func (f *fixture) directories(begin, end string) []string {
	f.t.Helper()
	entries, err := os.ReadDir(f.View())
	f.must(err)
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), begin) && strings.HasSuffix(e.Name(), end) {
			all = append(all, e.Name())
		}
	}
	return all
}

// stray is what a broker keeps of a replica that was moved to others while it was down.
type stray struct {
	node    int             // index
	uploads map[string]bool // of the replica
}

// diskGone ends a broker's tierfs by SIGKILL. The others go on. While it is down, a topic is moved away from it, and comes back
// when it does. With the new tierfs, the grace of what waited is over.
func (c *cluster) diskGone(f *fixture, load *kafka.Call, old map[string]bool) stray {
	c.evict()
	evicted, left := f.remote(), stray{c.id(f) - 1, f.uploads(f.volume() + "small-")}
	f.must(f.Daemon.Kill())
	f.awaitHalt()
	f.must(load.More(c.ctx, 300))
	c.do("reassign", "topic=small", c.brokers(f))
	f.set(longGrace, shortGrace)
	f.must(f.Daemon.Start(c.ctx))
	f.must(f.Broker.Start(c.ctx))
	c.do("reassign", "topic=small", c.brokers(nil))
	c.inSync()
	if dirs := f.directories("small-", "-stray"); len(dirs) == 0 {
		c.t.Errorf("replicas that were moved away meanwhile: %v", dirs)
	}
	main := keep(evicted, "main-")
	unchanged(c.t, main, restrict(f.remote(), main))
	f.eventually("the objects go whose grace is over", 30*time.Second, func() (bool, error) {
		now := f.uploads(f.volume())
		for key := range old {
			if now[key] {
				return false, nil
			}
		}
		return true, nil
	})
	return left
}

// keep are the entries whose path begins so.
func keep[V any](m map[string]V, begin string) map[string]V {
	kept := map[string]V{}
	for path, value := range m {
		if strings.HasPrefix(path, begin) {
			kept[path] = value
		}
	}
	return kept
}

// awaitHalt waits until the broker has noticed that its disk is gone.
func (f *fixture) awaitHalt() {
	f.t.Helper()
	select {
	case <-f.Broker.Process().Done():
	case <-time.After(30 * time.Second):
		f.t.Error("the broker did not halt when its disk was gone")
		f.must(f.Broker.Kill())
	}
}

// deleted deletes a topic: every volume deletes its own objects of it, and nothing else. What strays is no part of the topic, and
// its objects go when somebody removes it.
func (c *cluster) deleted(strays []stray) {
	f := c.nodes[0]
	before := f.objects("/main-")
	c.do("delete", "topic=small")
	kept := map[string]bool{}
	for _, s := range strays {
		for key := range s.uploads {
			kept[key] = true
		}
	}
	f.eventually("the topic's objects go", 60*time.Second, func() (bool, error) {
		left := 0
		for key := range f.uploads("/small-") {
			if !kept[key] && !c.isLost(key) {
				left++
			}
		}
		return left == 0, nil
	})
	c.exact()
	for _, s := range strays {
		f := c.nodes[s.node]
		f.must(f.Broker.Stop())
		for _, dir := range f.directories("small-", "-stray") {
			f.must(os.RemoveAll(filepath.Join(f.View(), dir)))
		}
		if left := f.named().Live; len(s.uploads) == 0 || len(keep(left, "tierfs"+f.volume()+"small-")) > 0 {
			c.t.Errorf("of the %d stray uploads there are left %v", len(s.uploads), left)
		}
	}
	c.exact()
	unchanged(c.t, before, f.objects("/main-"))
	for key, objects := range c.lost {
		unchanged(c.t, objects, f.objects(key))
	}
}

// isLost says whether a key is of a volume whose disk is gone.
func (c *cluster) isLost(key string) bool {
	for volume := range c.lost {
		if strings.Contains(key, volume) {
			return true
		}
	}
	return false
}

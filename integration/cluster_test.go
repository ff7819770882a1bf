package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/rig"
)

// cluster is a rig.Cluster whose errors fail the test and which is gone when the test ends.
type cluster struct {
	*rig.Cluster
	t     *testing.T
	ctx   context.Context
	store rig.Store
	nodes []*fixture
	lost  map[string]map[string]int64 // the objects of volumes whose disks are gone, by the part of their keys that names the volume
}

// What decides how long objects that nobody needs stay.
const (
	longGrace  = `delete_grace = "1 h"`
	shortGrace = `delete_grace = "1 s"`
)

// clusterSettings make everything that may go go at once, and the cache too small to keep what was read.
const clusterSettings = "[retention]\ndefault_local_retention_size = \"0\"\n" + shortGrace + "\n" +
	"[cache]\nsize = \"16 MiB\"\nchunk_size = \"1 MiB\"\n"

// clusterBroker are server properties under which nothing moves but what the test moves.
var clusterBroker = map[string]string{
	"auto.leader.rebalance.enable": "false",
	"replica.lag.time.max.ms":      "5000",
}

func newCluster(t *testing.T, store rig.Store) *cluster {
	t.Helper()
	limit := 12 * time.Minute // what a busy machine may take; alone it is a minute and a half
	if soak() {
		limit = 40 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	r, err := rig.NewCluster(3, rig.Options{
		Root: t.TempDir(), Store: store, Install: install, Binary: checked, Settings: clusterSettings, Broker: clusterBroker, Heap: "256m",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Cluster: r, t: t, ctx: ctx, store: store, lost: map[string]map[string]int64{}}
	for _, node := range r.Nodes {
		c.nodes = append(c.nodes, &fixture{Rig: node, t: t, ctx: ctx, store: store})
	}
	t.Cleanup(c.close)
	return c
}

func (c *cluster) close() {
	if err := c.Close(); err != nil {
		c.t.Error(err)
	}
	for _, f := range c.nodes {
		f.afterwards()
	}
}

// in is the cluster for a subtest.
func (c *cluster) in(t *testing.T) *cluster {
	sub := *c
	sub.t, sub.nodes = t, nil
	for _, f := range c.nodes {
		sub.nodes = append(sub.nodes, f.in(t))
	}
	return &sub
}

// do is a request about the cluster; any node may be down.
func (c *cluster) do(verb string, args ...string) kafka.Reply {
	c.t.Helper()
	return c.nodes[0].do(verb, args...)
}

// id is a node's broker id.
func (c *cluster) id(f *fixture) int { return slices.Index(c.nodes, f) + 1 }

// brokers lists the broker ids of all nodes but one; nil: of all.
func (c *cluster) brokers(without *fixture) string {
	var ids []string
	for _, f := range c.nodes {
		if f != without {
			ids = append(ids, fmt.Sprint(c.id(f)))
		}
	}
	return "brokers=" + strings.Join(ids, ",")
}

// inSync waits until no partition has a replica that lags or is on its way.
func (c *cluster) inSync() {
	c.t.Helper()
	c.nodes[0].eventually("all replicas are in sync", 90*time.Second, func() (bool, error) {
		r := c.do("replicas")
		return r.Int("partitions") > 0 && r.Int("under") == 0 && r.Int("moving") == 0, nil
	})
}

// each does something on all nodes in parallel. What it calls returns its error instead of failing the test.
func (c *cluster) each(f func(*rig.Rig) error) {
	c.t.Helper()
	if err := c.Each(f); err != nil {
		c.t.Fatal(err)
	}
}

// evict uploads and evicts, on every node, what may go.
func (c *cluster) evict() {
	c.t.Helper()
	c.each(func(r *rig.Rig) error {
		_, err := r.Daemon.Do(c.ctx, "evict", "--all", r.View())
		return errors.Join(err, r.Forget())
	})
}

// verify reads each topic whole from each broker's own copy, most of it from the store, and has `tierfs check` look at each volume.
func (c *cluster) verify(topics ...string) {
	c.t.Helper()
	c.inSync()
	c.evict()
	for _, f := range c.nodes {
		before := f.gets()
		for _, topic := range topics {
			c.do("lead", "topic="+topic, fmt.Sprint("broker=", c.id(f)))
			r := c.do("consume", "topic="+topic)
			c.t.Logf("broker %d, %s: consumed %v", c.id(f), topic, r)
		}
		if gets := f.gets() - before; gets < 1 {
			c.t.Errorf("broker %d answered all that without the store", c.id(f))
		}
		if n := f.metric("tierfs_batch_checksum_failures_total"); n != 0 {
			c.t.Errorf("broker %d: %v batches from the store were wrong", c.id(f), n)
		}
		c.t.Logf("broker %d: %s", c.id(f), strings.TrimSpace(f.tierfs("check", f.View())))
	}
	if r := c.do("logdirs"); r.Int("dirs") != 3 || r.Int("offline") != 0 {
		c.t.Errorf("log directories: %v", r)
	}
	for key, objects := range c.lost {
		unchanged(c.t, objects, c.nodes[0].objects(key))
	}
	c.inSync()
}

// volume is the part of keys that names a node's volume.
func (f *fixture) volume() string {
	f.t.Helper()
	return "/" + f.status().Volume + "/"
}

// set changes the settings of a node's tierfs, for its next start.
func (f *fixture) set(from, to string) {
	f.t.Helper()
	text, err := os.ReadFile(f.Daemon.Config())
	f.must(err)
	f.must(os.WriteFile(f.Daemon.Config(), []byte(strings.ReplaceAll(string(text), from, to)), 0o600))
}

// named are the uploads that a node's volume names, with those that are to be deleted.
func (f *fixture) named() rig.Named {
	f.t.Helper()
	n, err := rig.ReadNamed(f.Below())
	f.must(err)
	return n
}

func (f *fixture) uploads(part string) map[string]bool {
	f.t.Helper()
	all, err := f.store.Uploads(part)
	f.must(err)
	return all
}

// exact insists that the bucket holds what the volumes name, what volumes without a disk left, and nothing else.
func (c *cluster) exact() {
	c.t.Helper()
	owned := map[string]bool{}
	for _, f := range c.nodes {
		f.eventually("the deletions of a volume are over", 30*time.Second, func() (bool, error) { return len(f.named().Dead) == 0, nil })
		live, prefix := f.named().Live, "tierfs"+f.volume()
		for key := range live {
			if owned[key] || !strings.HasPrefix(key, prefix) {
				c.t.Errorf("broker %d names %s, which is not its own", c.id(f), key)
			}
			owned[key] = true
		}
		c.t.Logf("broker %d names %d uploads", c.id(f), len(live))
	}
	for key := range c.lost {
		maps.Copy(owned, c.nodes[0].uploads(key))
	}
	have := c.nodes[0].uploads("")
	for key := range have {
		if !owned[key] {
			c.t.Errorf("%s is in the store, and no volume names it", key)
		}
	}
	for key := range owned {
		if !have[key] {
			c.t.Errorf("%s is not in the store", key)
		}
	}
}

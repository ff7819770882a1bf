package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/proxy"
	"github.com/tierfs/tierfs/integration/rig"
)

// fault is a way for a store to fail.
type fault struct {
	mode  proxy.Mode
	reads bool // evicted data can be read all the same
}

// faults in this order make one outage. A body that is cut is gone on with, so that reads get through in the end.
var faults = []fault{{mode: proxy.Refuse}, {mode: proxy.Hang}, {mode: proxy.SlowDown}, {mode: proxy.LostAnswer}, {proxy.Cut, true}}

// stallAfter is how long uploads fail before that is called a stall.
const stallAfter = 60 * time.Second

// outage is a broker that is written to all the time, on a store that fails. Its topic "hot" stays local.
type outage struct {
	*fixture
	proxy *proxy.Proxy
	hot   *kafka.Call
}

// hotRate is how many records are produced per second, of 1 KiB on average: each of two partitions gets a new segment every 4 s.
const hotRate = 500

// TestStoreOutage lets the store fail in every way while records are produced, local ones are read and evicted ones are asked for:
// by consumers, whose deadline is so short that they meet errors and have to retry, and by the broker's log cleaner, which must not
// meet any. When the store is back everything goes on by itself.
func TestStoreOutage(t *testing.T) {
	t.Parallel()
	store, p := faultyStore(t)
	f := newFixture(t, store, rig.Options{
		Binary: checked, Settings: "[fetch]\ntimeout = \"3 s\"\n[retention]\ndelete_grace = \"1 s\"\n",
		Broker: map[string]string{"log.cleaner.backoff.ms": "200"},
	})
	f.up()
	f.do("create", "topic=hot", "partitions=2", "config.segment.bytes=1048576")
	o := &outage{fixture: f, proxy: p, hot: f.Go("produce", "topic=hot", fmt.Sprint("rate=", hotRate), "timeout=20000")}
	if soak() {
		for i, fault := range faults {
			t.Run("alone: "+fault.mode.String(), func(t *testing.T) { o.in(t).away(fmt.Sprint("alone", i), fault) })
		}
	}
	t.Run("away", func(t *testing.T) { o.in(t).away("away", faults...) })
	t.Run("slow", func(t *testing.T) { o.in(t).slow() })
	r, err := o.hot.Stop(f.ctx)
	f.must(err)
	if r.Int("failed") != 0 {
		t.Errorf("the producer: %v", r)
	}
	f.evict()
	inOrder(t, p, "hot")
	f.exact()
	t.Run("start", func(t *testing.T) { o.in(t).start() })
	f.must(f.Forget())
	t.Logf("produced %v, consumed %v", r, f.do("consume", "topic=hot"))
	f.online()
}

// in is the outage for a subtest.
func (o *outage) in(t *testing.T) *outage {
	sub := *o
	sub.fixture = o.fixture.in(t)
	return &sub
}

// set changes what the store does.
func (o *outage) set(m proxy.Mode) {
	o.t.Helper()
	o.must(o.proxy.Set(o.ctx, m))
}

// more lets the producer go on for so many seconds: at its rate the records themselves are the clock.
func (o *outage) more(seconds int) {
	o.t.Helper()
	o.must(o.hot.More(o.ctx, int64(seconds*hotRate)))
}

// cold makes a topic whose sealed segments are evicted and not in the cache.
func (o *outage) cold(topic string) {
	o.t.Helper()
	o.do("create", "topic="+topic, "partitions=2", "min=1000", "max=9000", "config.segment.bytes=1048576")
	o.do("produce", "topic="+topic, "records=1000", "batch=65536")
	o.must(o.Checkpointed(o.ctx))
	o.tierfs("evict", "--all", "--topic", topic, o.View())
	if n := len(o.evicted(topic)); n < 2 {
		o.t.Fatalf("%d segments of %s were evicted", n, topic)
	}
}

// away is one outage in which the store fails in one way after the other, for longer than it takes to be a stall.
func (o *outage) away(prefix string, faults ...fault) {
	topic := func(f fault) string { return prefix + "-" + strings.ReplaceAll(f.mode.String(), " ", "-") }
	compacted := prefix + "-compacted"
	for _, fault := range faults {
		o.cold(topic(fault))
	}
	o.cold(compacted)
	o.must(o.Forget())
	from := o.Daemon.Log().Len()
	each := 1 + int(stallAfter/time.Second)/len(faults)
	var base map[string]int
	waiting := map[string]*kafka.Call{}
	for _, fault := range faults {
		o.set(fault.mode)
		if base == nil {
			o.more(1) // what had been put is on record now
			base = o.held("hot")
			o.do("alter", "topic="+compacted, "config.cleanup.policy=compact", "config.min.cleanable.dirty.ratio=0.001")
		}
		gets := o.gets()
		waiting[topic(fault)] = o.Go("consume", "topic="+topic(fault), "stall=300000")
		o.more(each)
		o.unmoved(base)
		if o.gets() == gets {
			o.t.Errorf("%v: nobody asked the store for evicted data", fault.mode)
		}
		if !fault.reads {
			o.waits(waiting[topic(fault)])
		}
	}
	o.more(10) // since the first upload that failed, a minute has passed
	if len(faults) == 1 && faults[0].mode == proxy.Hang {
		o.more(60) // the first one has failed when it had got no answer in two tries, of 30 s each
	}
	o.stalled(base)
	sealed := o.sealedOf("hot")
	o.set(proxy.Pass)
	o.back(sealed, waiting, compacted)
	o.said(o.Daemon.Log().Text()[from:], slices.ContainsFunc(faults, func(f fault) bool { return !f.reads }))
}

// unmoved insists that local data are read, that the broker is well, and that no segment counts as uploaded.
func (o *outage) unmoved(base map[string]int) {
	o.t.Helper()
	if now := o.held("hot"); !maps.Equal(now, base) {
		o.t.Errorf("in the store were %v segments, and are %v", base, now)
	}
	o.do("consume", "topic=hot") // compared with what was acknowledged before it began
	o.online()
}

// waits insists that a request is still under way.
func (o *outage) waits(c *kafka.Call) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.ctx, time.Millisecond)
	defer cancel()
	if r, err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		o.t.Errorf("evicted data were read without a store: %v, %v", r, err)
	}
}

// stalled insists that tierfs says so, and that segments were sealed meanwhile.
func (o *outage) stalled(base map[string]int) {
	o.t.Helper()
	s := o.status()
	if !s.UploadStalled || s.Store.Reachable || s.UploadLag == 0 || o.metric("tierfs_upload_stalled") != 1 {
		o.t.Errorf("uploads are not stalled: %+v", s)
	}
	for dir, n := range o.sealedOf("hot") {
		if n < base[dir]+8 {
			o.t.Errorf("%s has %d sealed segments after the outage, %d before it", dir, n, base[dir])
		}
	}
}

// back waits for everything to go on by itself.
func (o *outage) back(sealed map[string]int, waiting map[string]*kafka.Call, compacted string) {
	o.t.Helper()
	for topic, c := range waiting {
		if r, err := c.Wait(o.ctx); err != nil || r.Int("records") != 1000 {
			o.t.Errorf("%s: %v, %v", topic, r, err)
		}
	}
	o.eventually("uploads catch up", 90*time.Second, func() (bool, error) { return reaches(o.held("hot"), sealed), nil })
	if compacted != "" {
		o.eventually("the evicted segments are compacted", time.Minute, func() (bool, error) { return len(o.evicted(compacted)) == 0, nil })
		o.do("consume", "topic="+compacted)
	}
	if s := o.status(); s.UploadStalled || !s.Store.Reachable || o.metric("tierfs_upload_stalled") != 0 {
		o.t.Errorf("uploads are still stalled: %+v", s)
	}
	o.online()
}

// said insists on a log that tells of the outage and is not buried under it; reads: those of evicted data have failed, too.
func (o *outage) said(log string, reads bool) {
	o.t.Helper()
	o.t.Logf("tierfs said:\n%s", log)
	if n := strings.Count(log, "\n"); n > 25 {
		o.t.Errorf("tierfs said %d lines", n)
	}
	want := []string{"upload failed", "uploads work again"}
	if reads {
		want = append(want, "request failed", "reads of evicted data work again")
	}
	for _, want := range want {
		if !strings.Contains(log, want) {
			o.t.Errorf("tierfs did not say %q", want)
		}
	}
}

// slow lets everything through, but little at a time: it all goes on.
func (o *outage) slow() {
	o.cold("slow")
	o.must(o.Forget())
	o.set(proxy.Slow)
	base := o.held("hot")
	consumer := o.Go("consume", "topic=slow", "stall=300000")
	o.more(10)
	o.do("consume", "topic=hot")
	o.eventually("uploads get on", time.Minute, func() (bool, error) {
		now := o.held("hot")
		for dir, n := range now {
			if n > base[dir] {
				return true, nil
			}
		}
		return false, nil
	})
	o.online()
	o.set(proxy.Pass)
	o.back(o.sealedOf("hot"), map[string]*kafka.Call{"slow": consumer}, "")
}

// start mounts and starts the broker while the store refuses connections: the broker finds all its segments and asks for none of
// them, and goes on.
func (o *outage) start() {
	o.must(o.Broker.Stop())
	o.must(o.Forget())
	o.set(proxy.Refuse)
	evicted, logs := o.remote(), o.segments()
	o.must(o.Daemon.Stop())
	o.must(o.Daemon.Start(o.ctx))
	o.must(o.Broker.Start(o.ctx))
	if misses := o.metric("tierfs_cache_misses_total"); misses != 0 || len(evicted) < 50 {
		o.t.Errorf("the broker asked the store %v times for bytes of %d evicted segments", misses, len(evicted))
	}
	unchanged(o.t, evicted, restrict(o.remote(), evicted))
	unchanged(o.t, restrict(logs, evicted), restrict(o.segments(), evicted))
	if r := o.do("produce", "topic=hot", "records=2000"); r.Int("acked") != 2000 {
		o.t.Errorf("produced %v", r)
	}
	o.online()
	o.set(proxy.Pass)
	o.eventually("the volume is claimed", time.Minute, func() (bool, error) { return o.status().Owner, nil })
}

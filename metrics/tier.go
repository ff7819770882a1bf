package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// States are the values of the label state of tierfs_segments.
func States() []string { return []string{"active", "sealed", "uploaded", "remote"} }

// Places are the values of the label where of tierfs_bytes.
func Places() []string { return []string{"local", "remote", "cache"} }

// Snapshot is what a scrape reads of the catalog. States and places that a map
// leaves out count as 0.
type Snapshot struct {
	Segments     map[string]int64 // number by state
	Bytes        map[string]int64 // bytes by place
	NotEvictable map[string]int64 // local bytes by reason
	LagBytes     int64            // sealed, not uploaded
	Oldest       time.Duration    // age of the oldest of those, 0 when there is none
	Stalled      bool             // uploads fail
	Tombstones   int64            // uploads whose objects are still to be deleted
	Quarantined  int64            // segments whose bytes cannot be found
	Owner        bool             // the mount is known to own its volume
}

// Tier shows where the bytes are, for which each scrape asks, and counts what
// brings them back.
type Tier struct {
	source       atomic.Pointer[func() Snapshot]
	rehydrations prometheus.Counter
	refused      prometheus.Counter
}

func newTier(r registry) *Tier {
	t := &Tier{rehydrations: r.counter(descRehydrations), refused: r.counter(descRetireRefused)}
	r.register(&tierCollector{t})
	return t
}

// Collect names the function that a scrape calls, from any goroutine and more
// than one at a time. Before the first call all is 0; nil ends it.
func (t *Tier) Collect(source func() Snapshot) {
	if t == nil {
		return
	}
	if source == nil {
		t.source.Store(nil)
		return
	}
	t.source.Store(&source)
}

// Rehydrated counts one remote segment that was brought back as a local file.
func (t *Tier) Rehydrated() {
	if t != nil {
		t.rehydrations.Inc()
	}
}

// RetireRefused counts one attempt to delete an upload's objects that the store
// refused.
func (t *Tier) RetireRefused() {
	if t != nil {
		t.refused.Inc()
	}
}

func (t *Tier) snapshot() Snapshot {
	if f := t.source.Load(); f != nil {
		return (*f)()
	}
	return Snapshot{}
}

// tierCollector is the prometheus.Collector of a Tier, kept apart so that
// Collect is free for the name that callers see.
type tierCollector struct{ tier *Tier }

func promDesc(d desc) *prometheus.Desc {
	return prometheus.NewDesc(d.name, d.help, d.labels, nil)
}

var tierDescs = []desc{
	descSegments, descBytes, descNotEvictable, descStalled, descLag, descOldest, descTombstones, descQuarantined, descOwner,
}

// Describe implements prometheus.Collector.
func (c *tierCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range tierDescs {
		ch <- promDesc(d)
	}
}

// Collect implements prometheus.Collector.
func (c *tierCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.tier.snapshot()
	gauge := func(d desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(promDesc(d), prometheus.GaugeValue, v, labels...)
	}
	for _, state := range States() {
		gauge(descSegments, float64(s.Segments[state]), state)
	}
	for _, where := range Places() {
		gauge(descBytes, float64(s.Bytes[where]), where)
	}
	for reason, n := range s.NotEvictable {
		gauge(descNotEvictable, float64(n), reason)
	}
	gauge(descStalled, one(s.Stalled))
	gauge(descLag, float64(s.LagBytes))
	gauge(descOldest, s.Oldest.Seconds())
	gauge(descTombstones, float64(s.Tombstones))
	gauge(descQuarantined, float64(s.Quarantined))
	gauge(descOwner, one(s.Owner))
}

// one is a condition as a gauge.
func one(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// Package metrics holds every metric of tierfs, once, as typed fields that are
// built from a prometheus.Registerer.
//
// It promises:
//   - Every name is in names.go and starts with "tierfs_". Times are in
//     seconds and sizes in bytes.
//   - Every method may be called on a nil receiver and then counts nothing, so
//     a test or a command line tool passes nil where a daemon passes metrics.
//   - Every method may be called from many goroutines at once. Nothing here
//     waits: a scrape calls back (see Tier.Collect), an event never does.
//   - The number of time series is bounded: label values are constants of the
//     code, and topics are labels only up to MaxTopics (see Topics).
//
// Nothing of it is kept on disk.
package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is one daemon's set of metrics, grouped by the component that counts.
type Metrics struct {
	Store  *Store  // requests to the object store
	Cache  *Cache  // the chunk cache and cold reads
	Upload *Upload // uploads, evictions, deletions
	Tier   *Tier   // where the bytes are
	Fuse   *Fuse   // requests of the kernel
}

// New builds all metrics and registers them with reg; a nil reg registers
// nothing. It panics when reg has one of the names already: one Registerer
// serves one daemon.
func New(reg prometheus.Registerer) *Metrics {
	r := registry{reg}
	return &Metrics{
		Store:  newStore(r),
		Cache:  newCache(r),
		Upload: newUpload(r),
		Tier:   newTier(r),
		Fuse:   newFuse(r),
	}
}

// MaxTopics is how many topics appear as label values of their own.
const MaxTopics = 200

// OtherTopics stands for all topics beyond the first MaxTopics.
const OtherTopics = "(other)"

// Topics bounds the topics that become label values: the first MaxTopics that
// it meets keep their names, all others share OtherTopics. The zero value is
// ready for use.
type Topics struct {
	mu    sync.Mutex
	known map[string]struct{} // guarded by mu
}

// Label returns the label value of topic.
func (t *Topics) Label(topic string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.known[topic]; ok {
		return topic
	}
	if len(t.known) >= MaxTopics {
		return OtherTopics
	}
	if t.known == nil {
		t.known = make(map[string]struct{})
	}
	t.known[topic] = struct{}{}
	return topic
}

// registry makes metrics from the descriptions in names.go.
type registry struct{ reg prometheus.Registerer }

func (r registry) register(c prometheus.Collector) {
	if r.reg != nil {
		r.reg.MustRegister(c)
	}
}

func (r registry) counter(d desc) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: d.name, Help: d.help})
	r.register(c)
	return c
}

func (r registry) counters(d desc) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.name, Help: d.help}, d.labels)
	r.register(c)
	return c
}

func (r registry) gauge(d desc) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: d.name, Help: d.help})
	r.register(g)
	return g
}

func (r registry) histogram(d desc, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: d.name, Help: d.help, Buckets: buckets})
	r.register(h)
	return h
}

func (r registry) histograms(d desc, buckets []float64) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: d.name, Help: d.help, Buckets: buckets}, d.labels)
	r.register(h)
	return h
}

// add counts n when it is positive; a counter panics on a negative one.
func add(c prometheus.Counter, n int64) {
	if n > 0 {
		c.Add(float64(n))
	}
}

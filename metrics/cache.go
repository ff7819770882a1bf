package metrics

import "github.com/prometheus/client_golang/prometheus"

// Cache counts what the chunk cache does and how long cold reads wait.
type Cache struct {
	hits, misses           prometheus.Counter
	trimmed, bad, bypassed prometheus.Counter
	waiting                prometheus.Gauge
	coldSeconds            prometheus.Histogram
	fetched                *prometheus.CounterVec
	batchFailures          prometheus.Counter
	topics                 Topics
}

func newCache(r registry) *Cache {
	return &Cache{
		hits:          r.counter(descCacheHits),
		misses:        r.counter(descCacheMisses),
		trimmed:       r.counter(descCacheTrimmed),
		bad:           r.counter(descCacheBad),
		bypassed:      r.counter(descCacheBypassed),
		waiting:       r.gauge(descColdWaiting),
		coldSeconds:   r.histogram(descColdSeconds, prometheus.ExponentialBuckets(0.001, 2, 17)),
		fetched:       r.counters(descFetchedBytes),
		batchFailures: r.counter(descChecksumFailures),
	}
}

// Hit counts a chunk read that the cache answered.
func (c *Cache) Hit() {
	if c != nil {
		c.hits.Inc()
	}
}

// Miss counts a chunk read that had to go to the store.
func (c *Cache) Miss() {
	if c != nil {
		c.misses.Inc()
	}
}

// Trimmed counts n chunks that were dropped for the budget's sake.
func (c *Cache) Trimmed(n int) {
	if c != nil {
		add(c.trimmed, int64(n))
	}
}

// BadChunk counts a chunk whose bytes on the cache's disk were wrong.
func (c *Cache) BadChunk() {
	if c != nil {
		c.bad.Inc()
	}
}

// Bypass counts a read that went past the cache.
func (c *Cache) Bypass() {
	if c != nil {
		c.bypassed.Inc()
	}
}

// Waiting adds delta (+1 or -1) to the reads that wait for the store.
func (c *Cache) Waiting(delta int) {
	if c != nil {
		c.waiting.Add(float64(delta))
	}
}

// ColdRead counts one read that waited for the store for so many seconds.
func (c *Cache) ColdRead(seconds float64) {
	if c != nil {
		c.coldSeconds.Observe(seconds)
	}
}

// Fetched counts bytes that were fetched from the store for reads of topic.
func (c *Cache) Fetched(topic string, bytes int64) {
	if c != nil && bytes > 0 {
		c.fetched.WithLabelValues(c.topics.Label(topic)).Add(float64(bytes))
	}
}

// BadBatch counts a batch from the store whose own checksum did not match.
func (c *Cache) BadBatch() {
	if c != nil {
		c.batchFailures.Inc()
	}
}

package metrics

import "github.com/prometheus/client_golang/prometheus"

// storeOps are the five methods of an object store, as label values.
var storeOps = []string{"put", "get", "head", "delete", "list"}

// Store counts requests to the object store.
type Store struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	bytes    *prometheus.CounterVec
	retries  *prometheus.CounterVec
}

func newStore(r registry) *Store {
	s := &Store{
		requests: r.counters(descStoreRequests),
		seconds:  r.histograms(descStoreSeconds, prometheus.ExponentialBuckets(0.001, 2.5, 13)),
		bytes:    r.counters(descStoreBytes),
		retries:  r.counters(descStoreRetries),
	}
	for _, op := range storeOps { // so that each is there, as 0, before its first request
		s.requests.WithLabelValues(op, "ok")
		s.seconds.WithLabelValues(op)
		s.retries.WithLabelValues(op)
	}
	s.bytes.WithLabelValues("put")
	s.bytes.WithLabelValues("get")
	return s
}

// Request counts one request: op is put, get, head, delete or list, result is
// "ok" or the error's class, bytes is what of the body was sent or read.
func (s *Store) Request(op, result string, seconds float64, bytes int64) {
	if s == nil {
		return
	}
	s.requests.WithLabelValues(op, result).Inc()
	s.seconds.WithLabelValues(op).Observe(seconds)
	if bytes > 0 {
		s.bytes.WithLabelValues(op).Add(float64(bytes))
	}
}

// Retry counts one try beyond the first of a request.
func (s *Store) Retry(op string) {
	if s == nil {
		return
	}
	s.retries.WithLabelValues(op).Inc()
}

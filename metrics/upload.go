package metrics

import "github.com/prometheus/client_golang/prometheus"

// Upload counts what the background does: uploads, evictions, deletions.
type Upload struct {
	uploads        *prometheus.CounterVec
	seconds        prometheus.Histogram
	bytes          prometheus.Counter
	running, queue prometheus.Gauge
	rejected       *prometheus.CounterVec
	evictions      prometheus.Counter
	evictedBytes   prometheus.Counter
	retired        prometheus.Counter
}

func newUpload(r registry) *Upload {
	u := &Upload{
		uploads:      r.counters(descUploads),
		seconds:      r.histogram(descUploadSeconds, prometheus.ExponentialBuckets(0.01, 2.5, 12)),
		bytes:        r.counter(descUploadBytes),
		running:      r.gauge(descUploadRunning),
		queue:        r.gauge(descUploadQueue),
		rejected:     r.counters(descUploadRejected),
		evictions:    r.counter(descEvictions),
		evictedBytes: r.counter(descEvictedBytes),
		retired:      r.counter(descRetired),
	}
	u.uploads.WithLabelValues("ok")
	return u
}

// Uploaded counts one successful upload of a segment of so many bytes.
func (u *Upload) Uploaded(seconds float64, bytes int64) {
	if u == nil {
		return
	}
	u.uploads.WithLabelValues("ok").Inc()
	u.seconds.Observe(seconds)
	add(u.bytes, bytes)
}

// Failed counts one upload that did not succeed; result is the class of its
// error, or why it was given up.
func (u *Upload) Failed(result string) {
	if u != nil {
		u.uploads.WithLabelValues(result).Inc()
	}
}

// Running adds delta (+1 or -1) to the uploads that are running.
func (u *Upload) Running(delta int) {
	if u != nil {
		u.running.Add(float64(delta))
	}
}

// Queue sets how many sealed segments wait for their upload.
func (u *Upload) Queue(n int) {
	if u != nil {
		u.queue.Set(float64(n))
	}
}

// Rejected counts a sealed segment that is left alone because it does not
// verify. reason is a short phrase of a fixed set.
func (u *Upload) Rejected(reason string) {
	if u != nil {
		u.rejected.WithLabelValues(reason).Inc()
	}
}

// Evicted counts one segment whose local copy of so many bytes was dropped.
func (u *Upload) Evicted(bytes int64) {
	if u == nil {
		return
	}
	u.evictions.Inc()
	add(u.evictedBytes, bytes)
}

// Retired counts n segments whose objects were deleted from the store.
func (u *Upload) Retired(n int) {
	if u != nil {
		add(u.retired, int64(n))
	}
}

package objstore

import "github.com/tierfs/tierfs/metrics"

// Options are those of all decorators.
type Options struct {
	Metrics  *metrics.Store // may be nil
	Deadline DeadlineOptions
	Retry    RetryOptions // its Metrics is that above
}

// Decorate puts metrics, deadlines and retries around a bare store.
func Decorate(s Store, o Options) Store {
	o.Retry.Metrics = o.Metrics
	return WithRetry(WithDeadline(WithMetrics(s, o.Metrics), o.Deadline), o.Retry)
}

package objstore

import (
	"context"
	"errors"
	"time"
)

// What can go wrong. Errors of a Store wrap at most one of these, beside the key
// and the cause.
var (
	// ErrNotFound: the store confirmed that there is no object under the key.
	ErrNotFound = errors.New("no such object")
	// ErrExists: an object with other bytes is there, and IfAbsent was set.
	ErrExists = errors.New("object exists")
	// ErrAuth: the store does not accept the credentials, or they may not do this.
	ErrAuth = errors.New("access denied")
	// ErrConfig: the store is not what the settings say: no such bucket, another
	// region, an endpoint that is no object store.
	ErrConfig = errors.New("wrong store settings")
	// ErrThrottled: the store asks for fewer requests.
	ErrThrottled = errors.New("store asks to slow down")
	// ErrTransient: a failure that may pass: network, timeout, 5xx.
	ErrTransient = errors.New("store unavailable")
	// ErrUnsupported: the store cannot do this.
	ErrUnsupported = errors.New("not supported by the store")
	// ErrShort: a body from the store ended early.
	ErrShort = errors.New("short read from the store")
	// ErrRange: a range that is not wholly inside the object.
	ErrRange = errors.New("range outside the object")
	// ErrInvalid: a key, metadata or a body that must not be sent.
	ErrInvalid = errors.New("invalid request")
	// ErrTooLarge: the store takes no object of this size in one request.
	ErrTooLarge = errors.New("object too large for the store")
	// ErrChecksum: bytes do not match their checksum.
	ErrChecksum = errors.New("checksum mismatch")
)

// Class maps err to one of a few words, for metrics: ok, retry, fail, not_found,
// auth, unsupported, canceled. A deadline that ran out counts as retry: to whoever
// set it the store was too slow.
func Class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrAuth):
		return "auth"
	case errors.Is(err, ErrUnsupported):
		return "unsupported"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case Retryable(err):
		return "retry"
	}
	return "fail"
}

// Retryable says whether the same call may succeed later without anybody changing
// anything.
func Retryable(err error) bool {
	for _, e := range []error{ErrTransient, ErrThrottled, ErrShort, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retryAfter is what the store said about when to come back, attached to an error.
type retryAfter struct {
	error
	after time.Duration
}

func (e retryAfter) Unwrap() error { return e.error }

// WithRetryAfter attaches to err that the store asked not to be called again
// within d. WithRetry honours it.
func WithRetryAfter(err error, d time.Duration) error {
	if err == nil || d <= 0 {
		return err
	}
	return retryAfter{err, d}
}

// RetryAfter returns what WithRetryAfter attached to err, or 0.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[retryAfter](err); ok {
		return e.after
	}
	return 0
}

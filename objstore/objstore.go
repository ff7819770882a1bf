// Package objstore is what the rest of tierfs knows of an object store: five
// methods, typed errors, and the small decorators that every store is wrapped in.
//
// The promises that hold for every implementation, and that package storetest
// proves for each:
//
//   - An object appears whole under its key or not at all, and a Put that
//     returned nil is durable.
//   - A ranged read gives exactly the bytes that were asked for, or an error.
//   - Only what the store itself confirmed as missing is [ErrNotFound].
//   - Nothing is buffered: the memory of a Put or a GetRange does not depend on
//     the size of the object.
//   - Every call ends soon after its context does, and leaves no goroutine.
//
// A store from package backend is bare: one try per call, no time limit but the
// context's. The decorators are put around it in this order, the store first:
//
//	WithMetrics   counts and times every try
//	WithDeadline  bounds every try
//	WithRetry     tries again while the job's deadline allows it
//
// [Decorate] puts all three; how many calls are under way is up to the callers.
// Secrets never appear in an error of this package or of those below it.
package objstore

import (
	"context"
	"io"
	"time"
)

// PageSize is how many objects one List returns at most, and how many keys one
// request of Delete names at most.
const PageSize = 1000

// Store is a flat map from keys to immutable byte strings. All methods may be
// called in parallel, also for the same key. Keys are as [CheckKey] has them.
//
// Every method returns soon after ctx ends, with an error that wraps the cause.
// Errors are tested with errors.Is against the sentinels of this package.
type Store interface {
	// Put stores body under key. When it returns nil the whole body is durable
	// and every later call sees it. When it fails, what was there before is
	// there still, or the whole new object is: after an error that is not
	// definite (ErrTransient, a canceled context) the caller cannot know which.
	//
	// Without IfAbsent an existing object is replaced in one step. With it an
	// existing object stays as it is: the result is nil when it holds the same
	// bytes as body (so a repeated Put, whose first answer was lost, succeeds),
	// else ErrExists. Of several such Puts at once, one wins.
	//
	// A body that ends early is ErrInvalid, an error of body.R is returned
	// wrapped, and bytes that do not match body.CRC64NVME are ErrChecksum where
	// the store enforces it (see Features).
	Put(ctx context.Context, key string, body Body, opts PutOptions) error

	// GetRange reads n bytes from offset off. The reader gives exactly n bytes
	// and then io.EOF, or an error: a connection that ends before is
	// io.ErrUnexpectedEOF wrapped in ErrShort, never a clean end. ctx bounds the
	// reading too. The reader must be closed, and may be closed early.
	//
	// n <= 0, off < 0 or a range that is not wholly inside the object: ErrRange.
	GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error)

	// Head returns what the store knows of an object. ErrNotFound only when the
	// store confirmed that there is no such key.
	Head(ctx context.Context, key string) (Info, error)

	// Delete removes objects, any number of them. A key that is not there counts
	// as deleted. When it fails, some may be gone and some not.
	Delete(ctx context.Context, keys ...string) error

	// List returns up to PageSize objects whose key starts with prefix and is
	// greater than after, in ascending byte order of their keys.
	List(ctx context.Context, prefix, after string) (Page, error)
}

// PutOptions say how an object is stored.
type PutOptions struct {
	// IfAbsent leaves an existing object alone; see Store.Put.
	IfAbsent bool
	// Metadata is kept beside the object and given back by Head. Keys are made
	// of [a-z0-9] only, values of printable ASCII without leading or trailing
	// spaces; together at most 2 KiB. Others are refused with ErrInvalid.
	Metadata map[string]string
	// StorageClass is the provider's name of a storage class, or "" for the
	// bucket's default. Stores that have none ignore it.
	StorageClass string
}

// Info describes one object.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
	// Metadata has lower-case keys. Not filled by List.
	Metadata map[string]string
	// CRC64NVME is the checksum that the store keeps for the object, if HasCRC.
	// Whether the store ever compared it with the bytes: Features.
	CRC64NVME uint64
	HasCRC    bool
}

// Page is one page of a listing. To read on, call List again with the key of the
// last object as after while More is set; a page with More is never empty.
type Page struct {
	Objects []Info // Key, Size and Modified only
	More    bool
}

package chunkcache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
)

// Sentinels; test with errors.Is.
var (
	// ErrBadObject: the store gave bytes that Object.Check refuses, twice. The error names key and offset.
	ErrBadObject = errors.New("bad object")
	// ErrRange: the bytes asked for are not all inside the object.
	ErrRange = errors.New("range outside the object")
	// ErrClosed: the cache was closed.
	ErrClosed = errors.New("chunk cache is closed")
)

// Object names an immutable object of the store and says how its bytes are cut and checked.
type Object struct {
	Key  string // never used for other bytes
	Size int64  // bytes

	// Index returns positions at which batches start, ascending; not every batch needs one. nil or an error: plain
	// offsets. It may take its time; its context ends with the cache, not with a reader. May be nil.
	Index func(ctx context.Context) ([]int64, error)
	// Check verifies data, which starts at the start of a batch, and returns how many bytes whole valid batches
	// cover. A partial batch at the end is no error; with an error, covered is where the bad batch starts. Called from several goroutines at once. nil: not checked.
	Check func(data []byte) (covered int64, err error)
	// Label is what fetched bytes are counted under (Metrics.Fetched).
	Label string
}

// Options are the settings of a cache. A field that is zero has its default, but for Dir, Store and
// ReadaheadMax.
type Options struct {
	// Dir is a descriptor of the cache's directory; O_PATH will do. It stays the caller's, who closes it after Close.
	Dir   int
	Store objstore.Store

	ChunkSize           int64         // bytes; 1 to 64 MiB, a multiple of 4096
	Size                int64         // bytes on disk at most
	SizePercent         int           // of the disk at most; the smaller of both wins
	MaxObjects          int           // files at most
	FirstFetch          int64         // bytes that a reader's first GET fetches at least
	LowWatermarkPercent int           // of the budget: what a trim goes down to
	TrimMinInterval     time.Duration // between trims, unless space is needed at once
	Concurrency         int           // GETs at once
	ReadaheadMax        int           // chunks; 0: nothing is read ahead
	Memory              int64         // bytes for decoded indexes and chunk tables

	Log     *slog.Logger
	Metrics *metrics.Cache // may be nil
}

// Stats is what a cache says about itself.
type Stats struct {
	Bytes    int64  // on disk, with what is reserved for fetches under way
	Budget   int64  // what Bytes never exceeds
	Chunks   int    // files
	Hits     uint64 // reads that did not wait for the store
	Misses   uint64 // reads that did
	Waiting  int    // reads that wait for the store now
	Degraded bool   // the disk fails: new bytes are not kept
}

func (o Options) withDefaults() Options {
	o.ChunkSize = cmp.Or(o.ChunkSize, 8<<20)
	o.Size = cmp.Or(o.Size, 4<<30)
	o.SizePercent = cmp.Or(o.SizePercent, 20)
	o.MaxObjects = cmp.Or(o.MaxObjects, 100_000)
	o.FirstFetch = cmp.Or(o.FirstFetch, 64<<10)
	o.LowWatermarkPercent = cmp.Or(o.LowWatermarkPercent, 80)
	o.TrimMinInterval = cmp.Or(o.TrimMinInterval, 5*time.Second)
	o.Concurrency = cmp.Or(o.Concurrency, 16)
	o.Memory = cmp.Or(o.Memory, 64<<20)
	return o
}

func (o Options) validate() error {
	switch {
	case o.Store == nil:
		return errors.New("no store")
	case o.ChunkSize < 0 || o.ChunkSize%plainStep != 0 || o.ChunkSize > maxGap:
		return fmt.Errorf("chunk size %d is no multiple of %d up to %d", o.ChunkSize, plainStep, maxGap)
	case o.SizePercent < 0 || o.SizePercent > 100 || o.LowWatermarkPercent < 0 || o.LowWatermarkPercent > 100:
		return errors.New("a percentage is outside 1 to 100")
	case o.Size < 0 || o.MaxObjects < 0 || o.FirstFetch < 0 || o.Concurrency < 0 || o.ReadaheadMax < 0 || o.Memory < 0 || o.TrimMinInterval < 0:
		return errors.New("a limit is negative")
	}
	return nil
}

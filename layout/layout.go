// Package layout holds the rules of each broker: how its directories and files are named, how to tell which broker
// wrote them, which of them are tiered, what lies beside a segment, when a sealed segment may lose its local copy, what
// a broker's start reads of one, and how long its reads may wait. It is pure but for the two callbacks through which it
// sees names and checkpoint files; all of it may be called in parallel, and Rules keep no state.
//
// It writes nothing. It reads, under Kafka, recovery-point-offset-checkpoint and replication-offset-checkpoint of the
// volume root; see ParseCheckpoint.
package layout

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tierfs/tierfs/segment"
)

// Kind names a layout, as it is written in settings.
type Kind string

// The layouts.
const (
	Kafka   Kind = "kafka"
	Iggy    Kind = "iggy"
	Generic Kind = "generic"
)

// Reason says why not: a short phrase that never changes, for metric labels and for people. Empty means yes.
type Reason string

// Why something is not tiered, not sealed or not evictable.
const (
	NotPartition  Reason = "not a partition"
	InternalTopic Reason = "internal topic"
	Deleted       Reason = "deleted"        // a directory on its way out
	Future        Reason = "future"         // a replica on its way to another log dir
	Stray         Reason = "stray"          // a replica that the cluster does not know
	Fenced        Reason = "fenced"         // a damaged partition that was set aside
	Compaction    Reason = "compaction"     // segments are rewritten
	RecoveryPoint Reason = "recovery point" // the broker may read or cut it at its next start
	HighWatermark Reason = "high watermark" // not yet on all replicas: it may be truncated
	Gap           Reason = "offset gap"     // offsets are missing before the next segment
	Overlap       Reason = "offset overlap" // offsets reach into the next segment
)

// Errors of this package; test with errors.Is.
var (
	// ErrKind: there is no such layout.
	ErrKind = errors.New("unknown layout")
	// ErrCheckpoint: a checkpoint file is not what its broker writes.
	ErrCheckpoint = errors.New("invalid checkpoint")
)

// Partition is a partition as its broker names it.
type Partition struct {
	Topic  string // Iggy: "stream/topic"; generic: the directory's path, "." for the root
	Number string // decimal; empty for generic
}

// Range is a stretch of a file, in bytes.
type Range struct{ Offset, Length int64 }

// Rules are what one broker's layout says.
type Rules interface {
	Kind() Kind
	Format() segment.Format

	// Classify says of a directory, by its path from the volume root (separated by '/', "" or "." for the root), which
	// partition it holds and whether that is tiered. The Partition is given, where it can be told, also with a Reason.
	Classify(path string) (Partition, Reason)
	// Disqualifies says whether a file of this name in a partition means that the partition must never be tiered.
	Disqualifies(name string) Reason
	// Follows says whether a segment that ends at end (inclusive) may stand directly before one that starts at next.
	// anchored tells whether the later one has a file with AnchorSuffix beside it.
	Follows(end, next uint64, anchored bool) Reason
	// Bounds reads what the broker's own checkpoints say. read gives the content of a file of the volume root; where it
	// fails with fs.ErrNotExist the file says nothing, which allows nothing. Other errors are returned, wrapped.
	Bounds(read func(name string) ([]byte, error)) (Bounds, error)

	// SideSuffixes are those of the files beside a .log that belong to it and are uploaded with it.
	SideSuffixes() []string
	// IndexSuffix is that of the index that names batch starts; empty when there is none.
	IndexSuffix() string
	// AnchorSuffix is that of the file that makes a gap before a segment legal; empty when there is none.
	AnchorSuffix() string

	// BootRanges gives what a start of the broker reads of a sealed segment of size bytes, so that these stretches can
	// stay local: whole pages, ascending, apart from each other. log is the segment's local copy, of which only batch
	// headers are read. An index that is torn or missing makes the broker read everything: an error.
	BootRanges(index []byte, log io.ReaderAt, size int64) ([]Range, error)
	// FetchTimeout is how long a read of tiered data may wait for the store before it fails.
	FetchTimeout() time.Duration
	// MaxBlocked is how many such reads may wait that long at once on a machine with so many CPUs.
	MaxBlocked(cpus int) int
	// FirstFetch is the least to fetch, in bytes, before the first read of a cold stretch is answered.
	FirstFetch() int64
	// QuietTime is how long a segment must be left unchanged to be sealed; 0 where the broker's order of steps tells.
	QuietTime() time.Duration
}

// Bounds are a broker's checkpoints as they were on disk at one time. They only ever move up while a partition lives,
// so old Bounds are on the safe side until it is truncated or made anew.
type Bounds interface {
	// Evictable says whether the segment before the one that starts at next may lose its local copy.
	Evictable(p Partition, next uint64) Reason
}

// New gives the rules of a layout. quiet is the quiet time of the generic one; the others do not use it.
func New(kind Kind, quiet time.Duration) (Rules, error) {
	switch kind {
	case Kafka:
		return kafkaRules{}, nil
	case Iggy:
		return iggyRules{}, nil
	case Generic:
		if quiet < 0 {
			return nil, fmt.Errorf("generic quiet time is %s: it must not be negative", quiet)
		}
		return genericRules{quiet: quiet}, nil
	}
	return nil, fmt.Errorf("%w %q: it must be %s, %s or %s", ErrKind, string(kind), Kafka, Iggy, Generic)
}

// unbounded is for brokers whose checkpoints do not stand against an eviction.
type unbounded struct{}

func (unbounded) Evictable(Partition, uint64) Reason { return "" }

// overlap is the rule that holds everywhere: offsets ascend from segment to segment.
func overlap(end, next uint64) Reason {
	if next <= end {
		return Overlap
	}
	return ""
}

// isRoot says whether a path means the volume root.
func isRoot(path string) bool { return path == "" || path == "." }

// decimal says whether s is a number of at most 20 digits as brokers write them: no sign, no leading zero.
func decimal(s string) bool {
	if s == "" || len(s) > 20 || (s[0] == '0' && len(s) > 1) {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

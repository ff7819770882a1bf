package layout

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tierfs/tierfs/segment"
)

const (
	pageSize = 4096
	// startPages is what the kernel reads when a file is read at its start: the first window of its read-ahead. It
	// opens such a window, too, where a page follows on one that was just read.
	startPages = 4 * pageSize
	// iggyHeader is what Iggy reads at the start of each batch.
	iggyHeader = 256
)

// iggyRules are those of an Iggy 0.9 data directory, or of the streams directory in it: partitions are directories
// streams/STREAM/topics/TOPIC/partitions/N.
type iggyRules struct{}

func (iggyRules) Kind() Kind                  { return Iggy }
func (iggyRules) Format() segment.Format      { return segment.Iggy }
func (iggyRules) Disqualifies(string) Reason  { return "" }
func (iggyRules) SideSuffixes() []string      { return []string{".index"} }
func (iggyRules) IndexSuffix() string         { return ".index" }
func (iggyRules) AnchorSuffix() string        { return ".anchor" }
func (iggyRules) FetchTimeout() time.Duration { return 9 * time.Second }
func (iggyRules) MaxBlocked(cpus int) int     { return max(1, 4*cpus-1) }
func (iggyRules) FirstFetch() int64           { return 64 << 10 }
func (iggyRules) QuietTime() time.Duration    { return 0 }

// Bounds: Iggy keeps no checkpoint that matters here; sealed segments hold committed data only.
func (iggyRules) Bounds(func(string) ([]byte, error)) (Bounds, error) { return unbounded{}, nil }

// Follows: Iggy refuses a gap between segments unless an anchor covers it.
func (iggyRules) Follows(end, next uint64, anchored bool) Reason {
	if reason := overlap(end, next); reason != "" {
		return reason
	}
	if next-end > 1 && !anchored {
		return Gap
	}
	return ""
}

func (iggyRules) Classify(path string) (Partition, Reason) {
	rest := strings.TrimPrefix(path, "streams/")
	stream, rest, ok1 := strings.Cut(rest, "/topics/")
	topic, number, ok2 := strings.Cut(rest, "/partitions/")
	if !ok1 || !ok2 || !decimal(stream) || !decimal(topic) {
		return Partition{}, NotPartition
	}
	number, set, fenced := strings.Cut(number, ".fenced.")
	if !decimal(number) || (fenced && !decimal(set)) {
		return Partition{}, NotPartition
	}
	p := Partition{Topic: stream + "/" + topic, Number: number}
	if fenced {
		return p, Fenced
	}
	return p, ""
}

// BootRanges: Iggy's start reads the batch headers from the position of the last index entry to the end, each on its
// own; the kernel makes pages of them.
func (iggyRules) BootRanges(index []byte, log io.ReaderAt, size int64) ([]Range, error) {
	starts, err := segment.Boundaries(index, size, segment.Iggy)
	if err != nil {
		return nil, err
	}
	if len(index) == 0 {
		return nil, fmt.Errorf("%w: no entry", segment.ErrIndex)
	}
	var ranges []Range
	err = segment.Headers(log, starts[len(starts)-1], size, segment.Iggy, func(b segment.Batch) error {
		ranges = keepPages(ranges, b.Position, size)
		return nil
	})
	return ranges, err
}

// keepPages adds the pages of the header at pos to ranges. Pages that lie closer together than a read-ahead window are
// joined, and the window after them is added, because the kernel then reads on.
func keepPages(ranges []Range, pos, size int64) []Range {
	from := pos &^ (pageSize - 1)
	to := min((pos+iggyHeader+pageSize-1)&^(pageSize-1), size)
	if from == 0 {
		to = min(max(to, startPages), size)
	}
	if n := len(ranges); n > 0 {
		last := &ranges[n-1]
		if from <= last.Offset+last.Length+startPages {
			to = max(min(to+startPages, size), last.Offset+last.Length)
			last.Length = to - last.Offset
			return ranges
		}
	}
	return append(ranges, Range{Offset: from, Length: to - from})
}

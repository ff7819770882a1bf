package layout

import (
	"io"
	"strings"
	"time"

	"github.com/tierfs/tierfs/segment"
)

// genericRules are for files of which only the names are known: stems with .log in any directory.
type genericRules struct{ quiet time.Duration }

func (genericRules) Kind() Kind                              { return Generic }
func (genericRules) Format() segment.Format                  { return segment.Generic }
func (genericRules) Disqualifies(string) Reason              { return "" }
func (genericRules) SideSuffixes() []string                  { return nil }
func (genericRules) IndexSuffix() string                     { return "" }
func (genericRules) AnchorSuffix() string                    { return "" }
func (genericRules) FetchTimeout() time.Duration             { return 30 * time.Second }
func (genericRules) MaxBlocked(int) int                      { return 64 }
func (genericRules) FirstFetch() int64                       { return 64 << 10 }
func (r genericRules) QuietTime() time.Duration              { return r.quiet }
func (genericRules) Follows(end, next uint64, _ bool) Reason { return overlap(end, next) }

// Bounds: nothing is known of the writer, so nothing stands against an eviction.
func (genericRules) Bounds(func(string) ([]byte, error)) (Bounds, error) { return unbounded{}, nil }

// BootRanges: nothing is known of the reader.
func (genericRules) BootRanges([]byte, io.ReaderAt, int64) ([]Range, error) { return nil, nil }

// Classify: every directory may hold segments; the path is the topic.
func (genericRules) Classify(path string) (Partition, Reason) {
	if isRoot(path) {
		return Partition{Topic: "."}, ""
	}
	if path[0] == '/' || path[len(path)-1] == '/' || strings.Contains(path, "//") {
		return Partition{}, NotPartition
	}
	return Partition{Topic: path}, ""
}

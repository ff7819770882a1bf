package layout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/tierfs/tierfs/segment"
)

const (
	recoveryPointFile = "recovery-point-offset-checkpoint"
	highWatermarkFile = "replication-offset-checkpoint"

	maxTopicName = 249 // Kafka's limit on the length of a topic's name
)

// kafkaRules are those of a Kafka 4 log directory: partitions are directories TOPIC-N of its root.
type kafkaRules struct{}

func (kafkaRules) Kind() Kind             { return Kafka }
func (kafkaRules) Format() segment.Format { return segment.Kafka }
func (kafkaRules) SideSuffixes() []string {
	return []string{".index", ".timeindex", ".txnindex", ".snapshot"}
}
func (kafkaRules) IndexSuffix() string                     { return ".index" }
func (kafkaRules) AnchorSuffix() string                    { return "" }
func (kafkaRules) FetchTimeout() time.Duration             { return 20 * time.Second }
func (kafkaRules) MaxBlocked(int) int                      { return 4 }
func (kafkaRules) FirstFetch() int64                       { return 1 << 20 }
func (kafkaRules) QuietTime() time.Duration                { return 0 }
func (kafkaRules) Follows(end, next uint64, _ bool) Reason { return overlap(end, next) }

// BootRanges: after a clean stop Kafka reads no byte of a sealed segment, and after any other none below the recovery
// point, where evicted segments lie.
func (kafkaRules) BootRanges([]byte, io.ReaderAt, int64) ([]Range, error) { return nil, nil }

func (kafkaRules) Classify(path string) (Partition, Reason) {
	if isRoot(path) || strings.Contains(path, "/") {
		return Partition{}, NotPartition
	}
	name, leaving := path, Reason("")
	switch {
	case strings.HasSuffix(path, "-delete"):
		leaving = Deleted
	case strings.HasSuffix(path, "-future"):
		leaving = Future
	case strings.HasSuffix(path, "-stray"):
		leaving = Stray
	}
	if leaving != "" {
		// TOPIC-N.UUID-delete; Kafka cuts TOPIC-N short where the whole would be too long for a name.
		name = path[:max(0, strings.LastIndexByte(path, '.'))]
	}
	p, ok := kafkaPartition(name)
	switch {
	case leaving != "":
		return p, leaving
	case !ok:
		return Partition{}, NotPartition
	case internalTopic(p.Topic):
		return p, InternalTopic
	}
	return p, ""
}

// kafkaPartition splits TOPIC-N at its last dash.
func kafkaPartition(name string) (Partition, bool) {
	dash := strings.LastIndexByte(name, '-')
	if dash < 0 || !topicName(name[:dash]) || !partitionNumber(name[dash+1:]) {
		return Partition{}, false
	}
	return Partition{Topic: name[:dash], Number: name[dash+1:]}, true
}

// partitionNumber says whether s is an int32 that is not negative.
func partitionNumber(s string) bool {
	const highest = "2147483647"
	return decimal(s) && (len(s) < len(highest) || len(s) == len(highest) && s <= highest)
}

// topicName says whether s is legal for a topic.
func topicName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > maxTopicName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// internalTopic names the topics whose records the broker itself reads, rewrites or starts from.
func internalTopic(topic string) bool {
	switch topic {
	case "__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state":
		return true
	}
	return false
}

func (kafkaRules) Disqualifies(name string) Reason {
	_, suffix, ok := segment.ParseStem(name)
	if ok && (strings.HasSuffix(suffix, ".cleaned") || strings.HasSuffix(suffix, ".swap")) {
		return Compaction
	}
	return ""
}

func (kafkaRules) Bounds(read func(name string) ([]byte, error)) (Bounds, error) {
	recovery, err := readCheckpoint(read, recoveryPointFile)
	if err != nil {
		return nil, err
	}
	watermark, err := readCheckpoint(read, highWatermarkFile)
	if err != nil {
		return nil, err
	}
	return kafkaBounds{recovery: recovery, watermark: watermark}, nil
}

func readCheckpoint(read func(name string) ([]byte, error), name string) (map[Partition]uint64, error) {
	b, err := read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	offsets, err := ParseCheckpoint(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return offsets, nil
}

// kafkaBounds hold the offset of each partition; one that is not there counts as 0.
type kafkaBounds struct{ recovery, watermark map[Partition]uint64 }

func (b kafkaBounds) Evictable(p Partition, next uint64) Reason {
	switch {
	case next > b.recovery[p]:
		return RecoveryPoint
	case next > b.watermark[p]:
		return HighWatermark
	}
	return ""
}

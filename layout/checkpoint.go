package layout

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseCheckpoint decodes one of Kafka's offset checkpoint files: text of a line with the version, 0, a line with the
// number of entries, and a line "topic partition offset" for each. An entry that comes twice counts with its lower
// offset. Everything else that Kafka does not write is ErrCheckpoint, with its line.
func ParseCheckpoint(b []byte) (map[Partition]uint64, error) {
	version, rest, ok := strings.Cut(string(b), "\n")
	if !ok || version != "0" {
		return nil, fmt.Errorf("%w: line 1: version %.20q, not 0", ErrCheckpoint, version)
	}
	first, rest, ok := strings.Cut(rest, "\n")
	count, err := strconv.ParseUint(first, 10, 31)
	if !ok || err != nil {
		return nil, fmt.Errorf("%w: line 2: %.20q is no number of entries", ErrCheckpoint, first)
	}
	offsets := make(map[Partition]uint64)
	for line := uint64(0); line < count; line++ {
		var entry string
		// Only the last line may lack its end.
		if entry, rest, ok = strings.Cut(rest, "\n"); !ok && line+1 < count {
			return nil, fmt.Errorf("%w: %d entries, line 2 says %d", ErrCheckpoint, line, count)
		}
		p, offset, ok := parseEntry(entry)
		if !ok {
			return nil, fmt.Errorf("%w: line %d: %.300q is no entry", ErrCheckpoint, line+3, entry)
		}
		if before, twice := offsets[p]; !twice || offset < before {
			offsets[p] = offset
		}
	}
	if rest != "" {
		return nil, fmt.Errorf("%w: more than the %d entries of line 2", ErrCheckpoint, count)
	}
	return offsets, nil
}

// parseEntry splits "topic partition offset".
func parseEntry(line string) (Partition, uint64, bool) {
	topic, rest, ok := strings.Cut(line, " ")
	number, digits, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 || !topicName(topic) || !partitionNumber(number) || !decimal(digits) {
		return Partition{}, 0, false
	}
	offset, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || offset > math.MaxInt64 {
		return Partition{}, 0, false
	}
	return Partition{Topic: topic, Number: number}, offset, true
}

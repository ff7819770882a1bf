package upload

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// Retention says what stays local.
type Retention struct {
	// For returns the rule of a topic, as its broker names it. Called often, from
	// several goroutines. nil: nothing is tiered.
	For func(topic string) Rule
	// When more than DiskHigh percent of the local disk are in use, the oldest
	// segments of all go until no more than DiskLow percent are. DiskHigh 0 or
	// above 99: never.
	DiskHigh, DiskLow int
}

// Rule is the local retention of one topic.
type Rule struct {
	// Tiered: its segments are uploaded and evicted. What is remote already stays.
	Tiered bool
	// Age of a segment's last record beyond which it need not be local.
	Age time.Duration
	// Size in bytes that the topic's segments may take locally, each partition an
	// equal share; Unlimited: any. The active segment counts, but never goes.
	Size int64
}

// surplus returns how many of a partition's segments, from the oldest, retention
// does not keep local, and when age adds the next one (zero: never). share is the
// number of partitions of its topic.
func (r Rule) surplus(segs []tier.Segment, share int, now time.Time) (n int, next time.Time) {
	total := int64(0)
	if r.Size != Unlimited {
		for _, s := range segs {
			total += localSize(s)
		}
	}
	limit := r.Size / int64(max(share, 1))
	for i, s := range segs {
		switch {
		case s.Active:
			return n, time.Time{}
		case !local(s):
			continue
		}
		due := lastRecord(s, now).Add(r.Age)
		if total <= limit && due.After(now) {
			if int64(r.Age) == Unlimited {
				due = time.Time{}
			}
			return n, due
		}
		total -= localSize(s)
		n = i + 1
	}
	return n, time.Time{}
}

// local reports whether a segment's bytes are in its local file.
func local(s tier.Segment) bool { return s.State == tier.Local || s.State == tier.Uploaded }

func localSize(s tier.Segment) int64 {
	if !local(s) {
		return 0
	}
	use, err := s.File.Usage()
	if err != nil {
		return 0 // it is gone; the next look knows
	}
	return use.Size
}

// lastRecord is when a segment's last record was made: its largest timestamp, or
// the time of its last write where there is none that can be true.
func lastRecord(s tier.Segment, now time.Time) time.Time {
	if s.Held() && s.Record.MaxTimestamp > 0 {
		if t := time.UnixMicro(s.Record.MaxTimestamp); !t.After(now) {
			return t
		}
	}
	use, err := s.File.Usage()
	if err != nil {
		return now
	}
	return use.Modified
}

// shares counts the partitions of each topic.
func shares(v *tier.Volume) map[string]int {
	out := map[string]int{}
	for _, p := range v.Partitions() {
		out[p.Name().Topic]++
	}
	return out
}

// Disk is how full a disk is, in bytes, as df sees it: Total leaves out what is
// kept for root.
type Disk struct{ Used, Total int64 }

// over returns how many bytes lie above percent of the disk.
func (d Disk) over(percent int) int64 { return d.Used - d.Total/100*int64(percent) }

func diskOf(fd int) (Disk, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return Disk{}, fmt.Errorf("statfs of the source: %w", err)
	}
	used := int64(st.Blocks-st.Bfree) * st.Bsize
	return Disk{Used: used, Total: used + int64(st.Bavail)*st.Bsize}, nil
}

package upload

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// Status is where the segments are and what the background has to do. Segments and
// Bytes have the keys of [metrics.States] and [metrics.Places], cache left out.
type Status struct {
	Paused     bool
	Owner      error // nil: this mount owns the volume
	Stalled    bool
	StalledWhy string

	Running, Queued int           // uploads; Queued counts segments, those that run included
	LagBytes        int64         // sealed, to be uploaded, not uploaded
	Oldest          time.Duration // since the last write to the oldest of those

	Segments     map[string]int64
	Bytes        map[string]int64
	NotEvictable map[layout.Reason]Amount // local segments that may not go now; allocated bytes
	Quarantined  int64                    // segments whose bytes cannot be found: invalid markers and holes
	Tombstones   int64

	Topics []Topic // by name
}

// Topic is the part of one topic.
type Topic struct {
	Name       string
	Partitions int64
	Segments   map[string]int64
	Local      int64         // allocated bytes
	Remote     int64         // bytes
	LagBytes   int64         // sealed, to be uploaded, not uploaded
	Why        layout.Reason // why it is not tiered
}

// Segment is one segment of a partition with what stands against its eviction.
type Segment struct {
	tier.Segment
	Usage tier.Usage
	Why   layout.Reason // empty for segments that may go or are gone
}

// Status looks at every segment of the volume, mostly in memory: a file that
// changed since the last look costs one fstat. It never waits for the store.
func (b *Background) Status() Status {
	s := survey{b: b, now: time.Now(), topics: map[string]*Topic{}, pass: &pass{v: b.opt.Volume}}
	s.Segments, s.Bytes, s.NotEvictable = map[string]int64{}, map[string]int64{}, map[layout.Reason]Amount{}
	for _, p := range b.opt.Volume.Partitions() {
		s.partition(p)
	}
	for _, t := range s.topics {
		s.Topics = append(s.Topics, *t)
	}
	slices.SortFunc(s.Topics, func(a, c Topic) int { return cmp.Compare(a.Name, c.Name) })
	s.Paused, s.Owner = b.Paused(), b.opt.Volume.Owner()
	s.Running, s.Queued = b.uploader.counts()
	s.Tombstones = int64(len(b.opt.Volume.Tombstones()))
	s.Stalled, s.StalledWhy = b.stalled(&s.Status, s.now)
	return s.Status
}

// Snapshot is Status in the words of the metrics; the cache's bytes are the
// caller's to add.
func (b *Background) Snapshot() metrics.Snapshot {
	s := b.Status()
	out := metrics.Snapshot{
		Segments: s.Segments, Bytes: s.Bytes, NotEvictable: map[string]int64{},
		LagBytes: s.LagBytes, Oldest: s.Oldest, Stalled: s.Stalled,
		Tombstones: s.Tombstones, Quarantined: s.Quarantined, Owner: s.Owner == nil,
	}
	for why, a := range s.NotEvictable {
		out.NotEvictable[string(why)] = a.Bytes
	}
	return out
}

// Segments lists a partition for people.
func (b *Background) Segments(p *tier.Partition) []Segment {
	return b.explain(p, &pass{v: b.opt.Volume})
}

// stalled reports whether uploads do not get on, and why.
func (b *Background) stalled(s *Status, now time.Time) (bool, string) {
	b.mu.Lock()
	unasked, askError := b.unasked, b.askError
	b.mu.Unlock()
	switch long, why := b.uploader.stall(now); {
	case s.LagBytes > 0 && errors.Is(s.Owner, tier.ErrNotOwner):
		return true, s.Owner.Error()
	case askError != nil && now.Sub(unasked) >= stalledAfter:
		return true, askError.Error()
	case long >= stalledAfter:
		return true, why
	}
	return false, ""
}

// survey gathers a Status.
type survey struct {
	Status
	b      *Background
	now    time.Time
	topics map[string]*Topic
	pass   *pass
}

func (s *survey) partition(p *tier.Partition) {
	name := p.Name().Topic
	t := s.topics[name]
	if t == nil {
		t = &Topic{Name: name, Segments: map[string]int64{}, Why: s.b.never(p)}
		s.topics[name] = t
	}
	t.Partitions++
	s.Quarantined += int64(len(p.Holes()))
	tiered := s.b.never(p) == ""
	for _, seg := range s.b.explain(p, s.pass) {
		if seg.State == tier.Quarantined {
			s.Quarantined++
			continue
		}
		state := stateOf(seg.Segment)
		s.Segments[state]++
		t.Segments[state]++
		if seg.Held() && !local(seg.Segment) {
			s.Bytes["remote"] += seg.Record.Size
			t.Remote += seg.Record.Size
		}
		s.Bytes["local"] += seg.Usage.Allocated
		t.Local += seg.Usage.Allocated
		if seg.Why != "" {
			a := s.NotEvictable[seg.Why]
			a.add(seg.Usage.Allocated)
			s.NotEvictable[seg.Why] = a
		}
		if tiered && state == "sealed" {
			s.LagBytes += seg.Usage.Size
			t.LagBytes += seg.Usage.Size
			s.Oldest = max(s.Oldest, s.now.Sub(seg.Usage.Modified))
		}
	}
}

// stateOf names a segment's state in the words of the metrics.
func stateOf(s tier.Segment) string {
	switch {
	case s.Active && local(s):
		return "active"
	case s.State == tier.Local:
		return "sealed"
	case s.State == tier.Uploaded:
		return "uploaded"
	}
	return "remote"
}

// never says why a partition is not tiered at all.
func (b *Background) never(p *tier.Partition) layout.Reason {
	if why := p.Reason(); why != "" {
		return why
	}
	if !b.opt.Retention.For(p.Name().Topic).Tiered {
		return ReasonOff
	}
	return ""
}

// explain says of each segment why it may not be evicted now, in one walk over the
// partition.
func (b *Background) explain(p *tier.Partition, pass *pass) []Segment {
	segs := p.Segments()
	out := make([]Segment, len(segs))
	never := b.never(p)
	prefix := true
	for i, s := range segs {
		out[i].Segment = s
		if use, err := s.File.Usage(); err == nil {
			out[i].Usage = use
		}
		switch {
		case s.State == tier.Quarantined:
			out[i].Why = tier.ReasonQuarantine
		case !local(s):
			continue
		case never != "":
			out[i].Why = never
		case s.Active:
			out[i].Why = tier.ReasonActive
		case s.State == tier.Local:
			out[i].Why = b.uploader.why(p, s)
		case !prefix:
			out[i].Why = tier.ReasonFloor
		default:
			out[i].Why = pass.beyond(p, s)
		}
		prefix = prefix && s.Held()
	}
	return out
}

// reasons is explain by start offset.
func (b *Background) reasons(p *tier.Partition) map[uint64]layout.Reason {
	out := map[uint64]layout.Reason{}
	for _, s := range b.explain(p, &pass{v: b.opt.Volume}) {
		out[s.Start] = s.Why
	}
	return out
}

package upload

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tierfs/tierfs/tier"
)

// relieve evicts the oldest segments of all partitions while the disk is too full.
// A partition that could give something, were it uploaded, goes to the head of the
// uploader's queue.
func (e *evictor) relieve(ctx context.Context, pass *pass) {
	r := e.b.opt.Retention
	if r.DiskHigh <= 0 || r.DiskHigh > 99 || !e.b.mayAct() {
		return
	}
	disk, err := e.b.opt.Disk()
	if err != nil {
		if !e.diskFails {
			e.b.opt.Log.Warn("cannot tell how full the disk is", "err", err)
		}
		e.diskFails = true
		return
	}
	e.diskFails = false
	low := min(r.DiskLow, r.DiskHigh)
	switch {
	case disk.over(r.DiskHigh) > 0:
		if !e.relieving {
			e.b.opt.Log.Info("the disk is above disk_high_percent; the oldest segments go", "bytes", disk.over(low))
		}
		e.relieving = true
	case disk.over(low) <= 0:
		e.relieving = false
	}
	if e.relieving {
		e.free(ctx, disk.over(low), pass)
	}
}

// candidate is a segment that can be evicted, behind those before it.
type candidate struct {
	p   *tier.Partition
	s   tier.Segment
	age time.Time
}

// free evicts, oldest first, until so many bytes are free.
func (e *evictor) free(ctx context.Context, bytes int64, pass *pass) {
	stuck := map[*tier.Partition]bool{}
	for _, c := range e.candidates() {
		if bytes <= 0 || ctx.Err() != nil || !e.b.mayAct() {
			return
		}
		l := e.plots[c.p]
		if stuck[c.p] || l.again.After(time.Now()) {
			continue
		}
		use, err := c.s.File.Usage()
		if err != nil || !e.evict(ctx, l, c.p, c.s, pass) {
			stuck[c.p] = true
			continue
		}
		bytes -= use.Allocated
	}
}

// candidates lists what may go, by age but in order within a partition, and
// presses the partitions whose next segment is not uploaded.
func (e *evictor) candidates() []candidate {
	var out []candidate
	now := time.Now()
	for p := range e.plots {
		var after time.Time
		for _, s := range p.NotRemote() {
			if s.Active || s.State == tier.Quarantined {
				break
			}
			if s.State == tier.Local {
				e.b.uploader.press(p)
				break
			}
			if s.State != tier.Uploaded {
				continue
			}
			age := lastRecord(s, now)
			if age.Before(after) {
				age = after
			}
			after = age
			out = append(out, candidate{p, s, age})
		}
	}
	slices.SortStableFunc(out, func(a, b candidate) int {
		return cmp.Or(a.age.Compare(b.age), cmp.Compare(a.s.Start, b.s.Start))
	})
	return out
}

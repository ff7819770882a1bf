package crash

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/tier/tiertest"
)

// Modes of writing.
const (
	through   = "through"
	writeback = "writeback"
)

// TestTakenOver is the matrix once more: the daemon alone dies at each point that a running mount or a successor reaches, and
// who uses the mount does not notice. The short run is of mounts for which the kernel gathers writes: [TestKilled] is of the others.
func TestTakenOver(t *testing.T) {
	modes := []string{writeback}
	if rounds() > 1 {
		modes = []string{writeback, through}
	}
	for _, writes := range modes {
		count := &tally{kills: map[string]int{}, want: map[string]bool{}}
		began := time.Now()
		t.Run(writes, func(t *testing.T) {
			for _, g := range groups() {
				t.Run(g.name, func(t *testing.T) {
					t.Parallel()
					count.expect(g.points())
					takenOver(t, g, writes, count)
				})
			}
			t.Run("full", func(t *testing.T) {
				t.Parallel()
				count.expect(around(fullSteps))
				for range rounds() {
					for _, p := range around(fullSteps) {
						t.Run(p.name(), func(t *testing.T) { takenOverWithoutRoom(t, p, writes) })
						count.add(p)
					}
				}
			})
		})
		if !t.Failed() {
			count.report(t)
		}
		t.Logf("%s: in %v", writes, time.Since(began))
	}
}

func takenOver(t *testing.T, g group, writes string, count *tally) {
	v := newVolume(t, "", die, writes)
	v.must(v.restart())
	for round := range rounds() {
		v.round(g, round, count)
	}
	v.counted()
	v.must(v.daemon.Stop())
	v.must(v.restart())
	v.settled("after a clean restart")
	v.must(v.daemon.Stop())
	v.forgotten()
	v.check("after all")
}

// counted holds what status says of takeovers against what was logged since the last mount.
func (v *volume) counted() {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	s, err := v.daemon.Status(ctx)
	v.must(err)
	said := v.daemon.Log().Text()
	said = said[strings.LastIndex(said, "msg=mounted"):]
	if seen := strings.Count(said, "took the mount over"); s.Takeovers < uint64(seen) {
		v.t.Errorf("status says %d takeovers, there were %d", s.Takeovers, seen)
	}
	if s.Holder.PID != v.daemon.Process().PID() || s.Writes != v.writes {
		v.t.Errorf("status says %+v", s)
	}
}

// takenOverWithoutRoom is a takeover on a full disk, in the middle of an upload to which the reserve has to give way.
func takenOverWithoutRoom(t *testing.T, at point, writes string) {
	size := int64(24 << 20)
	if writes == writeback {
		size = 1 << 30 // there must be room for the reserve of late writes
	}
	disk := tiertest.Disk(t, size, 0)
	v := newVolume(t, disk, die, writes)
	v.must(v.restart())
	from := v.daemon.Log().Len()
	v.death = v.dying(at)
	v.order("hold upload:intent")
	p := v.newPartition(uploaded.prefix())
	v.must(p.fill())
	v.must(v.holding("upload:intent", from))
	eaten := filepath.Join(disk, "eaten")
	v.must(tiertest.Eat(eaten))
	v.order(at.order(die))
	<-v.death.came
	v.must(v.death.err)
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	v.must(v.daemon.Log().Await(ctx, v.daemon.Process(), v.death.end, "took the mount over"))
	v.look("with a full disk")
	v.check("with a full disk")
	v.must(os.Remove(eaten))
	v.settled("with room again")
	v.must(v.daemon.Stop())
}

package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// tally counts the kills of each point.
type tally struct {
	mu    sync.Mutex
	kills map[string]int
	want  map[string]bool
}

// expect notes points that have to be reached.
func (t *tally) expect(points []point) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range points {
		if p != "" {
			t.want[p.name()] = true
		}
	}
}

func (t *tally) add(p point) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kills[p.name()]++
}

// report prints the kills of each point, and fails for one that was not reached.
func (t *tally) report(test *testing.T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	total := 0
	var text strings.Builder
	for _, p := range slices.Sorted(maps.Keys(t.want)) {
		fmt.Fprintf(&text, "%6d %s\n", t.kills[p], p)
		total += t.kills[p]
		if t.kills[p] < rounds() {
			test.Errorf("%s: %d kills, should be %d", p, t.kills[p], rounds())
		}
	}
	test.Logf("kills at each point:\n%s%6d in all, at %d points", text.String(), total, len(t.want))
}

// TestKilled is the matrix.
func TestKilled(t *testing.T) {
	count := &tally{kills: map[string]int{}, want: map[string]bool{}}
	began := time.Now()
	t.Run("all", func(t *testing.T) {
		for _, g := range groups() {
			t.Run(g.name, func(t *testing.T) {
				t.Parallel()
				count.expect(g.points())
				v := newVolume(t, "", crash, through)
				v.must(v.restart())
				for round := range rounds() {
					v.round(g, round, count)
				}
				v.must(v.daemon.Stop())
				v.must(v.restart())
				v.settled("after a clean restart")
				v.must(v.daemon.Stop())
				v.forgotten()
				v.check("after all")
			})
		}
		singly(t, "mint", mintSteps, count, minting)
		singly(t, "full", fullSteps, count, withoutRoom)
	})
	if !t.Failed() {
		count.report(t)
	}
	t.Logf("in %v", time.Since(began))
}

// singly kills a volume of its own at each point.
func singly(t *testing.T, name string, steps []string, count *tally, kill func(t *testing.T, p point)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		count.expect(around(steps))
		for range rounds() {
			for _, p := range around(steps) {
				t.Run(p.name(), func(t *testing.T) { kill(t, p) })
				count.add(p)
			}
		}
	})
}

// minting kills a volume's first mount.
func minting(t *testing.T, p point) {
	v := newVolume(t, "", crash, through)
	v.must(v.killStart(p))
	v.must(v.restart())
	v.must(v.newPartition(uploaded.prefix()).fill())
	v.settled("after the first mount")
	v.must(v.daemon.Stop())
	v.forgotten()
}

// killStart mounts with orders that end the daemon, which may be before or after the mount.
func (v *volume) killStart(p point) error {
	from := v.daemon.Log().Len()
	v.order(p.order(crash))
	process, err := v.daemon.Launch()
	if err == nil {
		err = v.died(process, from, p.name())
	}
	v.order()
	return err
}

// restart mounts with nothing armed, over a dead mount if there is one.
func (v *volume) restart() error {
	v.order()
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	return v.daemon.Start(ctx)
}

// round kills once at each point of a group, then waits for the graces and holds the store against what is left.
func (v *volume) round(g group, round int, count *tally) {
	v.t.Helper()
	var kills []kill
	for _, s := range g.scenarios {
		kills = append(kills, s.kills()...)
	}
	var all []*partition
	parts := map[kill]*partition{}
	for _, k := range kills {
		p := v.newPartition(k.scenario.finds.prefix())
		parts[k] = p
		all = append(all, p)
	}
	v.prepare(kills, parts)
	for _, k := range kills {
		if v.verb == die {
			v.takeover(k, parts[k], round)
		} else {
			v.kill(k, parts[k], round)
		}
		if k.at != "" {
			count.add(k.at)
		}
		if k.then != "" {
			count.add(k.then)
		}
	}
	v.settled("after the kills")
	for _, p := range all {
		if p.placed() {
			v.must(p.deleteTopic())
		}
	}
	v.settled("after the topics were deleted")
}

// prepare brings the partitions to where their scenarios find them.
func (v *volume) prepare(kills []kill, parts map[kill]*partition) {
	v.t.Helper()
	for _, k := range kills {
		if k.scenario.finds != none {
			v.must(parts[k].fill())
		}
	}
	for _, k := range kills {
		if k.scenario.finds != none {
			v.must(parts[k].awaitUploaded())
		}
	}
	out, err := v.daemon.Do(v.ctx, "evict", "--all", "--topic", remote.prefix()+"*", v.daemon.Mountpoint())
	v.must(err)
	for _, k := range kills {
		if p := parts[k]; k.scenario.finds == remote && !(v.isRemote(p.log(0)) && v.isRemote(p.log(1))) {
			v.t.Fatalf("%s was not evicted: %s", p.dir, out)
		}
	}
}

// kill runs one scenario into its crash, mounts anew, and looks.
func (v *volume) kill(k kill, p *partition, round int) {
	v.t.Helper()
	fail := func(err error) {
		if err != nil {
			v.t.Fatalf("%v, round %d: %v\nbelow: %v", k, round, err, v.namesBelow(p))
		}
	}
	if k.scenario.before != nil {
		fail(k.scenario.before(v, p))
	}
	v.death = v.crashing()
	v.startLoad(k.scenario.quiet)
	process, from := v.daemon.Process(), v.daemon.Log().Len()
	if k.scenario.run == nil {
		fail(v.daemon.Kill())
	} else {
		ended := make(chan error, 1)
		go func() { ended <- k.scenario.run(v, p, k.at, round) }()
		fail(v.died(process, from, k.at.name()))
		if err := <-ended; err != nil && !v.byDeath(err) {
			fail(err)
		}
	}
	fail(errors.Join(v.stopLoad()...))
	if k.then != "" {
		fail(v.killStart(k.then))
	}
	fail(v.restart())
	v.look(fmt.Sprintf("%v, round %d", k, round))
	v.afterwards(k, p, fail)
	v.check(fmt.Sprintf("%v, round %d:", k, round))
}

// afterwards ends what a kill left open.
func (v *volume) afterwards(k kill, p *partition, fail func(error)) {
	if k.scenario.after != nil {
		fail(k.scenario.after(v, p))
	}
	if p.placed() {
		fail(p.recover())
	}
	for i := range loadPartitions {
		fail((&partition{v: v, dir: fmt.Sprintf("load-%d", i)}).recover())
	}
}

func (v *volume) namesBelow(p *partition) []string {
	names, _ := filepath.Glob(v.below(p.dir) + "*/*")
	return names
}

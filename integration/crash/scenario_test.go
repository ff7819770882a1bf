package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// state is what a scenario finds its partition in.
type state int

const (
	none     state = iota // no directory yet
	uploaded              // both copies of each sealed segment
	remote                // sealed segments are evicted
)

// prefix begins the names of the topics of a state.
func (s state) prefix() string { return []string{"none", "uploaded", "remote"}[s] }

// point is where the daemon is killed: a step, ":done" behind it for its end, "@N" for the N-th pass.
type point string

func (p point) step() string {
	name, _, _ := strings.Cut(string(p), "@")
	return strings.TrimSuffix(name, ":done")
}

// name is the point without the number of the pass.
func (p point) name() string {
	name, _, _ := strings.Cut(string(p), "@")
	return name
}

// order is the line that kills there: "crash" daemon and holder, or "die", the daemon alone.
func (p point) order(verb string) string {
	if strings.Contains(string(p), "@") {
		return verb + " " + string(p)
	}
	return verb + " " + string(p) + "@1"
}

// around are the points before and after each of the steps.
func around(steps []string) []point {
	var out []point
	for _, s := range steps {
		name, count, again := strings.Cut(s, "@")
		if again {
			count = "@" + count
		}
		out = append(out, point(name+count), point(name+":done"+count))
	}
	return out
}

// scenario is an operation that reaches steps, each of which the daemon is killed before and after.
type scenario struct {
	name  string
	finds state
	steps []string
	// boot: by the point at which the operation is ended, the steps that the recovery reaches; it is killed there, too.
	boot map[point][]string
	// quiet: the load must not reach the same steps.
	quiet bool
	// before, if set, prepares while nothing is armed; it may leave the daemon stopped and armed start it anew.
	before func(v *volume, p *partition) error
	// after, if set, ends what the crash left open, with nothing armed.
	after func(v *volume, p *partition) error
	// says is a part of what the daemon logs as an error, if that is right here.
	says string
	// closed: what it waits for does not come while the broker has the first segment open.
	closed bool
	// run is the operation, with the orders that kill; round counts the kills of a point, for variants. nil: the start alone.
	run func(v *volume, p *partition, armed point, round int) error
}

// kill is one crash, or two: the second of the recovery from the first.
type kill struct {
	scenario *scenario
	at, then point
}

func (k kill) String() string {
	if k.then == "" {
		return fmt.Sprintf("%s/%s", k.scenario.name, k.at)
	}
	return fmt.Sprintf("%s/%s/%s", k.scenario.name, k.at, k.then)
}

// kills are all of a scenario's.
func (s *scenario) kills() []kill {
	var out []kill
	for _, at := range around(s.steps) {
		out = append(out, kill{s, at, ""})
	}
	for at, steps := range s.boot {
		for _, then := range around(steps) {
			out = append(out, kill{s, at, then})
		}
	}
	return out
}

// allPoints are the points of the whole matrix.
func allPoints() []point {
	out := append(around(mintSteps), around(fullSteps)...)
	for _, g := range groups() {
		out = append(out, g.points()...)
	}
	return out
}

func (g group) points() (out []point) {
	for _, s := range g.scenarios {
		for _, k := range s.kills() {
			out = append(out, k.at, k.then)
		}
	}
	return out
}

// simple is a scenario's operation that nothing has to be held up for.
func simple(run func(v *volume, p *partition, round int) error) func(*volume, *partition, point, int) error {
	return func(v *volume, p *partition, armed point, round int) error {
		v.order(armed.order(v.verb))
		return run(v, p, round)
	}
}

// held holds the daemon at a point that begin leads to, and cuts in there. cutIn ends the daemon, or lets it go to its end.
func held(at string, begin func(v *volume, p *partition) (done func(), err error), cutIn func(v *volume, p *partition, round int) error) func(*volume, *partition, point, int) error {
	return func(v *volume, p *partition, armed point, round int) error {
		from := v.daemon.Log().Len()
		v.order("hold "+at, armed.order(v.verb))
		done, err := begin(v, p)
		if err != nil {
			return err
		}
		defer done()
		if err := v.holding(at, from); err != nil {
			return err
		}
		err = cutIn(v, p, round)
		v.order(armed.order(v.verb))
		<-v.death.came
		return err
	}
}

// holding waits until the daemon stands at a point, in vain if it dies.
func (v *volume) holding(at string, from int) error {
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	death := v.death
	go func() {
		select {
		case <-death.came:
			cancel()
		case <-ctx.Done():
		}
	}()
	return v.daemon.Log().Await(ctx, v.daemon.Process(), from, "holding at "+at+"\n")
}

// evict is `tierfs evict` for a partition. That it fails when the daemon dies is no error.
func evict(v *volume, p *partition, _ int) error {
	_, err := v.daemon.Run(v.ctx, "evict", "--all", "--topic", p.topic, v.daemon.Mountpoint())
	return err
}

// evictAll is an eviction that has to succeed.
func evictAll(v *volume, p *partition) error {
	_, err := v.daemon.Do(v.ctx, "evict", "--all", "--topic", p.topic, v.daemon.Mountpoint())
	return err
}

// evicting begins an eviction.
func evicting(v *volume, p *partition) (done func(), err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = evict(v, p, 0)
	}()
	return func() { <-ended }, nil
}

// filling begins to bring the first segment back.
func filling(v *volume, p *partition) (done func(), err error) { return v.dirty(p.log(0)) }

// The operations on the first segment.

func touchFirst(v *volume, p *partition, round int) error { return v.touch(p.log(0), byte(round)) }

func emptyFirst(v *volume, p *partition, _ int) error { return v.truncate(p.log(0), 0) }

func unlinkFirst(v *volume, p *partition, _ int) error { return v.unlink(p.log(0)) }

// cutFirst is what a follower does to a segment that its leader does not have the end of.
func cutFirst(v *volume, p *partition, _ int) error {
	_, _, _, ends := content(p.starts[0], 2)
	if err := v.truncate(p.index(0), 0); err != nil {
		return err
	}
	return v.truncate(p.log(0), ends[0])
}

func deleteFirst(v *volume, p *partition, _ int) error { return p.deleteSegment(p.starts[0]) }

func renameFirst(v *volume, p *partition, _ int) error {
	return v.rename(p.log(0), p.log(0)+".deleted")
}

// replacement is what takes the place of the first segment: the same batches of another leader's epoch.
func (p *partition) replacement() string { return p.log(0) + ".new" }

func putReplacement(v *volume, p *partition) error {
	b, _, _, _ := content(p.starts[0], 2)
	b[epochAt+3] = 7
	return v.put(p.replacement(), b)
}

func replaceFirst(v *volume, p *partition, _ int) error { return v.rename(p.replacement(), p.log(0)) }

// turns takes one operation after the other, round by round.
func turns(runs ...func(*volume, *partition, int) error) func(*volume, *partition, int) error {
	return func(v *volume, p *partition, round int) error { return runs[round%len(runs)](v, p, round) }
}

// setAside renames a partition's segment away and puts a local one in its place.
func setAside(v *volume, p *partition) error {
	if err := v.rename(p.log(0), p.log(0)+".deleted"); err != nil {
		return err
	}
	b, _, _, _ := content(p.starts[0], 2)
	b[epochAt+3] = 9
	return v.put(p.log(0), b)
}

// withoutObject runs an operation while the store does not have the first segment's object, until what was made of it is about to
// be taken back. Who tries again finds it.
func withoutObject(run func(*volume, *partition, int) error) func(*volume, *partition, point, int) error {
	const taken = "rehydrate:empty"
	return func(v *volume, p *partition, armed point, round int) error {
		object, err := p.object(0)
		if err != nil {
			return err
		}
		kept := v.store.Root + "/../kept-" + strconv.Itoa(round)
		if err := os.Rename(object, kept); err != nil {
			return err
		}
		from := v.daemon.Log().Len()
		v.order("hold " + taken)
		ended := make(chan error, 1)
		go func() { ended <- run(v, p, round) }()
		err = errors.Join(v.holding(taken, from), os.Rename(kept, object))
		now := point(armed.name()) // the first pass since the orders were changed
		if now == taken {
			now += "@0" // who stands there
		}
		v.order(now.order(v.verb))
		return errors.Join(err, <-ended)
	}
}

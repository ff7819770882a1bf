package crash

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
)

// What an order ends, as its verb.
const (
	crash = "crash" // daemon and holder: the mount is dead
	die   = "die"   // the daemon: another one takes the mount over
)

// death is the end of the daemon that a kill ordered.
type death struct {
	came <-chan struct{} // closed when it came, or came not in time
	err  error           // why it does not count; valid once came is closed
	end  int             // of the daemon's log when the last daemon died
}

func (d *death) hasCome() bool {
	select {
	case <-d.came:
		return true
	default:
		return false
	}
}

// crashing expects the end of the mount by the orders to come.
func (v *volume) crashing() *death {
	return &death{came: v.daemon.Process().Done()}
}

// dying expects the end of the daemon at each of the points, one daemon after the other. Then nothing is ordered any more: who
// comes next has to get through. The orders of the later points stand from now on, because nobody could be quick enough; they
// are of the start.
func (v *volume) dying(points ...point) *death {
	v.orderMu.Lock()
	v.spent, v.standing = false, nil
	for _, p := range points[1:] {
		v.standing = append(v.standing, p.order(die))
	}
	v.orderMu.Unlock()
	came := make(chan struct{})
	d := &death{came: came}
	process, from := v.daemon.Process(), v.daemon.Log().Len()
	go func() {
		defer close(came)
		d.err = v.watch(process, from, points)
		d.end = v.daemon.Log().Len()
		v.orderMu.Lock()
		v.spent, v.standing = true, nil
		err := v.writeOrders(nil)
		v.orderMu.Unlock()
		d.err = errors.Join(d.err, err)
	}()
	return d
}

func (v *volume) watch(process *child.Process, from int, points []point) error {
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	for i, p := range points {
		if i == 0 && p == "" { // killed from without
			continue
		}
		if err := v.daemon.Log().Await(ctx, process, from, crashingAt(p)); err != nil {
			return fmt.Errorf("%s was not reached: %w", p, err)
		}
	}
	return nil
}

func crashingAt(p point) string { return "crashing at " + p.name() + "\n" }

// takeover runs one scenario into the death of the daemon alone. Nobody but the daemon may notice.
func (v *volume) takeover(k kill, p *partition, round int) {
	v.t.Helper()
	fail := func(err error) {
		v.t.Helper()
		if err != nil {
			v.t.Fatalf("%v, round %d: %v\nbelow: %v", k, round, err, v.namesBelow(p))
		}
	}
	if k.scenario.before != nil {
		fail(k.scenario.before(v, p))
	}
	open, err := v.hold(k, p)
	fail(err)
	points := []point{k.at}
	if k.then != "" {
		points = append(points, k.then)
	}
	from := v.daemon.Log().Len()
	v.death = v.dying(points...)
	v.startLoad(k.scenario.quiet)
	ended := make(chan error, 1)
	if k.scenario.run == nil {
		v.order()
		_, err := v.daemon.KillRole(daemon.Serves)
		ended <- err
	} else {
		go func() { ended <- k.scenario.run(v, p, k.at, round) }()
	}
	<-v.death.came
	fail(v.death.err)
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	fail(v.daemon.Log().Await(ctx, v.daemon.Process(), v.death.end, "took the mount over"))
	select {
	case err := <-ended:
		fail(err)
	case <-ctx.Done():
		fail(errors.New("the operation does not end"))
	}
	fail(v.load.goesOn())
	fail(open.goOn())
	fail(errors.Join(v.stopLoad()...))
	fail(v.ledger.doubtful())
	fail(v.complaints(from, k.scenario.says))
	v.lookAt(fmt.Sprintf("%v, round %d", k, round), p.topic+"-0", "load-")
	fail(open.close())
	v.afterwards(k, p, fail)
	v.check(fmt.Sprintf("%v, round %d:", k, round))
}

// complaints are the errors that the daemons have logged, but for those that have to be, and for what the holder says of their deaths.
func (v *volume) complaints(from int, right string) error {
	for line := range strings.Lines(v.daemon.Log().Text()[from:]) {
		if strings.Contains(line, "level=ERROR") && !strings.Contains(line, "the daemon died") && (right == "" || !strings.Contains(line, right)) {
			return fmt.Errorf("tierfs said: %s", line)
		}
	}
	return nil
}

// goesOn waits until each broker of the load has written something from its beginning to its end.
func (l *load) goesOn() error {
	var from [loadPartitions]int64
	for i := range from {
		from[i] = l.done[i].Load()
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		waits := false
		for i := range from {
			waits = waits || l.done[i].Load() < from[i]+2
		}
		l.mu.Lock()
		err := errors.Join(l.failed...)
		l.mu.Unlock()
		switch {
		case err != nil || !waits:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("the load does not go on within %v", patience)
		}
	}
}

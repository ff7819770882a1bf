package integration

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/proxy"
)

// hungLimit is how long a daemon may give no sign of life before it is replaced.
const hungLimit = 30 * time.Second

// TestHungDaemon stops the daemon: it is replaced after the limit, and who waits goes on.
func TestHungDaemon(t *testing.T) {
	t.Parallel()
	eachWrites(t, func(t *testing.T, mode string) {
		t.Parallel()
		p := newPlain(t, writing(fsStore(t), mode), "", "cold", "held")
		p.mountAs(mode)
		p.evict()
		pid, err := p.daemon.PID(daemon.Serves)
		p.must(err)
		began := time.Now()
		p.must(unix.Kill(pid, unix.SIGSTOP))
		name := p.segmentsIn("cold")[0]
		// Another process waits: a child that this one forks would wait for what this one has open there.
		reader := exec.Command("cat", p.view(name))
		var got strings.Builder
		reader.Stdout = &got
		waits, err := child.Start(reader)
		p.must(err)
		select {
		case <-waits.Done():
		case <-time.After(5 * time.Minute): // more than the limit only on a machine that is too busy
			t.Error("a daemon that is stopped is not replaced")
			p.must(unix.Kill(pid, unix.SIGCONT))
			p.must(waits.Kill())
		}
		if got.String() != string(p.logs[name]) {
			t.Errorf("read were %d bytes of %d", got.Len(), len(p.logs[name]))
		}
		took := time.Since(began)
		p.must(p.daemon.TakenOver(p.ctx, 1))
		t.Logf("replaced after %v", took)
		if took < hungLimit/2 {
			t.Errorf("replaced after %v", took)
		}
		if !strings.Contains(p.daemon.Log().Text(), "the daemon hangs and is killed") {
			t.Error("nobody said that it hung")
		}
		p.allWhole()
		p.stop()
	})
}

// TestHungStore lets reads and uploads wait for a store for longer than a daemon may hang: that is another thing.
func TestHungStore(t *testing.T) {
	t.Parallel()
	eachWrites(t, func(t *testing.T, mode string) {
		t.Parallel()
		store, faults := faultyStore(t)
		p := newPlain(t, writing(store, mode), "[fetch]\ntimeout = \"10 m\"\n", "cold", "held")
		p.mountAs(mode)
		p.evict()
		p.must(faults.Set(p.ctx, proxy.Hang))
		names := p.segmentsIn("cold")
		readers := []*reading{p.reads(names[0]), p.reads(names[1])}
		p.roll("cold-0")
		before := p.status()
		for until := time.Now().Add(hungLimit * 4 / 3); time.Now().Before(until); time.Sleep(time.Second) {
			if s := p.status(); s.PID != before.PID || s.Takeovers != 0 {
				t.Fatalf("a store that hangs was taken for a daemon that does: %+v", s)
			}
			p.whole(p.segmentsIn("held")[0])
		}
		for _, r := range readers {
			select {
			case <-r.Done():
				t.Errorf("a read did not wait: status %d, %s", r.ExitCode(), r.said.String())
			default:
			}
		}
		p.must(faults.Set(p.ctx, proxy.Pass))
		for _, r := range readers {
			p.must(r.ends(2 * time.Minute))
			if r.ExitCode() != 0 || r.got.String() != string(p.logs[r.name]) {
				t.Errorf("%s: %d bytes of %d, status %d, %s", r.name, r.got.Len(), len(p.logs[r.name]), r.ExitCode(), r.said.String())
			}
		}
		p.allWhole()
		p.stop()
	})
}

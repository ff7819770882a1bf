package integration

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
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

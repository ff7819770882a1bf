package integration

import (
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/rig"
)

// takeovers is how often tierfs is killed, and upgraded, under a broker.
func takeovers() (kills, upgrades int) {
	if soak() {
		return 500, 50
	}
	return 20, 5
}

// TestTakeover ends tierfs by SIGKILL at any moment, and hands the mount over to other binaries, while a broker is written to and
// read from, hot and cold, and while another process does all else to files. Nobody notices but by a pause.
func TestTakeover(t *testing.T) {
	t.Parallel()
	f := newFixture(t, fsStore(t), rig.Options{Binary: checked, Settings: "[retention]\ndelete_grace = \"1 s\"\n"})
	f.up()
	run := f.load()
	evicted, sizes := f.remote(), f.segments()
	pid := f.Broker.PID()
	prober := startProbe(t, filepath.Join(f.View(), "probe"))

	binaries := []string{copyOf(t, checked), copyOf(t, checked)}
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	kills, upgrades := takeovers()
	var cold *kafka.Call
	for n := uint64(1); n <= uint64(kills+upgrades); n++ {
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond) // a random moment
		if n%uint64((kills+upgrades)/upgrades) == 0 {
			binary := binaries[int(n)%2]
			f.tierfsOf(binary, "upgrade", f.View())
			if s := f.status(); s.Binary != binary {
				t.Fatalf("after the upgrade serves %s", s.Binary)
			}
		} else {
			_, err := f.Daemon.KillRole(daemon.Serves)
			f.must(err)
			f.must(f.Daemon.TakenOver(f.ctx, n))
		}
		if n%5 == 1 {
			if cold != nil {
				_, err := cold.Wait(f.ctx)
				f.must(err)
			}
			f.must(f.Forget())
			cold = f.Go("consume", "topic=durable")
		}
	}
	_, err := cold.Wait(f.ctx)
	f.must(err)
	seen, err := prober.stop(f.ctx)
	f.must(err)
	t.Logf("probe: %d rounds, longest calls %v", seen.Rounds, seen.Longest)
	if s := f.status(); s.Takeovers != uint64(kills+upgrades) || s.Holder.PID != f.Daemon.Process().PID() {
		t.Errorf("status says %+v", s)
	}
	if !f.Broker.Process().Running() || f.Broker.PID() != pid {
		t.Error("the broker has noticed")
	}
	f.finish(run, evicted, sizes, 0)
	for line := range strings.Lines(f.Broker.Log().Text()) {
		if strings.Contains(line, " ERROR ") || strings.Contains(line, "IOException") {
			t.Errorf("the broker said: %s", line)
		}
	}
	if open := f.unlinked(); len(open) > 0 {
		t.Errorf("still open, but unlinked: %v", open)
	}
}

// tierfsOf runs a command of another binary than the mount's first one.
func (f *fixture) tierfsOf(binary string, args ...string) string {
	f.t.Helper()
	out, err := f.Daemon.DoWith(f.ctx, binary, args...)
	f.must(err)
	return out
}

// copyOf is the same binary as another file.
func copyOf(t *testing.T, binary string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tierfs")
	syscall.ForkLock.RLock() // a child of another test that had it open for writing could keep it from being executed
	defer syscall.ForkLock.RUnlock()
	from, err := os.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o755)
	if err == nil {
		_, err = io.Copy(to, from)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestKilledHolder ends the holder by SIGKILL: the mount lives on, gets another one, and that one does what the first one did.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), "", "cold", "held")
	p.mount()
	p.evict()
	first := p.status()
	for i := range uint64(3) {
		holder, err := p.daemon.KillRole(daemon.Holder)
		p.must(err)
		p.eventually("another holder", func() bool {
			s := p.status()
			return s.Holder.Kind == "process" && s.Holder.PID != holder
		})
		if s := p.status(); s.Takeovers != i {
			t.Errorf("%d takeovers, should be %d", s.Takeovers, i)
		}
		p.allWhole()
		_, err = p.daemon.KillRole(daemon.Serves)
		p.must(err)
		p.must(p.daemon.TakenOver(p.ctx, i+1))
		p.allWhole()
	}
	if s := p.status(); s.PID == first.PID || s.Volume != first.Volume || !s.Owner {
		t.Errorf("status says %+v", s)
	}
	_, err := p.daemon.Do(p.ctx, "unmount", p.source)
	p.must(err)
	if left := p.daemon.Processes(); len(left) > 0 {
		t.Errorf("after the unmount run %v", left)
	}
}

// TestRefusedUpgrade: a binary that cannot take over changes nothing.
func TestRefusedUpgrade(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), "", "cold")
	p.mount()
	before := p.status()
	for name, script := range map[string]string{
		"fails":     "#!/bin/sh\necho cannot do that >&2\nexit 1\n",
		"is broken": "\x7fELF, but not really",
		// It says that it can, and dies when it should.
		"dies": "#!/bin/sh\n[ \"$2\" = --check ] && exit 0\nexit 3\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tierfs")
			p.must(os.WriteFile(path, []byte(script), 0o755))
			client, _, err := admin.Connect(admin.RunDir, p.source)
			p.must(err)
			err = client.Upgrade(p.ctx, admin.UpgradeRequest{Binary: path})
			if name != "dies" && err == nil {
				t.Error("accepted")
			}
			p.allWhole()
			if after := p.status(); after.Binary != before.Binary {
				t.Errorf("%s serves", after.Binary)
			}
		})
	}
	p.stop()
}

package holder

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRestartWithAllDescriptors(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{Files: []string{"source", "lock"}})
	d := r.next()
	d.want("process", "kind")
	d.want("binary lock source", "names")
	d.ask("ready")
	d.ask("put table one")
	d.ask("put table two")
	d.ask("put gone x")
	d.ask("drop gone")
	d.ask("drop never")
	for range 3 {
		d.kill(unix.SIGKILL)
		d = r.next()
		d.want(strconv.Itoa(r.cmd.Process.Pid), "holder")
		d.want("binary lock source table", "names")
		d.want("two", "get table")
		d.want("none", "get gone")
		d.want("file source", "get source")
		d.ask("ready")
	}
	d.ask("stopping")
	d.ask("exit 7")
	if got := r.exit(); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
}

// A put and the death right behind it: the descriptor is there in the next life, and a drop has been done.
func TestPutThenDeath(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{Role: "child:rounds"})
	if got := r.exitWithin(10 * patience); got != 42 {
		t.Errorf("exit status %d, want 42", got)
	}
	if got := strings.Count(r.output(), "the daemon died and is replaced"); got != rounds {
		t.Errorf("%d deaths, want %d", got, rounds)
	}
}

func TestDeathBeforeFirstReady(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	r.next().ask("exit 3")
	if got := r.exit(); got != 3 {
		t.Errorf("exit status %d, want 3", got)
	}
}

func TestDeathWhileStopping(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.ask("stopping")
	d.kill(unix.SIGKILL)
	if got := r.exit(); got != 128+9 {
		t.Errorf("exit status %d, want 137", got)
	}
}

func TestGiveUp(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.kill(unix.SIGKILL)
	for range maxFailures - 1 {
		r.next().ask("exit 3")
	}
	d = r.next()
	d.ask("ready") // which starts the count anew
	d.kill(unix.SIGKILL)
	begin := time.Now()
	for range maxFailures {
		r.next().ask("exit 4")
	}
	if got := r.exit(); got != 4 {
		t.Errorf("exit status %d, want 4", got)
	}
	if took := time.Since(begin); took < 1500*time.Millisecond {
		t.Errorf("%d starts within %v", maxFailures, took)
	}
	if !strings.Contains(r.output(), ErrGaveUp.Error()) {
		t.Error("it does not say that it gave up")
	}
}

// A machine that is short of something for a while takes no mount down.
func TestScarcity(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	var limit unix.Rlimit
	check(t, unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &limit))
	check(t, unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}, nil))
	d.kill(unix.SIGKILL)
	r.none(3 * time.Second) // in which failures would be counted to the end
	check(t, unix.Prlimit(r.cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil))
	r.next().ask("ready")
}

func TestDelay(t *testing.T) {
	want := []time.Duration{100, 200, 400, 800, 1600, 2000, 2000}
	for i, w := range want {
		if got := delay(i + 1); got != w*time.Millisecond {
			t.Errorf("after %d failures: %v, want %v", i+1, got, w*time.Millisecond)
		}
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	for sig, name := range map[unix.Signal]string{unix.SIGTERM: "terminated", unix.SIGINT: "interrupt", unix.SIGHUP: "hangup"} {
		check(t, r.cmd.Process.Signal(sig))
		d.want(name, "signal")
	}
	time.Sleep(2 * settle) // a signal that ends the context, too, comes once
	d.want("0", "pending")
	d.ask("stopping")
	d.ask("exit 0")
	if got := r.exit(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

func TestEndOfContextIsForwarded(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	check(t, r.cmd.Process.Signal(unix.SIGUSR1))
	d.want("terminated", "signal")
	d.ask("stopping")
	d.ask("exit 0")
	if got := r.exit(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// A signal to a supervisor whose daemon is not ready again waits; a second one does not.
func TestSignalsWaitForReady(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.kill(unix.SIGKILL)
	d = r.next()
	check(t, r.cmd.Process.Signal(unix.SIGTERM))
	r.says("a signal waits for the next daemon")
	if strings.Contains(r.output(), "passed on") {
		t.Error("the signal went to a daemon that was not ready")
	}
	d.ask("exit 1") // and to none: the next one gets it
	d = r.next()
	check(t, r.cmd.Process.Signal(unix.SIGINT))
	d.want("interrupt", "signal")
	d.ask("ready")
	d.want("terminated", "signal")
	// It dies before it could do what it was asked for.
	d.kill(unix.SIGKILL)
	d = r.next()
	d.ask("ready")
	d.want("terminated", "signal")
}

func TestHungDaemonIsReplaced(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	r := startRig(t, plan{Hang: limit})
	d := r.next()
	d.want("1s", "every")
	time.Sleep(limit + limit/2) // nobody is killed while it starts
	d.ask("ready")
	for begin := time.Now(); time.Since(begin) < limit+limit/2; time.Sleep(limit / 10) {
		d.ask("beat")
	}
	begin := time.Now()
	d.kill(unix.SIGSTOP)
	d = r.next()
	if took := time.Since(begin); took < limit/2 {
		t.Errorf("replaced after %v", took)
	}
	d.ask("ready")
	d.ask("stopping") // from now on nobody waits for beats
	time.Sleep(limit + limit/2)
	d.ask("exit 0")
	if got := r.exit(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// A successor may take its time, but not for ever.
func TestHungSuccessorIsReplaced(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond
	r := startRig(t, plan{Hang: limit})
	d := r.next()
	d.ask("ready")
	d.kill(unix.SIGKILL)
	begin := time.Now()
	r.next() // and hangs
	d = r.next()
	if took := time.Since(begin); took < startLimit*limit {
		t.Errorf("replaced after %v", took)
	}
	d.ask("ready")
	d.ask("stopping")
	d.ask("exit 0")
	if got := r.exit(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// A supervisor that did not run for long has not heard the daemon, which is no fault of the daemon.
func TestStoppedSupervisorKillsNobody(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	r := startRig(t, plan{Hang: limit})
	d := r.next()
	d.ask("ready")
	check(t, r.cmd.Process.Signal(unix.SIGHUP))
	d.want("hangup", "signal") // it has heard READY before
	check(t, r.cmd.Process.Signal(unix.SIGSTOP))
	time.Sleep(2*limit + late)
	check(t, r.cmd.Process.Signal(unix.SIGCONT))
	time.Sleep(limit / 4) // in which the daemon is silent, but not for too long
	d.ask("beat")
	d.ask("stopping")
	d.ask("exit 0")
	if got := r.exit(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// A daemon that floods its supervisor with nonsense cannot keep it from its work, nor fill its log.
func TestFlood(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	before := r.descriptors()
	d.ask("flood")
	r.says("not understood")
	check(t, r.cmd.Process.Signal(unix.SIGTERM))
	d.want("terminated", "signal")
	d.ask("ready")
	d.kill(unix.SIGKILL)
	r.next().ask("ready")
	if after := r.descriptors(); after != before {
		t.Errorf("%d descriptors are open, before there were %d", after, before)
	}
	if n := strings.Count(r.output(), "not understood"); n > 10 {
		t.Errorf("%d lines in the log", n)
	}
}

func TestBadMessages(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	for _, raw := range []string{"", "x", "FDSTORE=1|FDNAME=x", "FDSTOREREMOVE=1", "FDSTOREREMOVE=1|FDNAME=binary", strings.Repeat("y", maxMessage-10)} {
		d.ask("raw %s", raw)
	}
	d.ask("put table x")
	d.kill(unix.SIGKILL)
	d = r.next()
	d.want("binary table", "names")
}

// The first thread of a daemon may be gone while others live, and write.
func TestNeverTwo(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	hold := holdExit(t, d.pid)
	d.kill(unix.SIGKILL)
	r.none(2 * time.Second)
	hold()
	r.next().ask("ready")
}

func TestWhatADaemonInherits(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	check(t, err)
	want := "false " + strings.TrimSpace(string(score))
	if mayUseResources(t) {
		want = "true -900"
	}
	d.want(want+" /dev/null true", "flags")
	d.ask("ready")
	d.ask("stopping")
	d.ask("exit 0")
	r.exit()
	if says := strings.Contains(r.output(), "PR_SET_IO_FLUSHER was refused"); says == mayUseResources(t) {
		t.Errorf("the supervisor says that PR_SET_IO_FLUSHER was refused: %v", says)
	}
}

// mayUseResources says whether this process has CAP_SYS_RESOURCE.
func mayUseResources(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	check(t, err)
	_, rest, _ := strings.Cut(string(b), "CapEff:\t")
	line, _, _ := strings.Cut(rest, "\n")
	caps, err := strconv.ParseUint(line, 16, 64)
	check(t, err)
	return caps&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestNoDescriptorLeaks(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.ask("put table x")
	d.ask("put other x")
	d.kill(unix.SIGKILL) // when the next one is there, the supervisor has heard all
	d = r.next()
	d.ask("ready")
	holder, daemon := r.descriptors(), d.ask("fds")
	for i := range 20 {
		d.ask("put table %d", i)
		d.ask("get table")
		d.ask("drop other")
		d.ask("put other %d", i)
	}
	d.want(daemon, "fds")
	for range 5 {
		d.kill(unix.SIGKILL)
		d = r.next()
		d.ask("ready")
		d.want(daemon, "fds")
	}
	if got := r.descriptors(); got != holder {
		t.Errorf("the supervisor has %d descriptors open, before it had %d", got, holder)
	}
}

// descriptors counts what the supervisor has open.
func (r *rig) descriptors() int {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(r.cmd.Process.Pid), "fd"))
	check(r.t, err)
	return len(entries)
}

package holder

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pidOf returns the holder that a daemon has, and makes sure that it does not outlive the test.
func (r *rig) pidOf(d *tester) int {
	r.t.Helper()
	pid, err := strconv.Atoi(d.ask("holder"))
	check(r.t, err)
	r.t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) }) // has ended, as a rule
	return pid
}

func waitFor(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	check(t, err)
	defer closeFD(fd)
	if !ended(fd, patience) {
		t.Fatalf("process %d does not end", pid)
	}
}

// gone waits until a process was reaped, too.
func gone(t *testing.T, pid int) {
	t.Helper()
	for until := time.Now().Add(patience); unix.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("nobody reaps %d", pid)
		}
	}
}

// copyOfBinary is another file that works as well.
func (r *rig) copyOfBinary() string {
	r.t.Helper()
	from, err := os.Open("/proc/self/exe")
	check(r.t, err)
	path := filepath.Join(r.plan.Dir, "copy")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	check(r.t, err)
	_, err = io.Copy(to, from)
	check(r.t, err)
	check(r.t, from.Close())
	check(r.t, to.Close())
	return path
}

// garbage is a file that cannot be executed.
func (r *rig) garbage() string {
	r.t.Helper()
	path := filepath.Join(r.plan.Dir, "garbage")
	check(r.t, os.WriteFile(path, []byte("no program"), 0o700))
	return path
}

func TestHolderDies(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{Files: []string{"source"}, Hang: time.Minute})
	d := r.next()
	d.ask("ready")
	d.ask("put a 1")
	check(t, r.cmd.Process.Kill())
	r.exit()
	d.ask("lost")
	d.want("none", "kind")
	d.want("0", "holder")
	d.ask("put b 2") // is no error, and the next holder gets it
	d.ask("drop a")
	d.ask("beat")
	before := ""
	for range 3 {
		d.ask("adopt")
		d.want("process", "kind")
		d.want("30s", "every")
		if now := d.ask("fds"); before != "" && now != before {
			t.Errorf("%s descriptors are open, before there were %s", now, before)
		} else {
			before = now
		}
		pid := r.pidOf(d)
		check(t, unix.Kill(pid, unix.SIGKILL))
		d.ask("lost")
		gone(t, pid)
	}
	d.ask("adopt")
	d.ask("put c 3")
	pid := r.pidOf(d)
	d.kill(unix.SIGKILL)
	d = r.next()
	d.want(strconv.Itoa(pid), "holder")
	d.want("b binary c source", "names")
	d.want("2", "get b")
	d.ask("ready")
	check(t, unix.Kill(pid, unix.SIGTERM))
	d.want("terminated", "signal")
	d.ask("stopping")
	d.ask("exit 0")
	waitFor(t, pid)
}

// The daemon that was adopted ends as it should.
func TestAdoptedDaemonStops(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.ask("adopt") // in place of a holder that lives
	if got := r.exit(); got != -1 {
		t.Errorf("the supervisor of before ended with %d, and was not killed", got)
	}
	pid := r.pidOf(d)
	d.ask("stopping")
	d.send("adopt")
	if got := d.read(); got != "error "+ErrStopping.Error() {
		t.Errorf("adopt: %s", got)
	}
	d.ask("exit 5")
	waitFor(t, pid)
	r.says(`msg="the daemon has ended" status=0`)
	r.none(100 * time.Millisecond)
}

// Both die at once: nobody is left, and nothing hangs.
func TestAdoptWhileDying(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.send("adopt")
	r.says("took over as the holder")
	d.kill(unix.SIGKILL)
	d = r.next()
	d.ask("ready")
	pid := r.pidOf(d)
	d.ask("stopping")
	d.ask("exit 0")
	waitFor(t, pid)
}

// A holder that is stopped is lost when its queue is full, and cannot come back when there is another.
func TestStoppedHolderIsReplaced(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	check(t, r.cmd.Process.Signal(unix.SIGSTOP))
	for d.ask("kind") == "process" {
		d.ask("put x 1")
	}
	d.ask("lost")
	d.ask("adopt")
	if got := r.exit(); got != -1 {
		t.Errorf("the stopped supervisor ended with %d, and was not killed", got)
	}
	pid := r.pidOf(d)
	d.kill(unix.SIGKILL)
	d = r.next()
	d.want("binary x", "names")
	d.ask("ready")
	d.ask("stopping")
	d.ask("exit 0")
	waitFor(t, pid)
}

func TestAdoptFails(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.ask("open binary %s", "/bin/true")
	fds := d.ask("fds")
	for range 2 {
		d.send("adopt")
		if got := d.read(); got != `error start a holder: the new holder died, or said ""` {
			t.Errorf("adopt: %s", got)
		}
	}
	d.want("none", "kind")
	d.ask("open binary %s", "/proc/self/exe")
	d.ask("adopt")
	d.want("process", "kind")
	d.want(fds, "fds")
	pid := r.pidOf(d)
	d.ask("stopping")
	d.ask("exit 0")
	waitFor(t, pid)
}

func TestExec(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{Files: []string{"source"}, Hang: time.Minute})
	d := r.next()
	d.ask("ready")
	d.ask("put table 1")
	pid, copied, fds := d.pid, r.copyOfBinary(), ""
	for range 3 {
		d.send("exec %s", copied)
		d = r.next()
		if d.pid != pid {
			t.Errorf("pid %d, before it was %d", d.pid, pid)
		}
		d.want(copied, "exe")
		d.want("process", "kind")
		d.want("30s", "every")
		d.want(strconv.Itoa(r.cmd.Process.Pid), "holder")
		d.want("binary source table", "names")
		d.want("1", "get table")
		d.ask("ready")
		if now := d.ask("fds"); fds != "" && now != fds {
			t.Errorf("%s descriptors are open, before there were %s", now, fds)
		} else {
			fds = now
		}
	}
	d.ask("put table 2")
	d.kill(unix.SIGKILL)
	d = r.next()
	d.want(copied, "exe")
	d.want("2", "get table")
	d.ask("ready")
	d.ask("stopping")
	d.ask("exit 0")
	if got := r.exit(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
}

// An exec that fails changes nothing.
func TestExecFails(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.ask("put table 1")
	exe := d.ask("exe")
	fds, inherited := d.ask("fds"), d.ask("inherited")
	d.send("exec %s", r.garbage())
	if got := d.read(); got != "error execute the new binary: exec format error" {
		t.Errorf("exec: %s", got)
	}
	d.want(fds, "fds")
	d.want("process", "kind")
	d.want(inherited, "inherited")
	d.kill(unix.SIGKILL)
	d = r.next()
	d.want(exe, "exe")
	d.want("1", "get table")
	d.ask("ready")
}

// A new program that dies before it is ready is not tried again.
func TestExecOfWhatDies(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	exe, copied := d.ask("exe"), r.copyOfBinary()
	d.send("exec %s", copied)
	d = r.next()
	d.want(copied, "exe")
	d.ask("exit 3")
	d = r.next()
	d.want(exe, "exe")
	d.ask("ready")
	r.says("the one before is used again")
}

// The same, with a binary that is only put: the next start runs it.
func TestPutOfWhatDies(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	exe := d.ask("exe")
	d.ask("open binary %s", r.garbage())
	d.kill(unix.SIGKILL)
	d = r.next()
	d.want(exe, "exe")
	r.says("the one before is used again")
	d.ask("ready")
	copied := r.copyOfBinary()
	d.ask("open binary %s", copied)
	d.kill(unix.SIGKILL)
	d = r.next()
	d.want(copied, "exe")
	d.ask("ready")
	d.kill(unix.SIGKILL)
	r.next().want(copied, "exe")
}

// After an exec the process is no longer the one that started its holder, but still its parent.
func TestExecAfterAdopt(t *testing.T) {
	t.Parallel()
	r := startRig(t, plan{})
	d := r.next()
	d.ask("ready")
	d.ask("adopt")
	pid := r.pidOf(d)
	d.send("exec /proc/self/exe")
	d = r.next()
	d.want(strconv.Itoa(pid), "holder")
	d.ask("ready")
	check(t, unix.Kill(pid, unix.SIGKILL))
	d.ask("lost")
	gone(t, pid)
	d.ask("adopt")
	pid = r.pidOf(d)
	d.ask("stopping")
	d.ask("exit 0")
	waitFor(t, pid)
}

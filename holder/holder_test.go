package holder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// patience is for what happens at once as a rule.
const patience = 30 * time.Second

// TestMain makes this binary a supervisor or a daemon, if its first argument says so.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "child:supervise":
			os.Exit(superviseChild(os.Args[2]))
		case "child:adopt":
			os.Exit(adoptChild(os.Args[2]))
		case "child:daemon":
			os.Exit(daemonChild(os.Args[2]))
		case "child:rounds":
			os.Exit(roundsChild())
		}
	}
	goleak.VerifyTestMain(m)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A plan is what a test wants of its supervisor and daemons.
type plan struct {
	Dir    string // has the control socket "ctl" and the lock "alive"
	Role   string // of the daemon
	Files  []string
	Hang   time.Duration
	Notify string
}

func (p plan) json() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (p plan) args() []string { return []string{"tierfs-daemon", p.Role, p.json()} }

func fail(args ...any) int {
	fmt.Fprintln(os.Stderr, args...)
	return 99
}

func readPlan(s string) (p plan) {
	if err := json.Unmarshal([]byte(s), &p); err != nil {
		panic(err)
	}
	return p
}

func superviseChild(arg string) int {
	p := readPlan(arg)
	binary, err := os.Open("/proc/self/exe")
	if err != nil {
		return fail(err)
	}
	opt := Options{Binary: binary, Files: map[string]*os.File{}, Notify: p.Notify}
	for _, name := range p.Files {
		if opt.Files[name], err = os.Open(filepath.Join(p.Dir, name)); err != nil {
			return fail(err)
		}
	}
	return runSupervise(p, opt)
}

func adoptChild(arg string) int {
	opt, err := Inherit(os.Getenv)
	if err != nil {
		return fail(err)
	}
	return runSupervise(readPlan(arg), opt)
}

func runSupervise(p plan, opt Options) int {
	opt.Args, opt.Env, opt.Hang = p.args(), os.Environ(), p.Hang
	opt.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	defer stop()
	status, err := Supervise(ctx, opt)
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervise:", err)
	}
	return status
}

// A syncBuffer takes the output of children.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A rig is a supervisor in a process of its own, and a socket to which its daemons come to be told what to do.
type rig struct {
	t    *testing.T
	plan plan
	cmd  *exec.Cmd
	ctl  *net.UnixListener
	log  *syncBuffer
	dead chan struct{} // closed when the supervisor has ended
}

func newRig(t *testing.T, p plan) *rig {
	t.Helper()
	p.Dir = t.TempDir()
	if p.Role == "" {
		p.Role = "child:daemon"
	}
	for _, name := range p.Files {
		check(t, os.WriteFile(filepath.Join(p.Dir, name), []byte("file "+name), 0o600))
	}
	ctl, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(p.Dir, "ctl"), Net: "unixpacket"})
	check(t, err)
	r := &rig{t: t, plan: p, ctl: ctl, log: &syncBuffer{}, dead: make(chan struct{})}
	t.Cleanup(func() { _ = ctl.Close() })
	return r
}

func startRig(t *testing.T, p plan) *rig {
	t.Helper()
	r := newRig(t, p)
	r.supervise()
	return r
}

func (r *rig) supervise() {
	r.t.Helper()
	r.cmd = exec.Command("/proc/self/exe", "child:supervise", r.plan.json())
	out, err := os.CreateTemp(r.plan.Dir, "log") // a pipe would be kept open by a daemon that outlives its supervisor
	check(r.t, err)
	r.cmd.Stdout, r.cmd.Stderr = out, out
	r.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	check(r.t, r.cmd.Start())
	go func() {
		_ = r.cmd.Wait() // the status is in ProcessState
		close(r.dead)
	}()
	r.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // may have ended
		<-r.dead
		if r.t.Failed() {
			r.t.Logf("supervisor and daemons said:\n%s", r.output())
		}
		check(r.t, out.Close())
	})
}

func (r *rig) output() string {
	names, err := filepath.Glob(filepath.Join(r.plan.Dir, "log*"))
	check(r.t, err)
	var all strings.Builder
	for _, name := range names {
		b, err := os.ReadFile(name)
		check(r.t, err)
		all.Write(b)
	}
	return all.String()
}

// exit waits for the supervisor's end and returns its status.
func (r *rig) exit() int {
	r.t.Helper()
	return r.exitWithin(patience)
}

func (r *rig) exitWithin(d time.Duration) int {
	r.t.Helper()
	select {
	case <-r.dead:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(d):
		r.t.Fatal("the supervisor does not end")
		return 0
	}
}

// A tester is the connection to one daemon process.
type tester struct {
	t    *testing.T
	conn *net.UnixConn
	pid  int
}

// next waits for the next daemon. Each proves with a lock that it is alone.
func (r *rig) next() *tester {
	r.t.Helper()
	check(r.t, r.ctl.SetDeadline(time.Now().Add(patience)))
	conn, err := r.ctl.AcceptUnix()
	check(r.t, err)
	d := &tester{t: r.t, conn: conn}
	r.t.Cleanup(func() { _ = conn.Close() })
	hello := d.read()
	if n, err := fmt.Sscanf(hello, "alone %d", &d.pid); n != 1 {
		r.t.Fatalf("a daemon said %q: %v", hello, err)
	}
	return d
}

// none fails if a daemon starts within d.
func (r *rig) none(d time.Duration) {
	r.t.Helper()
	check(r.t, r.ctl.SetDeadline(time.Now().Add(d)))
	if conn, err := r.ctl.AcceptUnix(); !errors.Is(err, os.ErrDeadlineExceeded) {
		r.t.Fatalf("a daemon was started: %v %v", conn, err)
	}
}

// says waits until the supervisor has said something.
func (r *rig) says(text string) {
	r.t.Helper()
	for until := time.Now().Add(patience); !strings.Contains(r.output(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			r.t.Fatalf("the supervisor never says %q", text)
		}
	}
}

// holdExit lets a process that is killed not end (as one that sits in the kernel) until the function it returns is called.
func holdExit(t *testing.T, pid int) (let func()) {
	t.Helper()
	begin, end, held := make(chan error), make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // a tracer is a thread; it ends with this goroutine
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		if errno != 0 {
			begin <- errno
			return
		}
		begin <- nil
		<-end
		var ws unix.WaitStatus
		_, err := unix.Wait4(pid, &ws, unix.WALL, nil)
		held <- errors.Join(err, unix.PtraceDetach(pid))
	}()
	check(t, <-begin)
	return func() {
		close(end)
		check(t, <-held)
	}
}

func (d *tester) read() string {
	d.t.Helper()
	check(d.t, d.conn.SetDeadline(time.Now().Add(patience)))
	buf := make([]byte, 4096)
	n, err := d.conn.Read(buf)
	if err != nil {
		d.t.Fatalf("the daemon does not answer: %v", err)
	}
	return string(buf[:n])
}

func (d *tester) send(format string, args ...any) {
	d.t.Helper()
	_, err := fmt.Fprintf(d.conn, format, args...)
	check(d.t, err)
}

// ask sends a command and wants the answer "ok", with what follows it returned.
func (d *tester) ask(format string, args ...any) string {
	d.t.Helper()
	d.send(format, args...)
	answer := d.read()
	rest, ok := strings.CutPrefix(answer, "ok")
	if !ok {
		d.t.Fatalf("%s: the daemon says %q", fmt.Sprintf(format, args...), answer)
	}
	return strings.TrimPrefix(rest, " ")
}

func (d *tester) want(want, format string, args ...any) {
	d.t.Helper()
	if got := d.ask(format, args...); got != want {
		d.t.Errorf("%s: got %q, want %q", fmt.Sprintf(format, args...), got, want)
	}
}

func (d *tester) kill(sig unix.Signal) {
	d.t.Helper()
	check(d.t, unix.Kill(d.pid, sig))
}

// memfd returns a file with a content and no name.
func memfd(content string) (int, error) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if _, err := unix.Pwrite(fd, []byte(content), 0); err != nil {
		return -1, err
	}
	return fd, nil
}

func readFD(fd int) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

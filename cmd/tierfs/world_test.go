package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/mountinfo"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// asProgram makes the test binary behave as tierfs: a daemon is another process
// than the one that uses its mount.
const asProgram = "TIERFS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

// world is a source as Kafka left it, a store, and a tierfs binary.
type world struct {
	t      *testing.T
	source string
	store  string
	logs   map[string][]byte // by path below the source
	env    []string          // of commands, beside the test's own
	daemon *daemonProcess
}

func newWorld(t *testing.T, segments int) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, source: filepath.Join(dir, "source"), store: filepath.Join(dir, "store"), logs: make(map[string][]byte)}
	for _, d := range []string{w.source, w.store, filepath.Join(w.source, "orders-0")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.write("meta.properties", []byte("node.id=1\n"))
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		w.write(name, []byte("0\n1\norders 0 1000000\n"))
	}
	next := uint64(0)
	for range segments {
		log, index, end := segmenttest.Kafka(next, 8, 5, 200)
		name := fmt.Sprintf("orders-0/%020d", next)
		w.logs[name+".log"] = log
		w.write(name+".log", log)
		w.write(name+".index", index)
		next = end
	}
	t.Cleanup(w.detach)
	return w
}

func (w *world) write(name string, b []byte) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.source, name), b, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// detach ends the daemon and takes every mount off the source, however the test
// ended.
func (w *world) detach() {
	if w.daemon != nil && w.daemon.running() {
		w.daemon.kill()
	}
	for {
		m, ok, err := mountinfo.At(w.source)
		if err != nil || !ok || m.Type != mountinfo.FSType {
			return
		}
		if err := unix.Unmount(w.source, unix.MNT_DETACH); err != nil {
			w.t.Errorf("unmount %s: %v", w.source, err)
			return
		}
		_ = os.Remove(admin.SocketPath(admin.RunDir, m.Source)) // a killed daemon's, if it is there
	}
}

// worlds tells the processes of one mount from those of another.
var worlds atomic.Int64

// daemonProcess is a running `tierfs mount`: a holder, and the daemon that is its child.
type daemonProcess struct {
	cmd   *exec.Cmd     // of the holder
	mark  string        // in the environment of both
	ended chan struct{} // closed when both have ended

	mu    sync.Mutex
	lines bytes.Buffer  // guarded by mu: stderr
	said  chan struct{} // guarded by mu: closed at the next line
}

func (d *daemonProcess) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.said)
	d.said = make(chan struct{})
	return d.lines.Write(b)
}

func (d *daemonProcess) log() (string, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lines.String(), d.said
}

func (d *daemonProcess) running() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// processes are the holder and the daemon, as far as they live.
func (d *daemonProcess) processes() (pids []int) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(d.mark+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill ends all of them, and none may start another one while it lasts.
func (d *daemonProcess) kill() {
	for all := d.processes(); len(all) > 0; all = d.processes() {
		for _, s := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
			for _, pid := range all {
				_ = unix.Kill(pid, s)
			}
		}
	}
	<-d.ended
}

// await waits until the log says something so many times.
func (d *daemonProcess) await(t *testing.T, what string, times int) {
	t.Helper()
	timeout := time.After(patience)
	for {
		text, more := d.log()
		if strings.Count(text, what) >= times {
			return
		}
		select {
		case <-more:
		case <-d.ended:
			text, _ = d.log()
			t.Fatalf("the daemon ended without saying %q:\n%s", what, text)
		case <-timeout:
			t.Fatalf("the daemon does not say %q:\n%s", what, text)
		}
	}
}

// command is a `tierfs mount` that does not run yet.
func (w *world) command(args ...string) *daemonProcess {
	args = append([]string{"mount", "--store", "fs:" + w.store, "--cache-size", "64 MiB",
		"--retention-default-local-retention-age", "unlimited", w.source}, args...)
	d := &daemonProcess{cmd: exec.Command("/proc/self/exe", args...), ended: make(chan struct{}), said: make(chan struct{})}
	d.mark = fmt.Sprintf("%s=%s %d", asProgram, w.source, worlds.Add(1))
	d.cmd.Env = append(os.Environ(), d.mark)
	d.cmd.Stderr = d
	return d
}

// start runs `tierfs mount` and returns at once.
func (w *world) start(args ...string) *daemonProcess {
	w.t.Helper()
	return w.launch(w.command(args...))
}

func (w *world) launch(d *daemonProcess) *daemonProcess {
	w.t.Helper()
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(d.ended)
		_ = d.cmd.Wait()
	}()
	w.daemon = d
	return d
}

// mount mounts and waits until reads work.
func (w *world) mount(args ...string) {
	w.t.Helper()
	w.start(args...).await(w.t, "msg=mounted", 1)
}

// result is how a command ended.
type result struct {
	stdout, stderr string
	code           int
}

// run runs a command of tierfs.
func (w *world) run(args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(append(os.Environ(), asProgram+"=1"), w.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// must runs a command that has to succeed.
func (w *world) must(args ...string) string {
	w.t.Helper()
	r := w.run(args...)
	if r.code != 0 {
		w.t.Fatalf("tierfs %s: exit status %d: %s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// fails runs a command that has to fail with one line that has all of the words.
func (w *world) fails(code int, words []string, args ...string) {
	w.t.Helper()
	r := w.run(args...)
	if r.code != code || strings.Count(r.stderr, "\n") != 1 {
		w.t.Errorf("tierfs %s: exit status %d, want %d and one line; stderr:\n%s", strings.Join(args, " "), r.code, code, r.stderr)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			w.t.Errorf("tierfs %s: %q is not in the error: %s", strings.Join(args, " "), word, r.stderr)
		}
	}
}

func (w *world) status() admin.Status {
	w.t.Helper()
	var s admin.Status
	if err := json.Unmarshal([]byte(w.must("status", "--json", w.source)), &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// readBack compares every segment as the broker sees it with what it wrote.
func (w *world) readBack() {
	w.t.Helper()
	for name, want := range w.logs {
		got, err := os.ReadFile(filepath.Join(w.source, name))
		if err != nil || !bytes.Equal(got, want) {
			w.t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(want), err)
		}
	}
}

// stop ends the daemon by SIGTERM and wants a clean end.
func (w *world) stop() {
	w.t.Helper()
	if err := w.daemon.cmd.Process.Signal(unix.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	w.ended(0)
}

// ended waits for the daemon's end.
func (w *world) ended(code int) {
	w.t.Helper()
	select {
	case <-w.daemon.ended:
	case <-time.After(patience):
		text, _ := w.daemon.log()
		w.t.Fatalf("the daemon does not end:\n%s", text)
	}
	if got := w.daemon.cmd.ProcessState.ExitCode(); got != code {
		text, _ := w.daemon.log()
		w.t.Errorf("the daemon ended with status %d, want %d:\n%s", got, code, text)
	}
}

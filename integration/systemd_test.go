package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
)

// manager does for one service what systemd does for one with FileDescriptorStoreMax: it keeps the descriptors that the main process
// sends, and hands them to the next one.
type manager struct {
	t      *testing.T
	socket *net.UnixConn
	path   string
	read   sync.WaitGroup

	mu    sync.Mutex
	files map[string]*os.File // guarded by mu
	heard map[string]int      // guarded by mu: lines, and how often
	more  chan struct{}       // guarded by mu: closed at the next message
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(t.TempDir(), "notify"), files: map[string]*os.File{}, heard: map[string]int{}, more: make(chan struct{})}
	var err error
	if m.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	m.read.Go(m.listen)
	t.Cleanup(func() {
		m.socket.Close()
		m.read.Wait()
		for _, f := range m.files {
			f.Close()
		}
	})
	return m
}

func (m *manager) listen() {
	text, oob := make([]byte, 8192), make([]byte, 1024)
	for {
		n, oobn, _, _, err := m.socket.ReadMsgUnix(text, oob)
		if err != nil {
			return
		}
		m.message(string(text[:n]), descriptors(oob[:oobn]))
	}
}

func descriptors(oob []byte) (files []*os.File) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, c := range messages {
		fds, err := unix.ParseUnixRights(&c)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "kept"))
		}
		if err != nil {
			return files
		}
	}
	return files
}

func (m *manager) message(text string, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines, name := strings.Split(strings.TrimSpace(text), "\n"), ""
	for _, line := range lines {
		m.heard[line]++
		if n, ok := strings.CutPrefix(line, "FDNAME="); ok {
			name = n
		}
	}
	switch {
	case slices.Contains(lines, "FDSTORE=1") && len(files) == 1 && m.files[name] == nil:
		m.files[name] = files[0]
		files = nil
	case slices.Contains(lines, "FDSTOREREMOVE=1") && m.files[name] != nil:
		files = append(files, m.files[name])
		delete(m.files, name)
	}
	for _, f := range files { // of a barrier, too
		f.Close()
	}
	close(m.more)
	m.more = make(chan struct{})
}

// await waits until a line was heard so many times.
func (m *manager) await(line string, times int, p *child.Process) {
	m.t.Helper()
	limit := time.After(60 * time.Second)
	for {
		m.mu.Lock()
		n, more := m.heard[line], m.more
		m.mu.Unlock()
		if n >= times {
			return
		}
		select {
		case <-more:
		case <-p.Done():
			m.t.Fatalf("it ended (%v) before it said %s %d times", p.Err(), line, times)
		case <-limit:
			m.t.Fatalf("it said %s %d times, not %d", line, n, times)
		}
	}
}

// command runs a service's command with what is kept; sh tells it its own pid, as systemd does.
func (m *manager) command(env []string, args ...string) *exec.Cmd {
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "sh"}, args...)...)
	cmd.Env = append(append(os.Environ(), env...), "NOTIFY_SOCKET="+m.path, "FDSTORE=64", "WATCHDOG_USEC=10000000")
	names := []string{}
	for name, f := range m.files {
		names = append(names, name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if len(names) > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprint("LISTEN_FDS=", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	return cmd
}

// TestSystemd has the service manager keep the mount: the daemon is the main process, its death is a pause, and its clean end leaves
// nothing.
func TestSystemd(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), "", "cold", "held")
	m := newManager(t)
	var process *child.Process
	starts := 0
	start := func() {
		t.Helper()
		cmd := m.command(nil, checked, "mount", "--config", p.daemon.Config(), p.source)
		cmd.Stdout, cmd.Stderr = p.daemon.Log(), p.daemon.Log()
		var err error
		process, err = child.Start(cmd)
		p.must(err)
		starts++
		m.await("READY=1", starts, process)
	}
	start()
	t.Cleanup(func() { p.must(errors.Join(process.Kill(), detach(p.source))) })
	prober := startProbe(t, p.view("probe"))
	for i := range uint64(5) {
		s := p.status()
		if s.Holder.Kind != "systemd" || s.PID != process.PID() || s.Takeovers != i {
			t.Errorf("status says %+v", s)
		}
		p.evict()
		p.allWhole()
		p.must(process.Kill())
		start()
	}
	p.must(p.daemon.TakenOver(p.ctx, 5))
	if _, err := p.daemon.DoWith(p.ctx, copyOf(t, checked), "upgrade", p.source); err != nil {
		t.Error(err)
	}
	if s := p.status(); s.PID != process.PID() || s.Takeovers != 6 || s.Holder.Kind != "systemd" {
		t.Errorf("after the upgrade status says %+v", s)
	}
	p.allWhole()
	m.await("WATCHDOG=1", 1, process)
	seen, err := prober.stop(p.ctx)
	p.must(err)
	t.Logf("probe: %d rounds, longest calls %v", seen.Rounds, seen.Longest)
	p.must(process.Stop(60 * time.Second))
	p.must(process.Err())
	m.await("STOPPING=1", 1, process)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.files) > 0 {
		t.Errorf("still kept are %v", m.files)
	}
	if mounted, err := daemon.Mounted(p.source); err != nil || mounted {
		t.Errorf("still mounted: %v", err)
	}
}

func detach(point string) error {
	if mounted, err := daemon.Mounted(point); err != nil || !mounted {
		return err
	}
	return unix.Unmount(point, unix.MNT_DETACH)
}

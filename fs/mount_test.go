package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// childVar names what this test binary is to do as a child process. Faults on a
// mapping and reads of evicted data block a thread that the Go runtime believes to
// be running, so whoever serves a mount must not do them itself.
const childVar = "TIERFS_FS_TEST_CHILD"

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	if what := os.Getenv(childVar); what != "" {
		os.Exit(runChild(what, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// A testMount is a real mount over a fresh directory.
type testMount struct {
	t      testing.TB
	src    string // the source, by its own path
	mnt    string
	root   int
	volume *tier.Volume
	server *Server
	reg    *prometheus.Registry
	log    *syncBuffer
	cfg    mountConfig // of the last start

	// Of a mount that is taken over: what outlives each server.
	keeper *fakeKeeper
	past   []*Server // that were left
	attr   *atomic.Pointer[RootAttr]
	cut    *atomic.Uint32 // the operation that is not answered any more
	wasCut chan struct{}

	interrupts *atomic.Int32 // that the servers got
}

type mountConfig struct {
	options tier.Options
	fs      Options
	over    bool // mount over the source
	prepare func(src string)
	kept    bool   // a successor can take the mount over
	gather  bool   // the kernel gathers writes
	disk    string // where the source is; "": with the rest
}

// gathered makes the kernel gather writes.
func gathered(c *mountConfig) { c.gather = true }

// writesVar has every mount of a run in the mode "writeback", to see what differs.
const writesVar = "TIERFS_FS_TEST_WRITES"

// flush syncs a file through the mount, in another process.
func (m *testMount) flush(ctx context.Context, path string, _ uint64) error {
	out, err := child("fsync", filepath.Join(m.mnt, path)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func fsyncChild(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func mountTest(t testing.TB, configure ...func(*mountConfig)) *testMount {
	t.Helper()
	cfg := mountConfig{gather: os.Getenv(writesVar) == "writeback"}
	for _, c := range configure {
		c(&cfg)
	}
	base, err := os.MkdirTemp("", "tierfs-fs-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(base)) })
	check(t, os.Chmod(base, 0o755))
	m := &testMount{t: t, src: filepath.Join(base, "src"), mnt: filepath.Join(base, "mnt"), log: &syncBuffer{}}
	if cfg.disk != "" {
		m.src = filepath.Join(cfg.disk, "src")
	}
	check(t, os.Mkdir(m.src, 0o755))
	check(t, os.Mkdir(m.mnt, 0o755))
	if cfg.over {
		m.mnt = m.src
	}
	if cfg.prepare != nil {
		cfg.prepare(m.src)
	}
	m.start(cfg)
	return m
}

func (m *testMount) start(cfg mountConfig) {
	t := m.t
	t.Helper()
	m.cfg = cfg
	var err error
	m.root, err = unix.Open(m.src, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	root := m.root
	t.Cleanup(func() { check(t, unix.Close(root)) })
	log := slog.New(slog.NewTextHandler(m.log, nil))

	cfg.options.Root, cfg.options.Log = m.root, log
	if cfg.gather {
		cfg.fs.Writeback, cfg.options.Writeback, cfg.options.Flush = true, true, m.flush
	}
	m.volume, err = tier.Open(context.Background(), cfg.options)
	check(t, err)
	t.Cleanup(m.close)

	m.reg = prometheus.NewRegistry()
	cfg.fs.Root, cfg.fs.Volume, cfg.fs.Mountpoint, cfg.fs.Log = m.root, m.volume, m.mnt, log
	cfg.fs.FsName = "test-volume"
	cfg.fs.Metrics = metrics.New(m.reg).Fuse
	if cfg.fs.RootAttr == (RootAttr{}) {
		cfg.fs.RootAttr = RootAttr{Mode: 0o755}
	}
	m.attr = new(atomic.Pointer[RootAttr])
	m.attr.Store(&cfg.fs.RootAttr)
	if cfg.fs.SetRootAttr == nil {
		cfg.fs.SetRootAttr = func(a RootAttr) error { m.attr.Store(&a); return nil }
	}
	if cfg.kept {
		m.keep(&cfg.fs)
	}
	m.cfg.fs, m.cfg.options = cfg.fs, cfg.options
	m.server, err = Mount(context.Background(), cfg.fs)
	check(t, err)
	if m.server.Writeback() != cfg.gather {
		t.Fatalf("the kernel gathers writes: %v", m.server.Writeback())
	}
	m.noPoll()
}

// close ends the server and the volume, once for each start.
func (m *testMount) close() {
	if m.server != nil {
		m.unmount()
		m.server = nil
	}
	m.forget()
	if m.volume != nil {
		check(m.t, m.volume.Close())
		m.volume = nil
	}
}

// restart ends the server, in which nobody may have a file open, and starts
// another over the same source.
func (m *testMount) restart() {
	m.t.Helper()
	m.close()
	m.start(m.cfg)
}

// noPoll makes the kernel's first POLL fail before the Go runtime of this process,
// which also serves the mount, adds a file of it to its poller and waits.
func (m *testMount) noPoll() {
	fd, err := unix.Open(filepath.Join(m.mnt, ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(m.t, err)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	check(m.t, unix.Close(fd))
}

// unmount never leaves a mount behind: a test that failed may still have files open.
func (m *testMount) unmount() {
	err := m.server.Unmount()
	for try := 0; errors.Is(err, unix.EBUSY) && try < 100; try++ {
		// The last close of a child's descriptors may still be under way.
		time.Sleep(10 * time.Millisecond)
		err = m.server.Unmount()
	}
	if err != nil {
		m.t.Errorf("unmount: %v", err)
		if err := unix.Unmount(m.mnt, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			m.t.Errorf("detach: %v", err)
		}
	}
	select {
	case <-m.server.Done():
	case <-time.After(20 * time.Second):
		m.t.Fatal("the server does not end")
	}
	if m.t.Failed() && m.log.String() != "" {
		m.t.Logf("log of the daemon:\n%s", m.log)
	}
}

// path is a name inside the mount.
func (m *testMount) path(name ...string) string {
	return filepath.Join(append([]string{m.mnt}, name...)...)
}

// below is a name in the source.
func (m *testMount) below(name ...string) string {
	return filepath.Join(append([]string{m.src}, name...)...)
}

// count is how many requests of an operation the kernel has sent.
func (m *testMount) count(op metrics.FuseOp) int {
	m.t.Helper()
	families, err := m.reg.Gather()
	check(m.t, err)
	for _, family := range families {
		if family.GetName() != "tierfs_fuse_requests_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == op.String() {
				return int(metric.GetCounter().GetValue())
			}
		}
	}
	m.t.Fatalf("no counter of %s", op)
	return 0
}

// as runs a shell script inside the mount as another user. The shell goes there by
// itself: a fork of this process stands still until the child has its directory and
// has been executed, and so would the mount that it serves, once a garbage
// collection begins in between.
func (m *testMount) as(uid, gid uint32, script string) (string, error) {
	cmd := exec.Command("/bin/sh", "-c", `cd "$0" || exit 1; `+script, m.mnt)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// sh runs a script as root and fails the test when it does.
func (m *testMount) sh(script string) string {
	m.t.Helper()
	out, err := m.as(0, 0, script)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// dropCaches makes the kernel forget the pages of a file.
func dropPages(t testing.TB, path string) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	check(t, unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErrno(t testing.TB, what string, err error, want unix.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func stat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st
}

func oneProc(t testing.TB) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// runChild is the main function of a child process.
func runChild(what string, args []string) int {
	child, ok := children[what]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such child:", what)
		return 2
	}
	if err := child(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

var children = map[string]func(args []string) error{
	"lock":    lockChild,
	"fsync":   fsyncChild,
	"append":  appendChild,
	fullChild: fillChild, checkpointing: checkpointChild,
	"map":   mapChild,
	"model": modelChild,
}

// child starts this test binary for one of children.
func child(what string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childVar+"="+what)
	return cmd
}

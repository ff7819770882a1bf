package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// keep gives a mount what its successors need.
func (m *testMount) keep(opt *Options) {
	table, err := holder.NewTable()
	check(m.t, err)
	m.keeper = &fakeKeeper{kept: map[string]int{}}
	opt.Table, opt.Keeper, opt.polled = table, m.keeper, true
	m.cut, m.wasCut, m.interrupts = new(atomic.Uint32), make(chan struct{}, 1), new(atomic.Int32)
	opt.before = func(op uint32) {
		if op == opInterrupt {
			m.interrupts.Add(1)
		}
		if m.cut.CompareAndSwap(op, 0) {
			m.server.device.silent.Store(true)
			m.wasCut <- struct{}{}
		}
	}
}

// forget ends what outlived the servers.
func (m *testMount) forget() {
	for _, s := range m.past {
		select {
		case <-s.Done():
		case <-time.After(20 * time.Second):
			m.t.Fatal("a server that was left does not end")
		}
	}
	m.past = nil
	if m.keeper == nil {
		return
	}
	if names := m.keeper.Names(); len(names) > 0 {
		m.t.Errorf("still kept after the mount: %v", names)
	}
	m.keeper.close()
	check(m.t, m.cfg.fs.Table.Close())
	m.keeper = nil
}

// takeOver ends the server at once, as a kill would, and has another one take the
// mount over, with a volume that is opened anew.
func (m *testMount) takeOver() {
	m.t.Helper()
	fd := m.leave()
	m.reopen()
	m.succeed(fd)
}

func (m *testMount) leave() (fuse int) {
	fuse = m.server.leave()
	m.past = append(m.past, m.server)
	return fuse
}

// reopen opens the volume as a successor does: under the lock of the one before.
func (m *testMount) reopen() {
	m.t.Helper()
	lock, err := unix.FcntlInt(uintptr(m.volume.LockFD()), unix.F_DUPFD_CLOEXEC, 3)
	check(m.t, err)
	check(m.t, m.volume.Close())
	m.volume = nil
	opt := m.cfg.options
	opt.Lock, opt.Takeover = lock, true
	v, err := tier.Open(context.Background(), opt)
	check(m.t, errors.Join(err, unix.Close(lock)))
	m.volume, m.cfg.fs.Volume = v, v
}

func (m *testMount) succeed(fd int) {
	m.t.Helper()
	opt := m.cfg.fs
	opt.Fuse, opt.RootAttr = fd, *m.attr.Load()
	s, err := TakeOver(context.Background(), opt)
	if err != nil {
		m.t.Fatalf("take over: %v", err) // the mount answers nobody: see unmount
	}
	m.server = s
}

// restless takes the mount over again and again, after up to pause, until stop is
// called. Nobody else may touch m.server meanwhile, and what holds serving is at work
// while a server is: nothing of the volume runs between two of them.
func (m *testMount) restless(pause time.Duration, serving sync.Locker) (stop func() int) {
	quit, done := make(chan struct{}), make(chan struct{})
	times := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(rand.N(pause)):
			}
			serving.Lock()
			m.takeOver()
			serving.Unlock()
			times++
		}
	}()
	return func() int {
		close(quit)
		<-done
		return times
	}
}

const opInterrupt = 36

func kept(c *mountConfig) { c.kept = true }

// unanswered does a call of which one operation is carried out and not answered;
// nothing that follows is, either.
func (m *testMount) unanswered(op uint32, call func() error) (answer chan error) {
	m.t.Helper()
	m.cut.Store(op)
	answer = make(chan error, 1)
	go func() { answer <- call() }()
	select {
	case <-m.wasCut:
	case err := <-answer:
		m.t.Fatalf("nothing was cut: %v", err)
	case <-time.After(20 * time.Second):
		m.t.Fatal("the kernel does not send the request")
	}
	return answer
}

// What a server has done and not answered is sent to its successor, which answers as
// the first one would have.
func TestAnsweredBySuccessor(t *testing.T) {
	file := func(m *testMount) { check(m.t, os.WriteFile(m.path("file"), []byte("old"), 0o644)) }
	for name, tc := range map[string]struct {
		op      uint32
		prepare func(m *testMount)
		call    func(m *testMount) error
		after   string // what a shell finds
	}{
		"create": {35, nil, func(m *testMount) error {
			fd, err := unix.Open(m.path("new"), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
			if err == nil {
				_, err = unix.Write(fd, []byte("data"))
				err = errors.Join(err, unix.Close(fd))
			}
			return err
		}, "cat new && stat -c %a new"},
		"mkdir":   {9, nil, func(m *testMount) error { return unix.Mkdir(m.path("new"), 0o750) }, "stat -c %a new"},
		"mknod":   {8, nil, func(m *testMount) error { return unix.Mknod(m.path("new"), unix.S_IFIFO|0o600, 0) }, "stat -c %F new"},
		"symlink": {6, nil, func(m *testMount) error { return unix.Symlink("target", m.path("new")) }, "readlink new"},
		"link":    {13, file, func(m *testMount) error { return unix.Link(m.path("file"), m.path("new")) }, "stat -c %h new"},
		"unlink":  {10, file, func(m *testMount) error { return unix.Unlink(m.path("file")) }, "ls -A"},
		"rmdir": {11, func(m *testMount) { check(m.t, os.Mkdir(m.path("dir"), 0o755)) },
			func(m *testMount) error { return unix.Rmdir(m.path("dir")) }, "ls -A"},
		"rename": {12, file, func(m *testMount) error { return unix.Rename(m.path("file"), m.path("new")) }, "ls -A; cat new"},
		"exchange": {45, func(m *testMount) { file(m); check(m.t, os.WriteFile(m.path("other"), []byte("other"), 0o644)) },
			func(m *testMount) error {
				return unix.Renameat2(unix.AT_FDCWD, m.path("file"), unix.AT_FDCWD, m.path("other"), unix.RENAME_EXCHANGE)
			}, "cat file other"},
		"open": {14, file, func(m *testMount) error {
			fd, err := unix.Open(m.path("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}, "cat file"},
		"write": {16, file, func(m *testMount) error {
			fd, err := unix.Open(m.path("file"), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
			if err == nil {
				_, err = unix.Write(fd, []byte("+new"))
				err = errors.Join(err, unix.Close(fd))
			}
			return err
		}, "cat file"},
		"truncate": {4, file, func(m *testMount) error { return unix.Truncate(m.path("file"), 1) }, "cat file"},
		"setxattr": {21, file, func(m *testMount) error {
			return unix.Setxattr(m.path("file"), "user.name", []byte("value"), unix.XATTR_CREATE)
		}, "cat file"},
	} {
		t.Run(name, func(t *testing.T) {
			m := mountTest(t, kept)
			if tc.prepare != nil {
				tc.prepare(m)
			}
			answer := m.unanswered(tc.op, func() error { return tc.call(m) })
			m.takeOver()
			if err := <-answer; err != nil {
				t.Error(err)
			}
			got := m.sh(tc.after)
			n := mountTest(t)
			if tc.prepare != nil {
				tc.prepare(n)
			}
			check(t, tc.call(n))
			if want := n.sh(tc.after); got != want {
				t.Errorf("got %q, without a takeover %q", got, want)
			}
			m.waitFor("all handles are released", func() bool { return m.server.fs.handles.size() == 0 })
		})
	}
}

// Open files, without a name too, directories and locks outlive many servers.
func TestHandlesOutliveServers(t *testing.T) {
	m := mountTest(t, kept)
	f, err := os.Create(m.path("file"))
	check(t, err)
	nameless, err := os.Create(m.path("nameless"))
	check(t, err)
	check(t, os.Remove(m.path("nameless")))
	check(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	for i := range 20 {
		check(t, os.WriteFile(m.path(fmt.Sprint("entry", i)), nil, 0o644))
	}
	dir, err := os.Open(m.mnt)
	check(t, err)
	names, err := dir.Readdirnames(5)
	check(t, err)
	var want []byte
	for i := range 10 {
		m.takeOver()
		for _, f := range []*os.File{f, nameless} {
			_, err := fmt.Fprintln(f, "line", i)
			check(t, err)
		}
		want = fmt.Appendln(want, "line", i)
	}
	for _, f := range []*os.File{f, nameless} {
		got := make([]byte, len(want)+1)
		n, err := f.ReadAt(got, 0)
		if !bytes.Equal(got[:n], want) || !errors.Is(err, io.EOF) {
			t.Errorf("%s: %q, %v", f.Name(), got[:n], err)
		}
	}
	rest, err := dir.Readdirnames(-1)
	check(t, err)
	all := append(names, rest...)
	slices.Sort(all)
	if len(all) != 21 || len(slices.Compact(all)) != 21 {
		t.Errorf("a directory that is read over servers: %v", all)
	}
	other, err := unix.Open(m.path("file"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	check(t, err)
	wantErrno(t, "lock", unix.Flock(other, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	check(t, errors.Join(unix.Close(other), f.Close(), nameless.Close(), dir.Close()))
	m.waitFor("nothing is kept", func() bool { return len(m.keeper.Names()) == 0 })
	m.waitFor("all handles are released", func() bool { return m.server.fs.handles.size() == 0 })
	if got := m.cfg.fs.Table.Takeovers(); got != 10 {
		t.Errorf("%d takeovers are counted", got)
	}
}

// Without resent requests a server is drained, and its successor knows all the same.
func TestTakeOverDrained(t *testing.T) {
	m := mountTest(t, kept, func(c *mountConfig) { c.fs.NoResend, c.fs.Drained, c.gather = true, true, false })
	if m.server.Resend() {
		t.Fatal("it was not to be asked for")
	}
	writing := make(chan error, 1)
	quit := make(chan struct{})
	go func() {
		f, err := os.Create(m.path("file"))
		for i := 0; err == nil; i++ {
			select {
			case <-quit:
				writing <- f.Close()
				return
			default:
				_, err = fmt.Fprintln(f, i)
			}
		}
		writing <- err
	}()
	for range 20 {
		before := m.count(metrics.OpWrite)
		m.waitFor("the writer goes on", func() bool { return m.count(metrics.OpWrite) > before })
		check(t, m.server.Drain(t.Context()))
		m.takeOver()
	}
	m.server.Continue() // as after an upgrade that failed
	close(quit)
	check(t, <-writing)
	got, err := os.ReadFile(m.path("file"))
	check(t, err)
	for i, line := range strings.Split(strings.TrimSpace(string(got)), "\n") {
		if line != fmt.Sprint(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
}

// Who waits for the store waits on over a takeover, and can still be killed, although
// an earlier signal's interrupt went to the first server.
func TestColdReadersOutliveServer(t *testing.T) {
	m := tieredTest(t, kept, func(c *mountConfig) { c.options.FetchTimeout = -1 })
	m.fill(1, 200000)
	m.tierOut()
	dropPages(t, m.path(segmentPath(0)))
	fetching := make(chan struct{}, 100)
	release := make(chan struct{})
	m.store.SetHook(func(ctx context.Context, op, key string) error {
		fetching <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	defer m.store.SetHook(nil)
	start := func() *exec.Cmd {
		cmd := exec.Command("dd", "if="+m.path(segmentPath(0)), "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
		check(t, cmd.Start())
		return cmd
	}
	before := m.count(metrics.OpRead)
	victim := start()
	<-fetching
	survivor := start()
	m.waitFor("both wait", func() bool { return m.cache.Stats().Waiting == 2 })
	check(t, victim.Process.Signal(unix.SIGUSR1)) // which dd survives
	m.waitFor("the kernel's interrupt", func() bool { return m.interrupts.Load() > 0 })
	m.takeOver()
	m.waitFor("the first server is done", func() bool { return m.count(metrics.OpRead) >= before+2 })
	check(t, victim.Process.Kill())
	dead := make(chan error, 1)
	go func() { dead <- victim.Wait() }()
	select {
	case err := <-dead:
		if err == nil {
			t.Error("the victim has read something")
		}
	case <-time.After(5 * time.Second):
		t.Error("the victim does not die")
	}
	close(release)
	check(t, survivor.Wait())
}

// Whoever cannot take over says so and leaves the mount to somebody who can.
func TestTakeOverRefused(t *testing.T) {
	m := mountTest(t, kept)
	check(t, os.WriteFile(m.path("file"), []byte("data"), 0o644))
	fd := m.leave()
	opt := m.cfg.fs
	opt.Fuse = fd
	request, reply := opt.Table.Init()
	other := bytes.Clone(reply)
	other[initOutFlags] ^= 1
	check(t, opt.Table.SetInit(request, other))
	if _, err := TakeOver(t.Context(), opt); !errors.Is(err, ErrCannotTakeOver) {
		t.Errorf("another first exchange: %v", err)
	}
	check(t, opt.Table.SetInit(request, reply))
	opt.Table = nil
	if _, err := TakeOver(t.Context(), opt); !errors.Is(err, ErrCannotTakeOver) {
		t.Errorf("no table: %v", err)
	}
	m.succeed(fd)
	if got, err := os.ReadFile(m.path("file")); string(got) != "data" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// takeoverSeeds is how many random sequences run over many servers.
func takeoverSeeds() uint64 {
	if os.Getenv("TIERFS_SOAK") != "" {
		return modelSeeds()
	}
	return 1
}

// TestModelTakeOver is TestModel over many servers.
func TestModelTakeOver(t *testing.T) {
	for seed := range takeoverSeeds() {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := mountTest(t, kept)
			stop := m.restless(10*time.Millisecond, new(sync.Mutex))
			defer func() { t.Logf("%d takeovers", stop()) }()
			runModel(t, m, seed, false, nil)
		})
	}
}

// The same while segments are evicted and brought back.
func TestModelTakeOverWithEvictions(t *testing.T) {
	for seed := range takeoverSeeds() {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := tieredTest(t, kept)
			ctx, cancel := context.WithCancel(t.Context())
			evicted, ended := 0, make(chan error)
			var serving sync.Mutex
			go func() {
				var err error
				for ctx.Err() == nil && err == nil {
					var n int
					serving.Lock()
					n, err = m.tryTierOut(ctx)
					serving.Unlock()
					evicted += n
				}
				if ctx.Err() != nil {
					err = nil
				}
				ended <- err
			}()
			stop := m.restless(10*time.Millisecond, &serving)
			defer func() {
				cancel()
				check(t, <-ended)
				t.Logf("%d takeovers, %d evictions, %d GETs", stop(), evicted, m.store.Count("get"))
			}()
			runModel(t, m.in("t-0"), seed, true, nil)
		})
	}
}

func TestPosixTakeOver(t *testing.T) {
	for _, name := range posixTests() {
		t.Run(name, func(t *testing.T) {
			m := mountTest(t, kept)
			stop := m.restless(3*time.Millisecond, new(sync.Mutex))
			defer stop()
			posixtest.All[name](t, m.mnt)
		})
	}
}

package fs

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A read that the store does not answer fails at its deadline with EIO, and the
// kernel's repetition of it at once.
func TestColdReadDeadline(t *testing.T) {
	m := tieredTest(t, func(c *mountConfig) { c.options.FetchTimeout = time.Second })
	m.fill(1, 200000)
	path := m.path(segmentPath(0))
	m.tierOut()
	dropPages(t, path)
	m.store.SetHook(func(ctx context.Context, op, key string) error {
		<-ctx.Done()
		return ctx.Err()
	})
	defer m.store.SetHook(nil)
	began := time.Now()
	_, err := os.ReadFile(path)
	wantErrno(t, "read", err, unix.EIO)
	if took := time.Since(began); took < 900*time.Millisecond || took > 1900*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	if !strings.Contains(m.log.String(), "request failed") {
		t.Errorf("log: %s", m.log)
	}
}

// Who waits for the store without limit can still be killed, but no other signal
// fails the read.
func TestKillColdReader(t *testing.T) {
	m := tieredTest(t, func(c *mountConfig) { c.options.FetchTimeout = -1 })
	m.fill(1, 200000)
	m.tierOut()
	dropPages(t, m.path(segmentPath(0)))
	var waiting atomic.Int32
	release := make(chan struct{})
	m.store.SetHook(func(ctx context.Context, op, key string) error {
		waiting.Add(1)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	defer m.store.SetHook(nil)
	start := func() *exec.Cmd {
		// O_DIRECT: no read-ahead, so that the reader itself waits for the answer.
		cmd := exec.Command("dd", "if="+m.path(segmentPath(0)), "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
		check(t, cmd.Start())
		return cmd
	}
	victim, survivor := start(), start()
	m.waitFor("a fetch", func() bool { return waiting.Load() > 0 })
	for range 3 {
		check(t, survivor.Process.Signal(unix.SIGURG))
		check(t, victim.Process.Signal(unix.SIGURG))
		time.Sleep(50 * time.Millisecond)
	}
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
		close(release)
		<-dead
		return
	}
	close(release)
	check(t, survivor.Wait())
}

// A reader that was killed leaves its read-ahead behind. It does not hold the end of
// the mount up, whoever unmounts.
func TestUnmountDuringColdRead(t *testing.T) {
	for name, unmount := range map[string]func(m *tieredMount) error{
		"by the server": func(m *tieredMount) error { return m.server.Unmount() },
		"by others":     func(m *tieredMount) error { return unix.Unmount(m.mnt, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			m := tieredTest(t, func(c *mountConfig) { c.options.FetchTimeout = -1 })
			m.fill(1, 200000)
			m.tierOut()
			dropPages(t, m.path(segmentPath(0)))
			var waiting atomic.Int32
			m.store.SetHook(func(ctx context.Context, op, key string) error {
				waiting.Add(1)
				<-ctx.Done()
				return ctx.Err()
			})
			reader := exec.Command("cat", m.path(segmentPath(0)))
			check(t, reader.Start())
			m.waitFor("a fetch", func() bool { return waiting.Load() > 0 })
			check(t, reader.Process.Kill())
			_ = reader.Wait()
			m.waitFor("nobody is in it", func() bool { return unmount(m) == nil })
			select {
			case <-m.server.Done():
			case <-time.After(5 * time.Second):
				t.Error("the server does not end")
			}
		})
	}
}

// A process that has opened a segment for writing and has written none yet is a
// broker that starts: its reads wait beyond the deadline.
func TestColdReadOfABrokerThatStarts(t *testing.T) {
	const deadline = 200 * time.Millisecond
	m := tieredTest(t, func(c *mountConfig) { c.options.FetchTimeout = deadline })
	m.fill(1, 200000)
	m.tierOut()
	path := m.path(segmentPath(0))
	dropPages(t, path)
	began := time.Now()
	m.store.SetHook(func(ctx context.Context, op, key string) error {
		select {
		case <-time.After(time.Until(began.Add(5 * deadline))): // the store is back
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	defer m.store.SetHook(nil)
	read := "dd if=$0 of=/dev/null bs=4096 count=1 iflag=direct"
	if out, err := exec.Command("sh", "-c", read, path).CombinedOutput(); err == nil {
		t.Errorf("a reader waits beyond the deadline: %s", out)
	}
	if out, err := exec.Command("sh", "-c", "exec 3<>$0; exec "+read, path).CombinedOutput(); err != nil {
		t.Errorf("a broker that starts does not wait: %v: %s", err, out)
	}
	if took := time.Since(began); took < 4*deadline {
		t.Errorf("the store was back after %v", took)
	}
}

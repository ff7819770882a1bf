package child

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("CHILD_TEST_PARENT") != "" {
		parent()
	}
	goleak.VerifyTestMain(m)
}

// parent starts a child, says its pid, and dies without taking it down.
func parent() {
	p, err := Start(exec.Command("sleep", "300"))
	if err != nil {
		os.Exit(3)
	}
	os.Stdout.WriteString(strconv.Itoa(p.PID()) + "\n")
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func start(t *testing.T, script string) (*Process, *Output) {
	t.Helper()
	out, err := NewOutput(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", script)
	cmd.Stdout = out
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Kill(), out.Close()); err != nil {
			t.Error(err)
		}
	})
	return p, out
}

func TestProcess(t *testing.T) {
	t.Run("ends by itself", func(t *testing.T) {
		p, _ := start(t, "exit 3")
		<-p.Done()
		if p.ExitCode() != 3 || p.Err() == nil || p.Running() {
			t.Errorf("status %d, %v", p.ExitCode(), p.Err())
		}
		if err := p.Stop(time.Second); err != nil {
			t.Errorf("stop of one that has ended: %v", err)
		}
	})
	t.Run("stops on SIGTERM", func(t *testing.T) {
		p, out := start(t, "trap 'echo bye; exit 0' TERM; echo ready; while :; do read -t 1 < <(:) || :; done")
		if err := out.Await(t.Context(), p, 0, "ready"); err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(10 * time.Second); err != nil || p.Err() != nil || !strings.Contains(out.Text(), "bye") {
			t.Errorf("stop: %v, %v, %q", err, p.Err(), out.Text())
		}
	})
	t.Run("is killed when it does not", func(t *testing.T) {
		p, out := start(t, "trap '' TERM; echo ready; exec tail -f /dev/null")
		if err := out.Await(t.Context(), p, 0, "ready"); err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(50 * time.Millisecond); !errors.Is(err, ErrStillRunning) || p.Running() {
			t.Errorf("stop: %v", err)
		}
	})
	t.Run("does not outlive its parent", func(t *testing.T) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CHILD_TEST_PARENT=1")
		said, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatalf("the parent was not killed: %v", err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(said)))
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); running(pid); {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is still there", pid)
			}
		}
	})
}

// running says whether the process exists and is no zombie.
func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestAwait(t *testing.T) {
	t.Run("the process ends first", func(t *testing.T) {
		p, out := start(t, "echo something else")
		if err := out.Await(t.Context(), p, 0, "ready"); err == nil || !strings.Contains(err.Error(), "something else") {
			t.Errorf("await: %v", err)
		}
	})
	t.Run("time is over", func(t *testing.T) {
		p, out := start(t, "exec tail -f /dev/null")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := out.Await(ctx, p, 0, "ready"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("await: %v", err)
		}
	})
	t.Run("only behind the position", func(t *testing.T) {
		p, out := start(t, "echo ready; read; echo more")
		if err := out.Await(t.Context(), p, 0, "ready"); err != nil {
			t.Fatal(err)
		}
		if err := out.Await(t.Context(), p, out.Len(), "ready"); err == nil {
			t.Error("an old line was found again")
		}
		if out.Tail(1) != "more" {
			t.Errorf("tail: %q", out.Tail(1))
		}
	})
}

func TestOpenFiles(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	open, err := OpenFiles(os.Getpid(), dir)
	if err != nil || len(open) != 1 || !strings.HasSuffix(open[0], " "+file.Name()) {
		t.Errorf("open below %s: %q, %v", dir, open, err)
	}
}

func TestFreePorts(t *testing.T) {
	ports, err := FreePorts(2)
	if err != nil || len(ports) != 2 || ports[0] == ports[1] {
		t.Fatalf("ports: %v, %v", ports, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

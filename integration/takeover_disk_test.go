package integration

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// roomyDisk is a disk of its own with room for a reserve of what the kernel may gather, mounted until the test ends.
func roomyDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	image, path := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 320<<20), os.Mkdir(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, path}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err, unix.Unmount(path, unix.MNT_DETACH))
		}
	})
	return path
}

// TestTakeoverOnFullDisk takes a mount over whose disk, the cache's too, is full to the last block.
func TestTakeoverOnFullDisk(t *testing.T) {
	t.Parallel()
	eachWrites(t, func(t *testing.T, mode string) {
		p := newPlainIn(t, roomyDisk(t), writing(rig.FS(t.TempDir()), mode), "", "cold", "held")
		p.mountAs(mode)
		p.evict()
		open, err := os.Open(p.view(p.segmentsIn("cold")[0]))
		p.must(err)
		defer open.Close()
		for round := range 3 {
			p.must(tiertest.Eat(p.path(fmt.Sprint("fill-", round)))) // what tierfs has freed meanwhile, too
			t.Logf("taken over after %v", p.die())
			p.allWhole()
			p.must(holds(open, p.logs[p.segmentsIn("cold")[0]]))
		}
		for round := range 3 {
			p.must(os.Remove(p.view(fmt.Sprint("fill-", round))))
		}
		p.eventually("there is room", func() bool { return os.WriteFile(p.view("two"), make([]byte, 4096), 0o600) == nil }) // once the kernel has forgotten them
		p.must(open.Close())
		p.stop()
		if findings := p.check(); len(findings) != 0 {
			t.Errorf("found %q", findings)
		}
	})
}

// freezeMost is how long a disk may stand still: whatever waits for it waits in the kernel, and holds up whoever looks at it.
const freezeMost = "60"

// freeze lets the disk at a path stand still until thaw: who changes something on it waits in the kernel, where no signal reaches him.
// Another process does it, and undoes it when this one is gone, or when it takes too long.
func (p *plain) freeze(path string) (thaw func()) {
	p.t.Helper()
	cmd := exec.Command("sh", "-c", `trap '' TERM INT HUP; fsfreeze -f "$0" && echo still && { timeout "$1" head -c 1; fsfreeze -u "$0"; }`, path, freezeMost)
	stdin, err := cmd.StdinPipe()
	p.must(err)
	stdout, err := cmd.StdoutPipe()
	p.must(err)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	p.must(cmd.Start())
	thaw = sync.OnceFunc(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // with an error if the disk was not frozen
	})
	p.t.Cleanup(thaw)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "still\n" {
		p.t.Fatalf("the disk does not stand still: %q, %v", line, err)
	}
	return thaw
}

// TestHungDisk ends a daemon by SIGKILL that waits for its disk: it cannot die before the disk goes on, no other one is started
// before it is dead, and nothing is lost. This process has nothing open on the mount: a child that it forks would wait for it, too.
func TestHungDisk(t *testing.T) {
	eachWrites(t, func(t *testing.T, mode string) {
		disk := roomyDisk(t)
		p := newPlainIn(t, disk, writing(rig.FS(t.TempDir()), mode), "", "cold", "held")
		p.mountAs(mode)
		p.evict()
		want, more := strings.Repeat("before. ", 1000), strings.Repeat("meanwhile. ", 1000)
		p.must(os.WriteFile(p.view("written"), []byte(want), 0o644))
		pid, err := p.daemon.PID(daemon.Serves)
		p.must(err)

		thaw := p.freeze(disk)
		writer := exec.Command("dd", "of="+p.view("written"), "bs=64k", "iflag=fullblock", "oflag=append", "conv=notrunc,fsync", "status=none")
		writer.Stdin = strings.NewReader(more)
		written, err := child.Start(writer)
		p.must(err)
		t.Cleanup(func() { thaw(); _ = written.Kill() }) // it may have ended
		p.eventually("the daemon waits for the disk", func() bool { return waits(pid) })
		p.must(unix.Kill(pid, unix.SIGKILL))
		for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			for other, role := range p.daemon.Processes() {
				if role == daemon.Serves && other != pid {
					t.Fatalf("%d was started, and %d is not dead", other, pid)
				}
			}
			if !waits(pid) {
				t.Fatal("the daemon died: this shows nothing")
			}
		}
		if !written.Running() {
			t.Fatalf("a disk that stands still has taken bytes: %v", written.Err())
		}
		thaw()
		p.must(p.daemon.TakenOver(p.ctx, 1))
		select {
		case <-written.Done():
			p.must(written.Err())
		case <-time.After(time.Minute):
			t.Fatal("what was under way does not end")
		}
		p.allWhole()
		p.stop()
		if got := p.read("written"); string(got) != want+more {
			t.Errorf("below are %d bytes instead of %d", len(got), len(want)+len(more))
		}
		if findings := p.check(); len(findings) != 0 {
			t.Errorf("found %q", findings)
		}
	})
}

// waits reports whether a thread of a process waits in the kernel for what no signal ends.
func waits(pid int) bool {
	tasks, _ := os.ReadDir(procOf(pid, "task")) // none: it is dead
	for _, task := range tasks {
		stat, err := os.ReadFile(procOf(pid, "task/"+task.Name()+"/stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(rest, "D") {
			return true
		}
	}
	return false
}

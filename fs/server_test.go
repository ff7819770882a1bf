package fs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The mount may cover the source: nothing below is reached by its path.
func TestMountOverSource(t *testing.T) {
	m := mountTest(t, func(c *mountConfig) {
		c.over = true
		c.prepare = func(src string) { check(t, os.WriteFile(src+"/old", []byte("old"), 0o644)) }
	})
	check(t, os.WriteFile(m.path("new"), []byte("new"), 0o644))
	check(t, os.Mkdir(m.path("dir"), 0o755))
	check(t, os.Rename(m.path("new"), m.path("dir", "new")))
	if got := m.sh("cat old dir/new && ls -A"); got != "oldnewdir\nold" {
		t.Errorf("got %q", got)
	}
	check(t, m.server.Unmount())
	m.server.Wait()
	if got, err := os.ReadFile(m.src + "/dir/new"); string(got) != "new" || err != nil {
		t.Errorf("in the source: %q, %v", got, err)
	}
	if _, err := os.Lstat(m.src + "/.tierfs"); err != nil {
		t.Error(err)
	}
}

func TestUnmountBusy(t *testing.T) {
	m := mountTest(t)
	f, err := os.Create(m.path("file"))
	check(t, err)
	wantErrno(t, "unmount", m.server.Unmount(), unix.EBUSY)
	_, err = f.WriteString("still served")
	check(t, err)
	check(t, f.Close())
	for try := 0; ; try++ { // the release of the file is under way
		if err = m.server.Unmount(); err == nil || try == 100 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	check(t, err)
	m.server.Wait()
	check(t, m.server.Unmount())
}

func TestUnmountedByOthers(t *testing.T) {
	m := mountTest(t)
	check(t, os.WriteFile(m.path("file"), []byte("x"), 0o644))
	for try := 0; ; try++ {
		out, err := exec.Command("umount", m.mnt).CombinedOutput()
		if err == nil {
			break
		}
		if try == 100 {
			t.Fatalf("umount: %s", out)
		}
		time.Sleep(10 * time.Millisecond)
	}
	select {
	case <-m.server.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the server does not notice")
	}
}

func TestMountFails(t *testing.T) {
	m := mountTest(t)
	opt := Options{Root: m.root, Volume: m.volume, FsName: "x", Mountpoint: filepath.Join(m.src, "missing")}
	_, err := Mount(t.Context(), opt)
	wantErrno(t, "missing mount point", err, unix.ENOENT)
	if err != nil && !strings.Contains(err.Error(), opt.Mountpoint) {
		t.Errorf("which mount point? %v", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	check(t, err)
	defer file.Close()
	opt.Root = int(file.Fd())
	if _, err := Mount(t.Context(), opt); err == nil {
		t.Error("a file as source")
	}
}

func TestMountParameters(t *testing.T) {
	m := mountTest(t, func(c *mountConfig) { c.fs.ReadAhead = 1 << 20 })
	kib, err := os.ReadFile("/sys/class/bdi/" + m.server.Device() + "/read_ahead_kb")
	if strings.TrimSpace(string(kib)) != "1024" || err != nil {
		t.Errorf("read-ahead: %q, %v", kib, err)
	}
	if m.log.String() != "" {
		t.Errorf("log:\n%s", m.log)
	}
	if _, err := ownMount(m.mnt, "another-volume"); err == nil {
		t.Error("found a mount of another volume")
	}
	t.Run("the connection is not inherited", func(t *testing.T) {
		out, err := exec.Command("/bin/sh", "-c", "ls -l /proc/self/fd").CombinedOutput()
		check(t, err)
		if strings.Contains(string(out), "/dev/fuse") {
			t.Errorf("a child has\n%s", out)
		}
	})
}

// Whatever the kernel opens and looks at, nothing of it stays when it is done.
func TestNoLeaks(t *testing.T) {
	m := mountTest(t)
	before := len(openFDs(t))
	for i := range 50 {
		dir := fmt.Sprintf("dir%d", i)
		check(t, os.Mkdir(m.path(dir), 0o755))
		check(t, os.WriteFile(m.path(dir, "file"), []byte("x"), 0o644))
		check(t, os.Link(m.path(dir, "file"), m.path(dir, "link")))
		check(t, os.Chmod(m.path(dir, "file"), 0o600))
		_, err := os.ReadFile(m.path(dir, "link"))
		check(t, err)
		_, err = os.ReadDir(m.path(dir))
		check(t, err)
	}
	m.sh("ls -lR . >/dev/null && find . -type f -exec cat {} + >/dev/null && rm -r dir*")
	m.waitFor("all handles are released", func() bool { return m.server.fs.handles.size() == 0 })
	m.waitFor("the kernel forgets what is gone", func() bool { return m.server.fs.inodes.size() == 1 })
	if after := len(openFDs(t)); after > before+2 {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// waitFor waits for something that the kernel does when it likes.
func (m *testMount) waitFor(what string, done func() bool) {
	m.t.Helper()
	for range 500 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.t.Errorf("timeout: %s", what)
}

func openFDs(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	check(t, err)
	return names
}

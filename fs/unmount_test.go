package fs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// An operator may name a mount point by a link.
func TestMountByLink(t *testing.T) {
	m := mountTest(t, func(c *mountConfig) {
		c.over = true
		c.fs.ReadAhead = 1 << 20
		c.prepare = func(src string) { check(t, os.Symlink(src, src+"-link")) }
	})
	check(t, m.server.Unmount())
	m.server.Wait()
	opt := Options{
		Root: m.root, Volume: m.volume, FsName: "test-volume", Mountpoint: m.src + "-link",
		ReadAhead: 1 << 20, RootAttr: RootAttr{Mode: 0o755}, Log: m.server.fs.log, Metrics: m.server.fs.metrics,
	}
	var err error
	m.server, err = Mount(t.Context(), opt)
	check(t, err)
	if m.log.String() != "" {
		t.Errorf("log:\n%s", m.log)
	}
	check(t, m.server.Unmount())
}

// What somebody has mounted over the mount is not ours to detach.
func TestUnmountCovered(t *testing.T) {
	m := mountTest(t)
	check(t, os.WriteFile(m.path("file"), []byte("x"), 0o644))
	check(t, unix.Mount("cover", m.mnt, "tmpfs", 0, ""))
	wantErrno(t, "unmount", m.server.Unmount(), unix.EBUSY)
	if err := unix.Unmount(m.mnt, 0); err != nil {
		t.Fatalf("the cover is gone: %v", err)
	}
	if got, err := os.ReadFile(m.path("file")); string(got) != "x" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// Who sees the mount elsewhere, as a container does, is in it still, and goes on
// reading what is in the store.
func TestUnmountWhileBound(t *testing.T) {
	m := tieredTest(t)
	m.fill(1, 200000)
	if n := m.tierOut(); n != 1 {
		t.Fatalf("%d evicted", n)
	}
	dropPages(t, m.path(segmentPath(0)))
	other := t.TempDir()
	check(t, unix.Mount(m.mnt, other, "", unix.MS_BIND, ""))
	defer func() {
		if err := unix.Unmount(other, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount the bind mount: %v", err)
		}
	}()
	for _, when := range []string{"first", "again"} {
		wantErrno(t, when, m.server.Unmount(), unix.EBUSY)
	}
	got, err := exec.Command("cat", filepath.Join(other, segmentPath(0))).Output()
	if err != nil || !bytes.Equal(got, pattern(200000, 0)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

package tier

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// tmpfs mounts a small disk until the test ends, and returns its path and a
// descriptor of its directory.
func tmpfs(t *testing.T) (string, int) {
	t.Helper()
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err)
		}
	})
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return path, fd
}

// On a full disk without a reserve a segment is not read: its intent could not be
// written.
func TestNoRoomForAnIntent(t *testing.T) {
	w := newWorld(t, 3)
	bad := append([]byte(nil), w.logs[0]...)
	bad[len(bad)-1] ^= 1 // whoever reads it says so
	w.write("t-0/"+name(0), bad)
	disk, fd := tmpfs(t)
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk takes everything: %v", err)
	}
	w.v.reserve.close()
	w.v.reserve.dir, w.v.reserve.have = -1, nil
	own := w.v.dirs.intents
	w.v.dirs.intents = fd
	defer func() { w.v.dirs.intents = own }()
	if _, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", 0)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	w.do(os.Remove(filler))
	_, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", 0))
	if _, notWhole := errors.AsType[*NotWhole](err); !notWhole {
		t.Errorf("with room: %v", err)
	}
}

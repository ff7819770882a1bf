package tiertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk makes a file system of 24 MiB in a file and mounts it until the test ends:
// one that, unlike tmpfs, needs blocks for directories and for names. So many percent
// of it are root's.
func SmallDisk(t testing.TB, percentRoot int) string {
	t.Helper()
	dir := t.TempDir()
	image, path := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 24<<20), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-b", "4096", "-m", fmt.Sprint(percentRoot), "-N", "4096", image},
		{"mount", "-o", "loop", image, path},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err)
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	})
	return path
}

// Eat takes all the room of a disk, root's included, with one file.
func Eat(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 4096} { // the flush of the last but one may need room or find some
		b := make([]byte, size)
		for err == nil {
			_, err = f.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
		err = nil
		_ = f.Sync() // it has what it got
	}
	return nil
}

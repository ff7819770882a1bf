package tiertest

import (
	"errors"
	"fmt"
	"io"
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
	return Disk(t, 24<<20, percentRoot)
}

// Disk is SmallDisk of another size, in bytes. Of the disk below it takes only what is written.
func Disk(t testing.TB, size int64, percentRoot int) string {
	t.Helper()
	dir := t.TempDir()
	image, path := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(path, 0o700)); err != nil {
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

// bite is how many bytes Eat writes at least.
const bite = 32 << 20

// allocate takes the most of a large disk, without a write.
func allocate(f *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return err
	}
	size := int64(st.Bavail)*st.Bsize - bite
	if size <= 0 {
		return nil
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		return err
	}
	_, err := f.Seek(size, io.SeekStart)
	return err
}

// Eat takes all the room of a disk, root's included, with one file.
func Eat(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := allocate(f); err != nil {
		return err
	}
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

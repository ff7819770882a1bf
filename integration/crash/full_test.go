package crash

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk is a file system of its own that is soon full.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	image, path := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s", name, args, err, out)
		}
	}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 24<<20), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	run("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-N", "4096", image)
	run("mount", "-o", "loop", image, path)
	t.Cleanup(func() {
		if err := unix.Unmount(path, 0); err != nil {
			t.Error(err)
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	})
	return path
}

// eat takes all the room of a disk.
func eat(path string) error {
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

// withoutRoom fills the disk up while an upload is about to write its intent, and kills where the reserve has to give way. The
// recovery finds a full disk.
func withoutRoom(t *testing.T, at point) {
	disk := smallDisk(t)
	v := newVolume(t, disk)
	v.must(v.restart())
	process, from := v.daemon.Process(), v.daemon.Log().Len()
	v.order("hold upload:intent")
	v.must(v.newPartition(uploaded.prefix()).fill())
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	v.must(v.daemon.Log().Await(ctx, process, from, "holding at upload:intent\n"))
	eaten := filepath.Join(disk, "eaten")
	v.must(eat(eaten))
	v.order(at.order())
	v.must(v.died(process, from, at.name()))
	v.must(v.restart())
	v.look("with a full disk")
	v.check("with a full disk")
	v.must(os.Remove(eaten))
	v.settled("with room again")
	v.must(v.daemon.Stop())
}

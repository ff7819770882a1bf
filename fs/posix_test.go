package fs

import (
	"maps"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"
)

// posixTests are all but one, which wants two locks of one process to conflict; see
// TestLocks.
func posixTests() []string {
	names := slices.Sorted(maps.Keys(posixtest.All))
	return slices.DeleteFunc(names, func(name string) bool { return name == "FcntlFlockLocksFile" })
}

func runPosix(t *testing.T) {
	for _, name := range posixTests() {
		t.Run(name, func(t *testing.T) { posixtest.All[name](t, mountTest(t).mnt) })
	}
}

func TestPosix(t *testing.T) { runPosix(t) }

func TestPosixOneProc(t *testing.T) {
	oneProc(t)
	runPosix(t)
}

// The kernel keeps all locks itself.
func TestLocks(t *testing.T) {
	m := mountTest(t)
	open := func() int {
		fd, err := unix.Open(m.path("file"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		check(t, err)
		t.Cleanup(func() { check(t, unix.Close(fd)) })
		return fd
	}
	a, b := open(), open()
	whole := func() *unix.Flock_t { return &unix.Flock_t{Type: unix.F_WRLCK} }
	t.Run("flock", func(t *testing.T) {
		check(t, unix.Flock(a, unix.LOCK_EX|unix.LOCK_NB))
		wantErrno(t, "second lock", unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		check(t, unix.Flock(a, unix.LOCK_UN))
		check(t, unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB))
	})
	t.Run("open file description", func(t *testing.T) {
		check(t, unix.FcntlFlock(uintptr(a), unix.F_OFD_SETLK, whole()))
		wantErrno(t, "second lock", unix.FcntlFlock(uintptr(b), unix.F_OFD_SETLK, whole()), unix.EAGAIN)
		unlock := &unix.Flock_t{Type: unix.F_UNLCK}
		check(t, unix.FcntlFlock(uintptr(a), unix.F_OFD_SETLK, unlock))
	})
	t.Run("process", func(t *testing.T) {
		check(t, unix.FcntlFlock(uintptr(a), unix.F_SETLK, whole()))
		out, err := child("lock", m.path("file")).CombinedOutput()
		if err != nil || string(out) != unix.EAGAIN.Error() {
			t.Errorf("another process: %q, %v", out, err)
		}
	})
}

func lockChild(args []string) error {
	fd, err := unix.Open(args[0], unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err != nil {
		print(err.Error())
	}
	return nil
}

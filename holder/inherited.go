package holder

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// RaiseFileLimit lets this process, and what it starts, open as many files as the kernel allows at all, or else as the hard
// limit does, and returns how many that is: what a broker has open is open here as well.
func RaiseFileLimit() (limit uint64, err error) {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		return 0, err
	}
	if b, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && n > now.Max {
			if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}) == nil {
				return n, nil
			}
		}
	}
	now.Cur = now.Max
	return now.Max, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &now)
}

// FlushIO marks this process as one that memory reclaim may depend on, so that its own allocations do not wait for
// write-back. The mark is a thread's, and a new thread inherits it: so the process executes itself once, on a marked
// thread, and FlushIO does not return. It returns nil in a process that is marked, as the daemon of a holder process is
// from the start, and where the kernel refuses the mark.
func FlushIO() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if was, err := ioFlusher(true); was || err != nil {
		return nil
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// ioFlusher marks this thread (and what it forks or executes) as one that memory reclaim may depend on. It returns the
// state before.
func ioFlusher(on bool) (was bool, err error) {
	r, _, errno := syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0, 0)
	if errno != 0 {
		return false, errno
	}
	arg := uintptr(0)
	if on {
		arg = 1
	}
	return r == 1, unix.Prctl(unix.PR_SET_IO_FLUSHER, arg, 0, 0, 0)
}

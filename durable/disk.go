package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// disk makes the system calls. The zero value is the real thing; a test sets
// before, which is called ahead of every call and may fail it.
type disk struct {
	before func(op, name string) error
}

// call is the one way to the kernel: it repeats what a signal interrupts and
// names the file in what goes wrong. An empty name means the descriptor
// itself.
func (d disk) call(op string, dir int, name string, f func() error) error {
	err := d.raw(op, name, f)
	if err != nil {
		return &fs.PathError{Op: op, Path: pathOf(dir, name), Err: err}
	}
	return nil
}

func (d disk) raw(op, name string, f func() error) error {
	for {
		var err error
		if d.before != nil {
			err = d.before(op, name)
		}
		if err == nil {
			err = f()
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (d disk) open(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = d.call("openat", dir, name, func() (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// close drops a descriptor that was only read or is synced already: its error
// says nothing. It is never repeated, since Linux frees the number even when
// interrupted.
func (d disk) close(fd int, name string) {
	if d.before != nil {
		_ = d.before("close", name)
	}
	_ = unix.Close(fd)
}

func (d disk) renameat2(oldDir int, old string, newDir int, new string, flags uint) error {
	op := "renameat2"
	if flags == unix.RENAME_NOREPLACE {
		op = "renameat2 noreplace"
	}
	err := d.raw(op, old+" "+new, func() error { return unix.Renameat2(oldDir, old, newDir, new, flags) })
	if err != nil {
		return &os.LinkError{Op: op, Old: pathOf(oldDir, old), New: pathOf(newDir, new), Err: err}
	}
	return nil
}

func (d disk) unlinkat(dir int, name string, flags int) error {
	op := "unlinkat"
	if flags == unix.AT_REMOVEDIR {
		op = "rmdirat"
	}
	return d.call(op, dir, name, func() error { return unix.Unlinkat(dir, name, flags) })
}

// discard drops a temporary name after a failure. If that fails too, the sweep
// at the next start finds it.
func (d disk) discard(dir int, temp string, flags int) {
	_ = d.unlinkat(dir, temp, flags)
}

func (d disk) syncDir(dir int) error {
	err := d.call("fsync", dir, "", func() error { return unix.Fsync(dir) })
	if !errors.Is(err, unix.EBADF) {
		return err
	}
	fd, err := d.open(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.close(fd, ".")
	return d.call("fsync", fd, "", func() error { return unix.Fsync(fd) })
}

func (d disk) sameDir(a, b int) (bool, error) {
	if a == b {
		return true, nil
	}
	var sa, sb unix.Stat_t
	if err := d.stat(a, &sa); err != nil {
		return false, err
	}
	if err := d.stat(b, &sb); err != nil {
		return false, err
	}
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino, nil
}

func (d disk) stat(fd int, st *unix.Stat_t) error {
	return d.call("fstat", fd, "", func() error { return unix.Fstat(fd, st) })
}

func checkName(op string, dir int, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, TempPrefix) {
		return &fs.PathError{Op: op, Path: pathOf(dir, name), Err: unix.EINVAL}
	}
	return nil
}

// pathOf is for people who read errors; nothing is opened by it.
func pathOf(dir int, name string) string {
	if dir == unix.AT_FDCWD {
		return name
	}
	base, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(dir))
	if err != nil {
		base = "fd " + strconv.Itoa(dir)
	}
	return filepath.Join(base, name)
}

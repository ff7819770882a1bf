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
// before, which sees every call ahead of time, with the paths it is about, and
// may fail it.
type disk struct {
	before func(op, paths string) error
}

// call is the way to the kernel: it repeats what a signal interrupts and names
// the file in what goes wrong. An empty name means the descriptor itself.
func (d disk) call(op string, dir int, name string, f func() error) error {
	err := d.repeat(op, func() string { return pathOf(dir, name) }, f)
	if err != nil {
		return &fs.PathError{Op: op, Path: pathOf(dir, name), Err: err}
	}
	return nil
}

func (d disk) repeat(op string, paths func() string, f func() error) error {
	for {
		var err error
		if d.before != nil {
			err = d.before(op, paths())
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
func (d disk) close(fd int) {
	if d.before != nil {
		_ = d.before("close", pathOf(fd, ""))
	}
	_ = unix.Close(fd)
}

func (d disk) renameat2(oldDir int, oldName string, newDir int, newName string, flags uint) error {
	op := "renameat2"
	if flags == unix.RENAME_NOREPLACE {
		op = "renameat2 noreplace"
	}
	paths := func() string { return pathOf(oldDir, oldName) + " " + pathOf(newDir, newName) }
	err := d.repeat(op, paths, func() error { return unix.Renameat2(oldDir, oldName, newDir, newName, flags) })
	if err != nil {
		return &os.LinkError{Op: op, Old: pathOf(oldDir, oldName), New: pathOf(newDir, newName), Err: err}
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

// syncable returns a descriptor of the directory dir that fsync takes: dir
// itself, or one that done closes. It is asked for ahead of every change, so
// that behind a change nothing can fail but the disk.
func (d disk) syncable(dir int) (fd int, done func(), err error) {
	flags := 0
	err = d.call("fcntl", dir, "", func() (err error) {
		flags, err = unix.FcntlInt(uintptr(dir), unix.F_GETFL, 0)
		return err
	})
	if err != nil {
		return -1, nil, err
	}
	if flags&unix.O_PATH == 0 {
		return dir, func() {}, nil
	}
	fd, err = d.openDir(dir, ".")
	return fd, func() { d.close(fd) }, err
}

func (d disk) openDir(dir int, name string) (int, error) {
	return d.open(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

func (d disk) fsync(fd int) error {
	return d.call("fsync", fd, "", func() error { return unix.Fsync(fd) })
}

func (d disk) syncDir(dir int) error {
	dir, done, err := d.syncable(dir)
	if err != nil {
		return err
	}
	defer done()
	return d.fsync(dir)
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
	base, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(dir))
	if err != nil {
		base = "fd " + strconv.Itoa(dir)
	}
	return filepath.Join(base, name)
}

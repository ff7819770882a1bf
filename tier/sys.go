package tier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
)

// The system calls of this package, with EINTR repeated and names in the errors.

func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// own is for errors about files that tierfs keeps for itself: what is wrong with
// them must not look like an answer about a name that the broker gave. A broker
// takes "no such file" of an unlink for success.
func own(err error) error {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.ESTALE, unix.EEXIST, unix.ENOTDIR, unix.EISDIR} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%v: %w", err, unix.EIO)
		}
	}
	return err
}

func fstatat(dir int, name string, st *unix.Stat_t) error {
	return pathError("stat", name, retry(func() error { return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW) }))
}

func openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, name, flags, mode)
		return err
	})
	return fd, pathError("open", name, err)
}

func unlinkat(dir int, name string, flags int) error {
	return pathError("unlink", name, retry(func() error { return unix.Unlinkat(dir, name, flags) }))
}

func renameat(od int, old string, nd int, new string, flags uint) error {
	return pathError("rename", old, retry(func() error { return unix.Renameat2(od, old, nd, new, flags) }))
}

// readNames lists a directory without "." and "..", in no order.
func readNames(dir int) ([]string, error) {
	f, err := reopen(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// readEntries is readNames with types.
func readEntries(dir int) ([]os.DirEntry, error) {
	f, err := reopen(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

// reopen opens a directory anew, so that its position is nobody else's.
func reopen(dir int) (*os.File, error) {
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd)), nil
}

func segmentName(start uint64) string { return segment.Stem(start) + logSuffix }

// times are a file's times of access and modification.
type times [2]unix.Timespec

func timesOf(st *unix.Stat_t) times { return times{st.Atim, st.Mtim} }

// putBack restores the times of an open file.
func putBack(fd int, t times) error {
	return pathError("utimes", "", retry(func() error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), t[:], 0)
	}))
}

// linkFD gives an open inode another name.
func linkFD(fd, dir int, name string) error {
	return pathError("link", name, retry(func() error { return unix.Linkat(fd, "", dir, name, unix.AT_EMPTY_PATH) }))
}

// fdReader reads an open file at offsets; it may be used in parallel.
type fdReader int

// ReadAt implements io.ReaderAt.
func (r fdReader) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(int(r), p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, pathError("read", "", err)
		case n == 0:
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

// contextReader ends with the context's error.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// fdWriter writes an open file at offsets.
type fdWriter int

// WriteAt implements io.WriterAt.
func (w fdWriter) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(int(w), p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, pathError("write", "", err)
		case n == 0:
			return done, pathError("write", "", unix.EIO)
		}
		done += n
	}
	return done, nil
}

package durable

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadFile returns the content of the regular file name, of at most limit bytes:
// EFBIG if there are more, ELOOP for a symlink, EISDIR for a directory, EINVAL
// for any other kind. It waits for no writer, not even of a pipe.
func ReadFile(dir int, name string, limit int64) ([]byte, error) {
	return disk{}.readFile(dir, name, limit)
}

func (d disk) readFile(dir int, name string, limit int64) ([]byte, error) {
	if err := checkName("read", dir, name); err != nil {
		return nil, err
	}
	fd, err := d.open(dir, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer d.close(fd)
	var st unix.Stat_t
	if err := d.stat(fd, &st); err != nil {
		return nil, err
	}
	if err := readable(st, limit); err != nil {
		return nil, &fs.PathError{Op: "read", Path: pathOf(dir, name), Err: err}
	}
	data := make([]byte, 0, st.Size+1) // one more, to meet the end
	for {
		n := 0
		err := d.call("read", dir, name, func() (err error) {
			n, err = unix.Read(fd, data[len(data):cap(data)])
			return err
		})
		if err != nil || n == 0 {
			return data, err
		}
		data = data[:len(data)+n]
		if int64(len(data)) > limit {
			return nil, &fs.PathError{Op: "read", Path: pathOf(dir, name), Err: unix.EFBIG}
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

func readable(st unix.Stat_t, limit int64) error {
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return unix.EINVAL
	case st.Size > limit:
		return unix.EFBIG
	}
	return nil
}

// SweepTemp removes what crashes have left of temporary files and directories
// in dir itself, not below it, and then fsyncs dir: afterwards every name seen
// in it is durable. It must not run while another function of this package
// works in dir, which would lose its temporary file. Names that it cannot
// remove do not stop it; their errors are joined.
func SweepTemp(dir int) error {
	return disk{}.sweepTemp(dir)
}

func (d disk) sweepTemp(dir int) error {
	dir, done, err := d.syncable(dir)
	if err != nil {
		return err
	}
	defer done()
	names, err := d.names(dir)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		if !strings.HasPrefix(name, TempPrefix) {
			continue
		}
		err := d.unlinkat(dir, name, 0)
		if errors.Is(err, unix.EISDIR) {
			err = d.unlinkat(dir, name, unix.AT_REMOVEDIR)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			failed = append(failed, err)
		}
	}
	return errors.Join(append(failed, d.fsync(dir))...)
}

func (d disk) names(dir int) ([]string, error) {
	fd, err := d.openDir(dir, ".")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), pathOf(dir, ""))
	defer f.Close()
	return f.Readdirnames(-1)
}

package handle

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	before := openFDs()
	code := m.Run()
	if after := openFDs(); after != before && code == 0 {
		os.Stderr.WriteString("the tests leaked descriptors\n")
		code = 1
	}
	os.Exit(code)
}

// openFDs counts this process's descriptors, but those of the Go runtime's
// poller, which come with the first file that is read.
func openFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	n := 0
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			n++
		}
	}
	return n
}

func TestKinds(t *testing.T) {
	kinds := map[string]func(d dir) error{
		"file":      func(d dir) error { return unix.Mknodat(d.fd, "x", unix.S_IFREG|0o600, 0) },
		"directory": func(d dir) error { return unix.Mkdirat(d.fd, "x", 0o700) },
		"pipe":      func(d dir) error { return unix.Mknodat(d.fd, "x", unix.S_IFIFO|0o600, 0) },
		"symlink":   func(d dir) error { return unix.Symlinkat("target", d.fd, "x") },
		"dangling":  func(d dir) error { return unix.Symlinkat("missing", d.fd, "x") },
	}
	for kind, create := range kinds {
		t.Run(kind, func(t *testing.T) {
			d := newDir(t)
			d.write("target", "")
			d.do(create(d))
			h := d.at("x")
			var st unix.Stat_t
			d.do(unix.Fstatat(d.fd, "x", &st, unix.AT_SYMLINK_NOFOLLOW))
			if got := d.inode(h); got != st.Ino {
				t.Errorf("opened inode %d, want %d", got, st.Ino)
			}
			fd, err := unix.Openat(d.fd, "x", unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			d.do(err)
			defer unix.Close(fd)
			if byFD, err := At(fd, ""); err != nil || byFD != h {
				t.Errorf("by descriptor: %v, %v, want %v", byFD, err, h)
			}
		})
	}
	t.Run("directory opened for listing", func(t *testing.T) {
		d := newDir(t)
		d.do(unix.Mkdirat(d.fd, "sub", 0o700))
		fd, err := d.at("sub").Open(d.fd, unix.O_RDONLY|unix.O_DIRECTORY)
		d.do(err)
		defer unix.Close(fd)
		d.do(unix.Mknodat(fd, "f", unix.S_IFREG|0o600, 0))
		d.at("sub/f")
	})
}

func TestDescriptors(t *testing.T) {
	d := newDir(t)
	d.write("f", "")
	t.Run("O_PATH directory", func(t *testing.T) {
		fd, err := unix.Open(d.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		d.do(err)
		defer unix.Close(fd)
		if h, err := At(fd, "f"); err != nil || h != d.at("f") {
			t.Errorf("At: %v, %v", h, err)
		}
	})
	t.Run("close on exec", func(t *testing.T) {
		fd, err := d.at("f").Open(d.fd, unix.O_PATH)
		d.do(err)
		defer unix.Close(fd)
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("F_GETFD = %#x, %v", flags, err)
		}
	})
	t.Run("a file to open by", func(t *testing.T) {
		fd, err := d.at("f").Open(d.fd, unix.O_RDONLY)
		d.do(err)
		defer unix.Close(fd)
		again, err := d.at("f").Open(fd, unix.O_PATH)
		d.do(err)
		d.do(unix.Close(again))
	})
}

func TestErrors(t *testing.T) {
	d := newDir(t)
	t.Run("missing", func(t *testing.T) {
		_, err := At(d.fd, "missing")
		if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "missing") {
			t.Errorf("At: %v", err)
		}
	})
	t.Run("bad descriptor", func(t *testing.T) {
		if _, err := At(-1, ""); !errors.Is(err, unix.EBADF) {
			t.Errorf("At: %v", err)
		}
	})
	t.Run("no handles on this file system", func(t *testing.T) {
		if _, err := At(unix.AT_FDCWD, "/proc/self/status"); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("At: %v", err)
		}
	})
	t.Run("symlink without O_PATH", func(t *testing.T) {
		d.do(unix.Symlinkat("f", d.fd, "link"))
		if _, err := d.at("link").Open(d.fd, unix.O_RDONLY); !errors.Is(err, unix.ELOOP) {
			t.Errorf("Open: %v", err)
		}
	})
	for name, h := range map[string]Handle{
		"zero":     {},
		"too long": {Type: 1, Bytes: strings.Repeat("x", maxBytes+1)},
	} {
		t.Run("open "+name, func(t *testing.T) {
			if fd, err := h.Open(d.fd, unix.O_PATH); fd != -1 || !errors.Is(err, ErrInvalid) {
				t.Errorf("Open = %d, %v", fd, err)
			}
		})
	}
}

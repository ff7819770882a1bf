package handle

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// dir is a fresh directory, with a readable descriptor of it.
type dir struct {
	t    *testing.T
	path string
	fd   int
}

func newDir(t *testing.T) dir {
	t.Helper()
	d := dir{t: t, path: t.TempDir()}
	fd, err := unix.Open(d.path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.fd = fd
	t.Cleanup(func() { unix.Close(fd) })
	return d
}

func (d dir) write(name, data string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.path, name), []byte(data), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d dir) do(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d dir) at(name string) Handle {
	d.t.Helper()
	h, err := At(d.fd, name)
	if err != nil {
		d.t.Fatal(err)
	}
	return h
}

// inode opens h, whatever it is, and returns its number.
func (d dir) inode(h Handle) uint64 {
	d.t.Helper()
	fd, err := h.Open(d.fd, unix.O_PATH)
	d.do(err)
	defer unix.Close(fd)
	var st unix.Stat_t
	d.do(unix.Fstat(fd, &st))
	return st.Ino
}

func (d dir) read(h Handle) string {
	d.t.Helper()
	fd, err := h.Open(d.fd, unix.O_RDONLY)
	d.do(err)
	defer unix.Close(fd)
	b := make([]byte, 100)
	n, err := unix.Pread(fd, b, 0)
	d.do(err)
	return string(b[:n])
}

func (d dir) wantStale(h Handle) {
	d.t.Helper()
	fd, err := h.Open(d.fd, unix.O_PATH)
	if err == nil {
		unix.Close(fd)
	}
	if !errors.Is(err, unix.ESTALE) {
		d.t.Errorf("Open(%v): %v, want ESTALE", h, err)
	}
}

func TestIdentity(t *testing.T) {
	t.Run("the same again", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "")
		if a, b := d.at("f"), d.at("f"); a != b || a.IsZero() {
			t.Errorf("%v, then %v", a, b)
		}
	})
	t.Run("two files", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "")
		d.write("g", "")
		if d.at("f") == d.at("g") {
			t.Error("one handle for both")
		}
	})
	t.Run("hard links", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "")
		d.do(unix.Linkat(d.fd, "f", d.fd, "g", 0))
		if a, b := d.at("f"), d.at("g"); a != b {
			t.Errorf("%v and %v", a, b)
		}
	})
	t.Run("rename", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "the bytes")
		d.do(unix.Mkdirat(d.fd, "sub", 0o700))
		h := d.at("f")
		d.do(unix.Renameat(d.fd, "f", d.fd, "sub/g"))
		if now := d.at("sub/g"); now != h {
			t.Errorf("%v became %v", h, now)
		}
		if got := d.read(h); got != "the bytes" {
			t.Errorf("read %q", got)
		}
	})
	t.Run("emptied and filled", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "the bytes of a log")
		h := d.at("f")
		d.write("f", "a marker") // O_TRUNC: the same inode
		if d.at("f") != h {
			t.Error("another handle")
		}
	})
	t.Run("re-created", recreated)
}

// A file system may give the number of the old inode to the new one: the
// generation tells them apart.
func recreated(t *testing.T) {
	d := newDir(t)
	for range 20 {
		d.write("f", "")
		h := d.at("f")
		d.do(unix.Unlinkat(d.fd, "f", 0))
		d.write("f", "")
		if d.at("f") == h {
			t.Fatal("the same handle")
		}
		d.wantStale(h)
		d.do(unix.Unlinkat(d.fd, "f", 0))
	}
}

func TestLifetime(t *testing.T) {
	t.Run("last link gone", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "")
		d.do(unix.Linkat(d.fd, "f", d.fd, "g", 0))
		h := d.at("f")
		d.do(unix.Unlinkat(d.fd, "f", 0))
		d.inode(h)
		d.do(unix.Unlinkat(d.fd, "g", 0))
		d.wantStale(h)
	})
	t.Run("last descriptor gone", func(t *testing.T) {
		d := newDir(t)
		d.write("f", "the bytes")
		h := d.at("f")
		fd, err := h.Open(d.fd, unix.O_RDONLY)
		d.do(err)
		d.do(unix.Unlinkat(d.fd, "f", 0))
		if got := d.read(h); got != "the bytes" {
			t.Errorf("read %q", got)
		}
		d.do(unix.Close(fd))
		d.wantStale(h)
	})
	t.Run("directory gone", func(t *testing.T) {
		d := newDir(t)
		d.do(unix.Mkdirat(d.fd, "sub", 0o700))
		h := d.at("sub")
		d.do(unix.Unlinkat(d.fd, "sub", unix.AT_REMOVEDIR))
		d.wantStale(h)
	})
}

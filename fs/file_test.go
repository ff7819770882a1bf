package fs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
)

func pattern(size int, seed byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i)*31 ^ seed
	}
	return b
}

// An inode that has lost its last name works as long as somebody has it open.
func TestUnlinkedOpenFile(t *testing.T) {
	m := mountTest(t)
	f, err := os.Create(m.path("file"))
	check(t, err)
	defer f.Close()
	_, err = f.WriteString("before")
	check(t, err)
	check(t, os.Remove(m.path("file")))
	_, err = f.WriteString(" and after")
	check(t, err)
	check(t, f.Chmod(0o600))
	check(t, f.Chown(3, 4))
	check(t, unix.Fsetxattr(int(f.Fd()), "user.x", []byte("y"), 0))
	check(t, f.Truncate(12))
	check(t, f.Sync())
	dropFD(t, f)
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 100))
	if string(got) != "before and a" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	var st unix.Stat_t
	check(t, unix.Fstat(int(f.Fd()), &st))
	if st.Nlink != 0 || st.Size != 12 || st.Mode&0o777 != 0o600 || st.Uid != 3 || st.Gid != 4 {
		t.Errorf("attributes: %+v", st)
	}
	check(t, os.WriteFile(m.path("file"), []byte("another"), 0o644))
	if other := stat(t, m.path("file")); other.Ino == st.Ino {
		t.Error("the new file has the old one's number")
	}
}

func dropFD(t *testing.T, f *os.File) {
	t.Helper()
	check(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

func TestAppendOpen(t *testing.T) {
	m := mountTest(t)
	var all []byte
	for i := range 3 {
		f, err := os.OpenFile(m.path("file"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		check(t, err)
		for j := range 5 {
			part := fmt.Appendf(nil, "part %d.%d\n", i, j)
			_, err = f.Write(part)
			check(t, err)
			all = append(all, part...)
		}
		check(t, f.Close())
	}
	if got, err := os.ReadFile(m.below("file")); !bytes.Equal(got, all) || err != nil {
		t.Errorf("below: %q, %v", got, err)
	}
}

func TestTruncatingOpen(t *testing.T) {
	m := mountTest(t)
	check(t, os.WriteFile(m.path("file"), pattern(100000, 1), 0o644))
	f, err := os.OpenFile(m.path("file"), os.O_RDWR|os.O_TRUNC, 0)
	check(t, err)
	defer f.Close()
	if st := stat(t, m.below("file")); st.Size != 0 {
		t.Errorf("size below: %d", st.Size)
	}
	_, err = f.WriteAt([]byte("x"), 5000)
	check(t, err)
	want := append(make([]byte, 5000), 'x')
	if got, err := os.ReadFile(m.path("file")); !bytes.Equal(got, want) || err != nil {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

func TestFallocateModes(t *testing.T) {
	m := mountTest(t)
	f, err := os.Create(m.path("file"))
	check(t, err)
	defer f.Close()
	fd := int(f.Fd())
	data := pattern(64<<10, 2)
	_, err = f.WriteAt(data, 0)
	check(t, err)
	same := func(what string) {
		t.Helper()
		for _, path := range []string{m.path("file"), m.below("file")} {
			if got, _ := os.ReadFile(path); !bytes.Equal(got, data) {
				t.Errorf("%s: %s differs", what, path)
			}
		}
	}
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 5000, 20000))
	clear(data[5000:25000])
	same("hole")
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 40000, 1000))
	clear(data[40000:41000])
	same("zeroes")
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 64<<10, 1<<20))
	same("kept size")
	if st := stat(t, m.path("file")); st.Blocks*512 < 1<<20 {
		t.Errorf("%d blocks", st.Blocks)
	}
	check(t, unix.Fallocate(fd, 0, 64<<10, 100))
	data = append(data, make([]byte, 100)...)
	same("growth")
	wantErrno(t, "collapse", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), unix.EOPNOTSUPP)
	wantErrno(t, "insert", unix.Fallocate(fd, unix.FALLOC_FL_INSERT_RANGE, 0, 4096), unix.EOPNOTSUPP)
	same("refused modes")
}

func TestSeekDataAndHole(t *testing.T) {
	m := mountTest(t)
	w, err := os.Create(m.path("file"))
	check(t, err)
	_, err = w.WriteAt(pattern(4096, 1), 1<<20)
	check(t, err)
	check(t, w.Truncate(2<<20))
	check(t, w.Close())
	m.waitFor("the handle is released", func() bool { return m.server.fs.handles.size() == 0 })
	f, err := os.Open(m.path("file"))
	check(t, err)
	defer f.Close()
	if m.cfg.gather { // the kernel answers by itself that all is data
		for whence, want := range map[int]int64{unix.SEEK_DATA: 5, unix.SEEK_HOLE: 2 << 20} {
			if got, err := unix.Seek(int(f.Fd()), 5, whence); got != want || err != nil {
				t.Errorf("whence %d: %d, %v; want %d", whence, got, err, want)
			}
		}
		_, err = unix.Seek(int(f.Fd()), 2<<20, unix.SEEK_DATA)
		wantErrno(t, "behind the end", err, unix.ENXIO)
		return
	}
	for _, c := range []struct {
		off    int64
		whence int
		want   int64
	}{{0, unix.SEEK_DATA, 1 << 20}, {0, unix.SEEK_HOLE, 0}, {1 << 20, unix.SEEK_HOLE, 1<<20 + 4096}, {1<<20 + 1, unix.SEEK_DATA, 1<<20 + 1}} {
		if got, err := unix.Seek(int(f.Fd()), c.off, c.whence); got != c.want || err != nil {
			t.Errorf("from %d, whence %d: %d, %v; want %d", c.off, c.whence, got, err, c.want)
		}
	}
	_, err = unix.Seek(int(f.Fd()), 1<<20+4096, unix.SEEK_DATA)
	wantErrno(t, "no data behind", err, unix.ENXIO)
}

func TestCopyFileRange(t *testing.T) {
	m := mountTest(t)
	data := pattern(3<<20+777, 3)
	check(t, os.WriteFile(m.path("from"), data, 0o644))
	from, err := os.Open(m.path("from"))
	check(t, err)
	defer from.Close()
	to, err := os.Create(m.path("to"))
	check(t, err)
	defer to.Close()
	offIn, offOut := int64(100), int64(10)
	for {
		n, err := unix.CopyFileRange(int(from.Fd()), &offIn, int(to.Fd()), &offOut, 8<<20, 0)
		check(t, err)
		if n == 0 {
			break
		}
	}
	want := append(make([]byte, 10), data[100:]...)
	if got, _ := os.ReadFile(m.path("to")); !bytes.Equal(got, want) {
		t.Errorf("copied %d bytes, want %d", len(got), len(want))
	}
	if m.count(metrics.OpCopyFileRange) == 0 {
		t.Error("the kernel copied by itself")
	}
	// Within one file.
	offIn, offOut = 0, 2<<20
	_, err = unix.CopyFileRange(int(to.Fd()), &offIn, int(to.Fd()), &offOut, 1<<20, 0)
	check(t, err)
	copy(want[2<<20:3<<20], want[:1<<20])
	if got, _ := os.ReadFile(m.path("to")); !bytes.Equal(got, want) {
		t.Error("within one file: differs")
	}
}

// A full disk: what fits is written, the rest is an error, and nothing is lost.
func TestFullDisk(t *testing.T) {
	small := t.TempDir()
	check(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { check(t, unix.Unmount(small, 0)) })
	m := &testMount{t: t, src: small, mnt: t.TempDir(), log: &syncBuffer{}}
	m.start(mountConfig{})
	f, err := os.Create(m.path("file"))
	check(t, err)
	defer f.Close()
	data := pattern(8<<20, 7)
	n, err := f.Write(data)
	wantErrno(t, "write", err, unix.ENOSPC)
	if got, _ := os.ReadFile(m.path("file")); !bytes.Equal(got, data[:n]) || n == 0 {
		t.Errorf("%d written, %d read", n, len(got))
	}
}

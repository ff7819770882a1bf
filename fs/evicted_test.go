package fs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
)

func TestEvictedFile(t *testing.T) {
	const size = 3<<20 + 4321
	m := tieredTest(t)
	m.fill(2, size)
	e := &evictedFile{m, m.path(segmentPath(0)), pattern(size, 0), nil, unix.Stat_t{}}
	check(t, os.Chown(e.path, 12, 34))
	check(t, unix.Setxattr(e.path, "user.a", []byte("b"), 0))
	var err error
	e.held, err = os.OpenFile(e.path, os.O_RDWR, 0)
	check(t, err)
	defer e.held.Close()
	e.before = stat(t, e.path)
	if n := m.tierOut(); n != 2 {
		t.Fatalf("evicted %d segments, want 2", n)
	}
	t.Run("attributes stay and blocks go", e.attributes)
	t.Run("names stay", e.names)
	t.Run("warm pages stay", e.warm)
	t.Run("cold reads", e.cold)
	t.Run("mapped", e.mapped)
	t.Run("lseek", e.lseek)
	t.Run("copy_file_range", e.copyRange)
}

// An evictedFile was open when it was evicted.
type evictedFile struct {
	m      *tieredMount
	path   string
	want   []byte
	held   *os.File
	before unix.Stat_t
}

func (e *evictedFile) attributes(t *testing.T) {
	e.m.waitFor("the kernel is told", func() bool { return stat(t, e.path).Blocks < e.before.Blocks })
	after := stat(t, e.path)
	below := stat(t, e.m.below("t-0", "00000000000000000000.remote"))
	if after.Blocks != below.Blocks || below.Ino != e.before.Ino {
		t.Errorf("%d blocks, %d below", after.Blocks, below.Blocks)
	}
	after.Blocks, after.Ctim, after.Atim = e.before.Blocks, e.before.Ctim, e.before.Atim
	if after != e.before {
		t.Errorf("got  %+v\nwant %+v", after, e.before)
	}
	buf := make([]byte, 10)
	if n, err := unix.Getxattr(e.path, "user.a", buf); string(buf[:max(n, 0)]) != "b" || err != nil {
		t.Errorf("xattr: %q, %v", buf[:n], err)
	}
}

func (e *evictedFile) names(t *testing.T) {
	want := []string{"00000000000000000000.log", "00000000000000001000.log", "00000000000000002000.log"}
	if got := listNames(t, e.m.path("t-0")); !slices.Equal(got, want) {
		t.Errorf("names: %q", got)
	}
}

func (e *evictedFile) warm(t *testing.T) {
	_, err := os.ReadFile(e.path)
	check(t, err)
	before := e.m.count(metrics.OpRead)
	got, err := os.ReadFile(e.path)
	if !bytes.Equal(got, e.want) || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if n := e.m.count(metrics.OpRead) - before; n != 0 {
		t.Errorf("%d READs", n)
	}
}

func (e *evictedFile) cold(t *testing.T) {
	dropFD(t, e.held)
	got, err := io.ReadAll(io.NewSectionReader(e.held, 0, int64(len(e.want))+100))
	if !bytes.Equal(got, e.want) || err != nil {
		t.Errorf("through the old handle: %d bytes, %v", len(got), err)
	}
	if e.m.store.Count("get") == 0 {
		t.Error("nothing was fetched")
	}
	part := make([]byte, 10)
	if n, err := unix.Pread(int(e.held.Fd()), part, int64(len(e.want))); n != 0 || err != nil {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

func (e *evictedFile) mapped(t *testing.T) {
	dropFD(t, e.held)
	out, err := child("map", e.path).Output()
	if !bytes.Equal(out, e.want) || err != nil {
		t.Errorf("mapped: %d bytes, %v", len(out), err)
	}
}

func (e *evictedFile) lseek(t *testing.T) {
	size := int64(len(e.want))
	end, err := unix.Seek(int(e.held.Fd()), 5, unix.SEEK_HOLE)
	data, err2 := unix.Seek(int(e.held.Fd()), 5, unix.SEEK_DATA)
	if end != size || data != 5 || err != nil || err2 != nil {
		t.Errorf("hole at %d, %v; data at %d, %v", end, err, data, err2)
	}
	_, err = unix.Seek(int(e.held.Fd()), size, unix.SEEK_DATA)
	wantErrno(t, "behind the end", err, unix.ENXIO)
}

func (e *evictedFile) copyRange(t *testing.T) {
	to, err := os.Create(e.m.path("copy"))
	check(t, err)
	defer to.Close()
	off := int64(1000)
	n, err := unix.CopyFileRange(int(e.held.Fd()), &off, int(to.Fd()), nil, 100000, 0)
	check(t, err)
	if got, _ := os.ReadFile(e.m.path("copy")); n != 100000 || !bytes.Equal(got, e.want[1000:101000]) {
		t.Errorf("copied %d", n)
	}
}

func mapChild(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(bytes.Clone(mem))
	return errors.Join(err, unix.Munmap(mem), f.Close())
}

// A segment whose record is damaged is there, and cannot be read.
func TestQuarantinedFile(t *testing.T) {
	m := tieredTest(t, func(c *mountConfig) {
		c.prepare = func(src string) {
			check(t, os.Mkdir(src+"/t-0", 0o755))
			check(t, os.WriteFile(src+"/t-0/00000000000000000000.remote", make([]byte, 128), 0o640))
		}
	})
	path := m.path(segmentPath(0))
	if got := listNames(t, m.path("t-0")); !slices.Equal(got, []string{"00000000000000000000.log"}) {
		t.Errorf("names: %q", got)
	}
	_ = stat(t, path)
	_, err := os.ReadFile(path)
	wantErrno(t, "read", err, unix.EIO)
	wantErrno(t, "write", writeAt(path, 0, "x"), unix.EIO)
}

package fs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestChangeEvictedFile(t *testing.T) {
	const size = 200000
	want := pattern(size, 0)
	for name, c := range map[string]struct {
		change func(t *testing.T, m *tieredMount, path string) error
		want   []byte
		gets   bool
	}{
		"write": {func(t *testing.T, m *tieredMount, path string) error {
			return writeAt(path, 70000, "changed")
		}, slices.Concat(want[:70000], []byte("changed"), want[70007:]), true},
		"append": {func(t *testing.T, m *tieredMount, path string) error {
			return writeAt(path, size, "more")
		}, slices.Concat(want, []byte("more")), true},
		"truncate": {func(t *testing.T, m *tieredMount, path string) error { return os.Truncate(path, 1000) }, want[:1000], true},
		"empty":    {func(t *testing.T, m *tieredMount, path string) error { return os.Truncate(path, 0) }, nil, false},
		"truncating open": {func(t *testing.T, m *tieredMount, path string) error {
			return os.WriteFile(path, []byte("new"), 0)
		}, []byte("new"), false},
		"punch": {func(t *testing.T, m *tieredMount, path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			check(t, err)
			defer f.Close()
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 5000)
		}, slices.Concat(make([]byte, 5000), want[5000:]), true},
	} {
		t.Run(name, func(t *testing.T) {
			m := tieredTest(t)
			m.fill(1, size)
			path := m.path(segmentPath(0))
			ino := stat(t, path).Ino
			if n := m.tierOut(); n != 1 {
				t.Fatalf("evicted %d", n)
			}
			check(t, c.change(t, m, path))
			if got, err := os.ReadFile(path); !bytes.Equal(got, c.want) || err != nil {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
			if got, err := os.ReadFile(m.below(segmentPath(0))); !bytes.Equal(got, c.want) || err != nil {
				t.Errorf("below: %d bytes, %v", len(got), err)
			}
			if st := stat(t, path); st.Ino != ino || st.Size != int64(len(c.want)) {
				t.Errorf("inode %d, size %d", st.Ino, st.Size)
			}
			if (m.store.Count("get") > 0) != c.gets {
				t.Errorf("%d GETs", m.store.Count("get"))
			}
		})
	}
}

func writeAt(path string, off int64, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(s), off)
	return errors.Join(err, f.Close())
}

// Opening, attributes, renaming, unlinking and links never ask the store.
func TestEvictedFileWithoutStore(t *testing.T) {
	const size = 200000
	m := tieredTest(t)
	m.fill(2, size)
	m.tierOut()
	m.store.SetHook(func(context.Context, string, string) error { return errors.New("the store is away") })
	path := m.path(segmentPath(0))
	held, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer held.Close()
	dropFD(t, held)
	check(t, os.Chmod(path, 0o600))
	check(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(2, 0)))
	check(t, held.Sync())
	check(t, os.Link(path, m.path("linked")))
	check(t, os.Rename(path, path+".deleted"))
	for _, p := range []string{path + ".deleted", m.path("linked")} {
		if st := stat(t, p); st.Size != size || st.Mtim.Sec != 2 || st.Mode&0o777 != 0o600 || st.Nlink != 2 {
			t.Errorf("%s: %+v", p, st)
		}
	}
	check(t, os.Remove(path+".deleted"))
	check(t, os.Remove(m.path("linked")))
	check(t, os.Rename(m.path("t-0"), m.path("t-0.x-delete")))

	m.store.SetHook(nil)
	got, err := io.ReadAll(io.NewSectionReader(held, 0, size))
	if !bytes.Equal(got, pattern(size, 0)) || err != nil {
		t.Errorf("the unlinked open segment: %d bytes, %v", len(got), err)
	}
	got, err = os.ReadFile(m.path("t-0.x-delete/00000000000000001000.log"))
	if !bytes.Equal(got, pattern(size, 1)) || err != nil {
		t.Errorf("in the renamed directory: %d bytes, %v", len(got), err)
	}
}

package fs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// An inode that has lost its last name can be used by whoever got to it before.
func TestNameless(t *testing.T) {
	m := mountTest(t)
	for name, lose := range map[string]func(t *testing.T, path string){
		"unlinked": func(t *testing.T, path string) { check(t, os.Remove(path)) },
		"replaced": func(t *testing.T, path string) {
			check(t, os.WriteFile(path+".tmp", []byte("new"), 0o644))
			check(t, os.Rename(path+".tmp", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := m.path(name)
			check(t, os.WriteFile(path, []byte("old"), 0o644))
			fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			check(t, err)
			defer unix.Close(fd)
			lose(t, path)
			var st unix.Stat_t
			check(t, unix.Fstat(fd, &st))
			if st.Nlink != 0 {
				t.Errorf("%d links", st.Nlink)
			}
			got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd))
			if string(got) != "old" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	t.Run("removed", func(t *testing.T) {
		check(t, os.Mkdir(m.path("dir"), 0o755))
		dir, err := unix.Open(m.path("dir"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(t, err)
		defer unix.Close(dir)
		check(t, os.Remove(m.path("dir")))
		wantErrno(t, "create", unix.Mkdirat(dir, "sub", 0o755), unix.ENOENT)
		names, err := filepath.Glob(fmt.Sprintf("/proc/self/fd/%d/*", dir))
		if len(names) > 0 || err != nil {
			t.Errorf("got %v, %v", names, err)
		}
	})
}

// What failed to go is not kept.
func TestNotKept(t *testing.T) {
	m := mountTest(t)
	check(t, os.MkdirAll(m.path("dir", "sub"), 0o755))
	before := len(openFDs(t))
	wantErrno(t, "rmdir", unix.Rmdir(m.path("dir")), unix.ENOTEMPTY)
	if after := len(openFDs(t)); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

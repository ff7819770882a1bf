package fs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What stands in the directory: two segments, which are evicted where it is on a mount,
// and a local one, a directory "sub", a symlink "sym" and a "file".
const evictedLog, secondLog, localLog = "00000000000000000000.log", "00000000000000001000.log", "00000000000000002000.log"

// nameChange is something that is done to names of a directory.
type nameChange struct {
	what    string
	do      func(dir string) error
	refused bool // with EINVAL, where a native directory does it
}

func nameChanges() []nameChange {
	rename := func(from, to string, flags uint) func(string) error {
		return func(dir string) error {
			return unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, from), unix.AT_FDCWD, filepath.Join(dir, to), flags)
		}
	}
	return []nameChange{
		{"a directory over it", rename("sub", evictedLog, 0), false},
		{"it over a directory", rename(evictedLog, "sub", 0), false},
		{"a file over it, not replacing", rename("file", evictedLog, unix.RENAME_NOREPLACE), false},
		{"a directory over it, not replacing", rename("sub", evictedLog, unix.RENAME_NOREPLACE), false},
		{"it over a file, not replacing", rename(evictedLog, "file", unix.RENAME_NOREPLACE), false},
		{"it to a free name, not replacing", rename(evictedLog, "free", unix.RENAME_NOREPLACE), false},
		{"it over a symlink", rename(evictedLog, "sym", 0), false},
		{"it over a file", rename(evictedLog, "file", 0), false},
		{"it over another", rename(evictedLog, secondLog, 0), false},
		{"it over itself", rename(evictedLog, evictedLog, 0), false},
		{"a symlink over it", rename("sym", evictedLog, 0), false},
		{"a file over it", rename("file", evictedLog, 0), false},
		{"a link of a file to its name", func(dir string) error {
			return unix.Link(filepath.Join(dir, "file"), filepath.Join(dir, evictedLog))
		}, false},
		{"a link of it to its own name", func(dir string) error {
			return unix.Link(filepath.Join(dir, evictedLog), filepath.Join(dir, evictedLog))
		}, false},
		{"a directory of its name", func(dir string) error { return unix.Mkdir(filepath.Join(dir, evictedLog), 0o755) }, false},
		{"a symlink of its name", func(dir string) error { return unix.Symlink("x", filepath.Join(dir, evictedLog)) }, false},
		{"a fifo of its name", func(dir string) error { return unix.Mknod(filepath.Join(dir, evictedLog), unix.S_IFIFO|0o644, 0) }, false},
		{"rmdir of it", func(dir string) error { return unix.Rmdir(filepath.Join(dir, evictedLog)) }, false},
		{"an exchange of two", rename(evictedLog, secondLog, unix.RENAME_EXCHANGE), false},
		{"an exchange with nothing", rename(evictedLog, "free", unix.RENAME_EXCHANGE), false},
		{"an exchange with a file", rename(evictedLog, "file", unix.RENAME_EXCHANGE), true},
		{"an exchange of a directory with it", rename("sub", evictedLog, unix.RENAME_EXCHANGE), true},
		{"an exchange of a file and a directory", rename("file", "sub", unix.RENAME_EXCHANGE), false},
		{"both flags", rename("file", "sub", unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE), false},
	}
}

// TestNamesOfSegmentsAsNative does to an evicted segment through the mount what it
// does to a file of the same name in a native directory: the answers are the same, and
// so is what stands under the names afterwards.
func TestNamesOfSegmentsAsNative(t *testing.T) {
	for _, c := range nameChanges() {
		t.Run(c.what, func(t *testing.T) {
			m := tieredTest(t)
			m.fill(2, 5000)
			native := t.TempDir()
			for _, name := range []string{evictedLog, secondLog, localLog} {
				b, err := os.ReadFile(m.path("t-0/" + name))
				check(t, err)
				check(t, os.WriteFile(filepath.Join(native, name), b, 0o640))
			}
			if n := m.tierOut(); n != 2 {
				t.Fatalf("%d segments were evicted", n)
			}
			dirs := []string{native, m.path("t-0")}
			var errs []error
			for _, dir := range dirs {
				check(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
				check(t, os.Symlink("elsewhere", filepath.Join(dir, "sym")))
				check(t, os.WriteFile(filepath.Join(dir, "file"), []byte("file"), 0o640))
				before := contents(t, dir)
				err := c.do(dir)
				if errs = append(errs, err); err != nil && !slices.Equal(contents(t, dir), before) {
					t.Errorf("%s changed it: %v", err, contents(t, dir))
				}
			}
			if c.refused {
				wantErrno(t, "through the mount", errs[1], unix.EINVAL)
				return
			}
			if !errors.Is(errs[1], errs[0]) {
				t.Errorf("native: %v, through the mount: %v", errs[0], errs[1])
			}
			if want, got := contents(t, native), contents(t, m.path("t-0")); !slices.Equal(want, got) {
				t.Errorf("native:\n%q\nthrough the mount:\n%q", want, got)
			}
		})
	}
}

// contents lists what stands in a directory.
func contents(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		line := e.Type().String() + " " + e.Name()
		if e.Type().IsRegular() {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			check(t, err)
			line += " " + string(b)
		}
		out = append(out, line)
	}
	return out
}

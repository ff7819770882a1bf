package durable

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		writeForEver(dir)
	}
	before := openFDs()
	code := m.Run()
	if after := openFDs(); after != before && code == 0 {
		fmt.Fprintf(os.Stderr, "%d descriptors were open before the tests, %d after them\n", before, after)
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

// tree is a directory to work in.
type tree struct {
	t    *testing.T
	path string
	fd   int
}

func newTree(t *testing.T) tree {
	t.Helper()
	tr := tree{t: t, path: t.TempDir()}
	tr.fd = tr.open(".", unix.O_RDONLY)
	return tr
}

// open opens a directory below the tree until the test ends.
func (tr tree) open(name string, flags int) int {
	tr.t.Helper()
	fd, err := unix.Open(filepath.Join(tr.path, name), flags|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	tr.do(err)
	tr.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func (tr tree) do(err error) {
	tr.t.Helper()
	if err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) write(name, data string) {
	tr.t.Helper()
	tr.do(os.WriteFile(filepath.Join(tr.path, name), []byte(data), 0o600))
}

// state describes all that is below the tree, a line each: mode, path,
// content.
func (tr tree) state() string {
	tr.t.Helper()
	var b strings.Builder
	tr.do(filepath.WalkDir(tr.path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == tr.path {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var data []byte
		if info.Mode().IsRegular() {
			data, err = os.ReadFile(path)
		}
		fmt.Fprintf(&b, "%v %s %q\n", info.Mode(), strings.TrimPrefix(path, tr.path+"/"), data)
		return err
	}))
	return b.String()
}

// withoutTemp drops the lines of temporary files from a state.
func withoutTemp(state string) string {
	var b strings.Builder
	for line := range strings.Lines(state) {
		if !strings.Contains(line, TempPrefix) {
			b.WriteString(line)
		}
	}
	return b.String()
}

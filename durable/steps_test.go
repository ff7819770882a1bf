package durable

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// operation is one call of this package on a tree of its own.
type operation struct {
	name  string
	setup func(tree)
	run   func(d disk, tr tree) error
}

func operations() []operation {
	none := func(tree) {}
	file := func(tr tree) { tr.write("f", "old") }
	twoDirs := func(tr tree) {
		tr.do(os.Mkdir(tr.path+"/a", 0o700))
		tr.do(os.Mkdir(tr.path+"/b", 0o700))
		tr.write("a/f", "moved")
	}
	write := func(flags uint) func(disk, tree) error {
		return func(d disk, tr tree) error { return d.writeFile(tr.fd, "f", []byte("new"), 0o640, flags) }
	}
	mkdirAll := func(path string) func(disk, tree) error {
		return func(d disk, tr tree) error {
			fd, err := d.mkdirAll(tr.fd, path, 0o750)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	return []operation{
		{"WriteFile, no file", none, write(0)},
		{"WriteFile, old file", file, write(0)},
		{"WriteFile, O_PATH directory", file, func(d disk, tr tree) error {
			return d.writeFile(tr.open(".", unix.O_PATH), "f", []byte("new"), 0o640, 0)
		}},
		{"CreateFile", none, write(unix.RENAME_NOREPLACE)},
		{"Rename, one directory", file, func(d disk, tr tree) error {
			return d.rename(tr.fd, "f", tr.fd, "g", 0)
		}},
		{"Rename, one directory by two descriptors", file, func(d disk, tr tree) error {
			return d.rename(tr.fd, "f", tr.open(".", unix.O_RDONLY), "g", 0)
		}},
		{"Rename, two directories", func(tr tree) {
			twoDirs(tr)
			tr.write("b/f", "replaced")
		}, func(d disk, tr tree) error {
			return d.rename(tr.open("a", unix.O_RDONLY), "f", tr.open("b", unix.O_PATH), "f", 0)
		}},
		{"RenameNoReplace", twoDirs, func(d disk, tr tree) error {
			return d.rename(tr.open("a", unix.O_RDONLY), "f", tr.open("b", unix.O_RDONLY), "f", unix.RENAME_NOREPLACE)
		}},
		{"Unlink", file, func(d disk, tr tree) error { return d.unlink(tr.fd, "f") }},
		{"Mkdir", none, mkdirAll("sub")},
		{"Mkdir, there already", func(tr tree) { tr.do(os.Mkdir(tr.path+"/sub", 0o700)) }, mkdirAll("sub")},
		{"MkdirAll", none, mkdirAll("sub/deep")},
		{"SyncDir", none, func(d disk, tr tree) error { return d.syncDir(tr.fd) }},
		{"SweepTemp", func(tr tree) {
			tr.write(TempPrefix+"0123456789abcdef", "left")
		}, func(d disk, tr tree) error { return d.sweepTemp(tr.fd) }},
		{"ReadFile", file, func(d disk, tr tree) error {
			_, err := d.readFile(tr.fd, "f", 3)
			return err
		}},
	}
}

// The order of the system calls is what the promises rest on; no test without
// a power switch sees it from outside. TRACE_UPDATE=1 writes the file anew.
func TestTrace(t *testing.T) {
	const golden = "testdata/traces.txt"
	temp := regexp.MustCompile(regexp.QuoteMeta(TempPrefix) + "[0-9a-f]{16}")
	var got strings.Builder
	for _, op := range operations() {
		tr := newTree(t)
		op.setup(tr)
		got.WriteString("# " + op.name + "\n")
		d := disk{before: func(op, paths string) error {
			paths = strings.ReplaceAll(paths, tr.path+"/", "")
			paths = strings.ReplaceAll(paths, tr.path, ".")
			got.WriteString(op + " " + temp.ReplaceAllString(paths, "TEMP") + "\n")
			return nil
		}}
		if err := op.run(d, tr); err != nil {
			t.Errorf("%s: %v", op.name, err)
		}
		got.WriteString("\n")
	}
	if os.Getenv("TRACE_UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Error(diff)
	}
}

// outcomes returns the state of the operation's tree before it and after it,
// and the number of calls between.
func (op operation) outcomes(t *testing.T) (old, done string, calls int) {
	tr := newTree(t)
	op.setup(tr)
	old = tr.state()
	d := disk{before: func(string, string) error {
		calls++
		return nil
	}}
	if err := op.run(d, tr); err != nil {
		t.Fatal(err)
	}
	return old, tr.state(), calls
}

var errInjected = unix.EIO

// Each call of each operation fails once, and everything works again after it:
// what was there before, or what was asked for, and nothing besides.
func TestFailure(t *testing.T) {
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			old, done, calls := op.outcomes(t)
			for k := range calls {
				fail := failing{first: k, last: k}
				tr, err := fail.run(t, op)
				got := tr.state()
				switch {
				case fail.op == "close" && (err != nil || got != done):
					t.Errorf("failed close %d: %v\n%s", k, err, got)
				case fail.op == "close":
				case !errors.Is(err, errInjected):
					t.Errorf("call %d, %s: error %v", k, fail.op, err)
				case got == old:
				case op.name == "MkdirAll" && strings.HasPrefix(done, got): // the first of two
				case got != done || fail.op != "fsync":
					t.Errorf("call %d, %s: left\n%swant\n%sor, if it is the last fsync,\n%s", k, fail.op, got, old, done)
				}
			}
		})
	}
}

// The process dies ahead of each call of each operation: nothing that comes
// later happens, the cleaning up included.
func TestCrash(t *testing.T) {
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			old, done, calls := op.outcomes(t)
			for k := range calls {
				fail := failing{first: k, last: calls * 2}
				tr, _ := fail.run(t, op)
				got := withoutTemp(tr.state())
				if got != withoutTemp(old) && got != done && (op.name != "MkdirAll" || !strings.HasPrefix(done, got)) {
					t.Errorf("dead before call %d, %s: left\n%swant\n%sor\n%s", k, fail.op, got, old, done)
				}
				if err := SweepTemp(tr.fd); err != nil {
					t.Error(err)
				}
				for line := range strings.Lines(tr.state()) {
					if strings.Contains(line, " "+TempPrefix) {
						t.Errorf("dead before call %d, %s: the sweep left %s", k, fail.op, line)
					}
				}
			}
		})
	}
}

// failing fails the calls from first to last.
type failing struct {
	first, last int
	op          string // of the first
}

func (f *failing) run(t *testing.T, op operation) (tree, error) {
	tr := newTree(t)
	op.setup(tr)
	n := 0
	err := op.run(disk{before: func(op, _ string) error {
		n++
		if n-1 == f.first {
			f.op = op
		}
		if n-1 < f.first || n-1 > f.last {
			return nil
		}
		return errInjected
	}}, tr)
	return tr, err
}

// A signal interrupts every call once; nobody notices.
func TestInterrupted(t *testing.T) {
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			_, done, calls := op.outcomes(t)
			tr := newTree(t)
			op.setup(tr)
			n := 0
			err := op.run(disk{before: func(op, _ string) error {
				if n++; n%2 == 1 && op != "close" {
					return unix.EINTR
				}
				return nil
			}}, tr)
			if got := tr.state(); err != nil || got != done {
				t.Errorf("%v\n%swant\n%s", err, got, done)
			}
			if n < calls+calls/2 {
				t.Errorf("%d calls, %d without a signal", n, calls)
			}
		})
	}
}

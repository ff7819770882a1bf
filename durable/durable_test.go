package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func (tr tree) want(state string) {
	tr.t.Helper()
	if got := tr.state(); got != state {
		tr.t.Errorf("have\n%swant\n%s", got, state)
	}
}

func (tr tree) wantErr(err error, want unix.Errno) {
	tr.t.Helper()
	if !errors.Is(err, want) {
		tr.t.Errorf("error %v, want %v", err, want)
	}
}

func TestWriteFile(t *testing.T) {
	t.Run("content and mode", func(t *testing.T) {
		tr := newTree(t)
		defer unix.Umask(unix.Umask(0o077))
		tr.do(WriteFile(tr.fd, "f", []byte("one"), 0o664))
		tr.want("-rw-rw-r-- f \"one\"\n")
		tr.do(WriteFile(tr.fd, "f", nil, 0o600))
		tr.want("-rw------- f \"\"\n")
	})
	t.Run("large", func(t *testing.T) {
		tr := newTree(t)
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		tr.do(WriteFile(tr.fd, "f", want, 0o600))
		if got, err := ReadFile(tr.fd, "f", int64(len(want))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read %d bytes back, %v", len(got), err)
		}
	})
	t.Run("short write", shortWrite)
	t.Run("longest name", func(t *testing.T) {
		tr := newTree(t)
		tr.do(WriteFile(tr.fd, strings.Repeat("n", 255), []byte("x"), 0o600))
		tr.wantErr(WriteFile(tr.fd, strings.Repeat("n", 256), []byte("x"), 0o600), unix.ENAMETOOLONG)
		if n := strings.Count(tr.state(), "\n"); n != 1 {
			t.Errorf("%d files", n)
		}
	})
	t.Run("an open reader keeps the old file", func(t *testing.T) {
		tr := newTree(t)
		tr.write("f", "old")
		f, err := os.Open(filepath.Join(tr.path, "f"))
		tr.do(err)
		defer f.Close()
		tr.do(WriteFile(tr.fd, "f", []byte("new, longer"), 0o600))
		b := make([]byte, 20)
		if n, _ := f.ReadAt(b, 0); string(b[:n]) != "old" {
			t.Errorf("read %q", b[:n])
		}
	})
	t.Run("over a symlink", func(t *testing.T) {
		tr := newTree(t)
		tr.write("target", "untouched")
		tr.do(os.Symlink("target", filepath.Join(tr.path, "f")))
		tr.do(WriteFile(tr.fd, "f", []byte("new"), 0o600))
		tr.want("-rw------- f \"new\"\n-rw------- target \"untouched\"\n")
	})
	t.Run("over a directory", func(t *testing.T) {
		tr := newTree(t)
		tr.do(os.Mkdir(filepath.Join(tr.path, "f"), 0o700))
		tr.wantErr(WriteFile(tr.fd, "f", []byte("new"), 0o600), unix.EISDIR)
		tr.want("drwx------ f \"\"\n")
	})
}

// The kernel takes what fits below the limit, as it does on a disk that
// fills up, and refuses the rest.
func shortWrite(t *testing.T) {
	tr := newTree(t)
	tr.write("f", "old")
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var limit unix.Rlimit
	tr.do(unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	tr.do(unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: limit.Max}))
	err := WriteFile(tr.fd, "f", make([]byte, 1<<20+1), 0o600)
	tr.do(unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
	tr.wantErr(err, unix.EFBIG)
	tr.want("-rw------- f \"old\"\n")
}

func TestCreateFile(t *testing.T) {
	t.Run("there already", func(t *testing.T) {
		tr := newTree(t)
		tr.write("f", "old")
		err := CreateFile(tr.fd, "f", []byte("new"), 0o600)
		tr.wantErr(err, unix.EEXIST)
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v is not fs.ErrExist", err)
		}
		tr.want("-rw------- f \"old\"\n")
	})
	t.Run("many at once", func(t *testing.T) {
		tr := newTree(t)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() { errs[i] = CreateFile(tr.fd, "f", fmt.Append(nil, i), 0o600) })
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			if err == nil && winner >= 0 {
				t.Errorf("%d and %d both made it", winner, i)
			}
			if err == nil {
				winner = i
			} else {
				tr.wantErr(err, unix.EEXIST)
			}
		}
		tr.want(fmt.Sprintf("-rw------- f \"%d\"\n", winner))
	})
}

func TestRename(t *testing.T) {
	t.Run("no replace", func(t *testing.T) {
		tr := newTree(t)
		tr.write("f", "one")
		tr.write("g", "two")
		tr.wantErr(RenameNoReplace(tr.fd, "f", tr.fd, "g"), unix.EEXIST)
		tr.want("-rw------- f \"one\"\n-rw------- g \"two\"\n")
		tr.do(Rename(tr.fd, "f", tr.fd, "g"))
		tr.want("-rw------- g \"one\"\n")
	})
	t.Run("missing", func(t *testing.T) {
		tr := newTree(t)
		err := Rename(tr.fd, "f", tr.fd, "g")
		tr.wantErr(err, unix.ENOENT)
		for _, name := range []string{filepath.Join(tr.path, "f"), filepath.Join(tr.path, "g")} {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%v does not name %s", err, name)
			}
		}
	})
	t.Run("not a directory", func(t *testing.T) {
		tr := newTree(t)
		tr.write("f", "")
		tr.wantErr(Rename(tr.fd, "f", -1, "g"), unix.EBADF)
		tr.want("-rw------- f \"\"\n")
	})
}

func TestUnlink(t *testing.T) {
	tr := newTree(t)
	tr.write("f", "")
	tr.do(os.Mkdir(filepath.Join(tr.path, "sub"), 0o700))
	tr.do(Unlink(tr.fd, "f"))
	tr.wantErr(Unlink(tr.fd, "f"), unix.ENOENT)
	tr.wantErr(Unlink(tr.fd, "sub"), unix.EISDIR)
	tr.want("drwx------ sub \"\"\n")
}

func TestMkdir(t *testing.T) {
	t.Run("mode", func(t *testing.T) {
		tr := newTree(t)
		defer unix.Umask(unix.Umask(0o077))
		for _, perm := range []uint32{0o755, 0o700} { // the second finds it there
			fd, err := Mkdir(tr.fd, "sub", perm)
			tr.do(err)
			tr.do(WriteFile(fd, "f", []byte("x"), 0o600))
			tr.do(unix.Close(fd))
			tr.want("drwxr-xr-x sub \"\"\n-rw------- sub/f \"x\"\n")
		}
	})
	t.Run("all", func(t *testing.T) {
		tr := newTree(t)
		fd, err := MkdirAll(tr.fd, "a/b/c", 0o700)
		tr.do(err)
		tr.do(unix.Close(fd))
		fd, err = MkdirAll(tr.fd, "a/d", 0o700)
		tr.do(err)
		tr.do(unix.Close(fd))
		tr.want("drwx------ a \"\"\ndrwx------ a/b \"\"\ndrwx------ a/b/c \"\"\ndrwx------ a/d \"\"\n")
	})
	for _, path := range []string{"", "/a", "a/", "a//b", "..", "a/../b", "."} {
		t.Run("all of "+path, func(t *testing.T) {
			_, err := MkdirAll(newTree(t).fd, path, 0o700)
			if !errors.Is(err, unix.EINVAL) {
				t.Errorf("MkdirAll(%q): %v", path, err)
			}
		})
	}
	t.Run("something else is there", func(t *testing.T) {
		tr := newTree(t)
		tr.write("f", "")
		tr.do(os.Mkdir(filepath.Join(tr.path, "real"), 0o700))
		tr.do(os.Symlink("real", filepath.Join(tr.path, "link")))
		for _, name := range []string{"f", "link"} {
			fd, err := Mkdir(tr.fd, name, 0o700)
			if tr.wantErr(err, unix.ENOTDIR); fd != -1 {
				t.Errorf("descriptor %d", fd)
			}
		}
	})
	t.Run("many at once", func(t *testing.T) {
		tr := newTree(t)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				fd, err := Mkdir(tr.fd, "sub", 0o700)
				if err != nil {
					t.Error(err)
					return
				}
				unix.Close(fd)
			})
		}
		wg.Wait()
		tr.want("drwx------ sub \"\"\n")
	})
}

func TestReadFile(t *testing.T) {
	tr := newTree(t)
	tr.write("f", "12345")
	tr.write("empty", "")
	tr.do(os.Mkdir(filepath.Join(tr.path, "sub"), 0o700))
	tr.do(os.Symlink("f", filepath.Join(tr.path, "link")))
	tr.do(unix.Mknodat(tr.fd, "pipe", unix.S_IFIFO|0o600, 0))
	for _, tc := range []struct {
		name  string
		limit int64
		data  string
		err   error
	}{
		{"f", 5, "12345", nil},
		{"f", 1 << 40, "12345", nil},
		{"f", 4, "", unix.EFBIG},
		{"empty", 0, "", nil},
		{"sub", 5, "", unix.EISDIR},
		{"link", 5, "", unix.ELOOP},
		{"pipe", 5, "", unix.EINVAL},
		{"missing", 5, "", fs.ErrNotExist},
	} {
		t.Run(fmt.Sprintf("%s up to %d", tc.name, tc.limit), func(t *testing.T) {
			data, err := ReadFile(tr.fd, tc.name, tc.limit)
			if string(data) != tc.data || !errors.Is(err, tc.err) {
				t.Errorf("ReadFile = %q, %v, want %q, %v", data, err, tc.data, tc.err)
			}
			if err != nil && !strings.Contains(err.Error(), filepath.Join(tr.path, tc.name)) {
				t.Errorf("%v does not name the file", err)
			}
		})
	}
	t.Run("size unknown beforehand", func(t *testing.T) {
		proc, err := unix.Open("/proc/self", unix.O_PATH|unix.O_CLOEXEC, 0)
		tr.do(err)
		defer unix.Close(proc)
		if data, err := ReadFile(proc, "maps", 1<<20); err != nil || len(data) < 100 {
			t.Errorf("ReadFile = %q, %v", data, err)
		}
		data, err := ReadFile(proc, "maps", 10)
		if tr.wantErr(err, unix.EFBIG); data != nil {
			t.Errorf("%q beside the error", data)
		}
	})
}

func TestNames(t *testing.T) {
	tr := newTree(t)
	tr.write("f", "old")
	for _, name := range []string{"", ".", "..", "a/b", "/f", "f\x00", TempPrefix + "0123456789abcdef"} {
		_, readErr := ReadFile(tr.fd, name, 10)
		_, mkdirErr := Mkdir(tr.fd, name, 0o700)
		for call, err := range map[string]error{
			"WriteFile":       WriteFile(tr.fd, name, nil, 0o600),
			"CreateFile":      CreateFile(tr.fd, name, nil, 0o600),
			"ReadFile":        readErr,
			"Rename from":     Rename(tr.fd, name, tr.fd, "g"),
			"Rename to":       Rename(tr.fd, "f", tr.fd, name),
			"RenameNoReplace": RenameNoReplace(tr.fd, "f", tr.fd, name),
			"Unlink":          Unlink(tr.fd, name),
			"Mkdir":           mkdirErr,
		} {
			t.Run(fmt.Sprintf("%s %q", call, name), func(t *testing.T) {
				if !errors.Is(err, unix.EINVAL) {
					t.Errorf("%v, want EINVAL", err)
				}
			})
		}
	}
	tr.want("-rw------- f \"old\"\n")
}

func TestSync(t *testing.T) {
	tr := newTree(t)
	tr.do(SyncDir(tr.fd))
	tr.do(SyncDir(tr.open(".", unix.O_PATH)))
	tr.wantErr(SyncDir(-1), unix.EBADF)
	tr.do(SyncFile(tr.fd))
	tr.wantErr(SyncFile(tr.open(".", unix.O_PATH)), unix.EBADF)
}

func TestSweepTemp(t *testing.T) {
	tr := newTree(t)
	tr.write(TempPrefix+"file", "left")
	tr.do(os.Mkdir(filepath.Join(tr.path, TempPrefix+"dir"), 0o700))
	tr.write(".tierfs-partition", "stays")
	tr.write("x"+TempPrefix, "stays")
	tr.do(os.Mkdir(filepath.Join(tr.path, "sub"), 0o700))
	tr.write("sub/"+TempPrefix+"below", "stays")
	tr.do(SweepTemp(tr.open(".", unix.O_PATH)))
	tr.want("-rw------- .tierfs-partition \"stays\"\ndrwx------ sub \"\"\n-rw------- sub/" + TempPrefix + "below \"stays\"\n-rw------- x" + TempPrefix + " \"stays\"\n")
	t.Run("a directory that is in use", func(t *testing.T) {
		tr := newTree(t)
		tr.do(os.MkdirAll(filepath.Join(tr.path, TempPrefix+"dir", "sub"), 0o700))
		tr.write(TempPrefix+"file", "left")
		tr.wantErr(SweepTemp(tr.fd), unix.ENOTEMPTY)
		tr.want("drwx------ " + TempPrefix + "dir \"\"\ndrwx------ " + TempPrefix + "dir/sub \"\"\n")
	})
}

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hold runs a process that does something to a file and keeps it.
func hold(t *testing.T, script, file string) int {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script, "sh", file)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	return cmd.Process.Pid
}

// usedSource is a source with one segment.
func usedSource(t *testing.T) (source, file string) {
	t.Helper()
	source = t.TempDir()
	if err := os.MkdirAll(filepath.Join(source, "orders-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(source, "orders-0", "00000000000000000000.log")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	return source, file
}

func TestNobodyUsesSource(t *testing.T) {
	source, file := usedSource(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("nobody", func(t *testing.T) {
		hold(t, `exec 3<"$1"; echo ready; read x; :`, other)
		if u, ok, err := whoUsesSource(source); ok || err != nil {
			t.Errorf("got %v, %v", u, err)
		}
	})
	t.Run("this process does not count", func(t *testing.T) {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if u, ok, err := whoUsesSource(source); ok || err != nil {
			t.Errorf("got %v, %v", u, err)
		}
	})
	t.Run("a directory does not count", func(t *testing.T) {
		hold(t, `cd "$1"; echo ready; read x; :`, source)
		if u, ok, err := whoUsesSource(source); ok || err != nil {
			t.Errorf("got %v, %v", u, err)
		}
	})
}

func TestWhoUsesSource(t *testing.T) {
	source, file := usedSource(t)
	t.Run("open", func(t *testing.T) {
		pid := hold(t, `exec 3<"$1"; echo ready; read x; :`, file)
		u, ok, err := whoUsesSource(source)
		if !ok || err != nil || u.pid != pid || u.command != "sh" || u.path != file {
			t.Errorf("got %v, %v, %v", u, ok, err)
		}
		if s := u.String(); !strings.HasSuffix(s, "(sh) has "+file) {
			t.Errorf("got %q", s)
		}
	})
	t.Run("open by a hard link from outside", func(t *testing.T) {
		link := filepath.Join(filepath.Dir(source), "link")
		if err := os.Link(file, link); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(link)
		pid := hold(t, `exec 3<"$1"; echo ready; read x; :`, link)
		if u, ok, err := whoUsesSource(source); !ok || err != nil || u.pid != pid {
			t.Errorf("got %v, %v, %v", u, ok, err)
		}
	})
	t.Run("mapped, and closed", func(t *testing.T) {
		program := filepath.Join(source, "orders-0", "program")
		copyFile(t, "/bin/sleep", program)
		cmd := exec.Command(program, "60") // its text is mapped, no descriptor is left
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		u, ok, err := whoUsesSource(source)
		if !ok || err != nil || u.pid != cmd.Process.Pid {
			t.Errorf("got %v, %v, %v", u, ok, err)
		}
	})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestWhoIsIn(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tierfs-test", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	id, _, err := statx(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	device := deviceName(id)
	if u, ok, err := whoIsIn(device); ok || err != nil {
		t.Errorf("got %v, %v", u, err)
	}
	t.Run("working directory", func(t *testing.T) {
		pid := hold(t, `cd "$1"; echo ready; read x; :`, dir)
		if u, ok, err := whoIsIn(device); !ok || err != nil || u.pid != pid || u.path != dir {
			t.Errorf("got %v, %v, %v", u, ok, err)
		}
	})
}

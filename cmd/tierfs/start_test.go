package main

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asIs wants the source as the broker left it.
func (w *world) asIs() {
	w.t.Helper()
	info, err := os.Stat(w.source)
	if err != nil || info.Mode().Perm() != 0o755 {
		w.t.Errorf("the source is %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(filepath.Join(w.source, ".tierfs")); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("there is a .tierfs: %v", err)
	}
}

// failsToStart wants the daemon to end with one line that has the word.
func (w *world) failsToStart(word string) {
	w.t.Helper()
	w.ended(1)
	text, _ := w.daemon.log()
	last := text[strings.LastIndexByte(strings.TrimSuffix(text, "\n"), '\n')+1:]
	if !strings.HasPrefix(last, "tierfs: ") || !strings.Contains(last, word) {
		w.t.Errorf("%q is not in the last line:\n%s", word, text)
	}
}

// withoutFuse lets a daemon start where there is no FUSE.
func withoutFuse(d *daemonProcess) *daemonProcess {
	args := append([]string{"-c", `mount --bind /dev/null /dev/fuse && exec "$@"`, "sh", os.Args[0]}, d.cmd.Args[1:]...)
	script := exec.Command("/bin/sh", args...)
	script.Env, script.Stderr = d.cmd.Env, d.cmd.Stderr
	script.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	d.cmd = script
	return d
}

// TestStartFails: a first mount that fails late leaves a source on which the broker
// can start.
func TestStartFails(t *testing.T) {
	w := newWorld(t, 2)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("the address is taken", func(t *testing.T) {
		w.start("--admin-listen", l.Addr().String())
		w.failsToStart("admin.listen")
		w.asIs()
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Run("the kernel does not mount", func(t *testing.T) {
		w.launch(withoutFuse(w.command()))
		w.failsToStart(w.source)
		w.asIs()
	})
	t.Run("not root", func(t *testing.T) {
		d := w.command()
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		w.launch(d)
		w.failsToStart("root")
		w.asIs()
	})
	t.Run("a volume that is known stays closed", func(t *testing.T) {
		w.mount()
		w.stop()
		w.launch(withoutFuse(w.command()))
		w.failsToStart(w.source)
		if info, err := os.Stat(w.source); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the source is %v, %v", info.Mode(), err)
		}
		w.mount()
		w.readBack()
		w.stop()
	})
}

// TestLinkedSource: the operator names the source by a symbolic link.
func TestLinkedSource(t *testing.T) {
	w := newWorld(t, 2)
	real := w.source
	w.source += "-link"
	if err := os.Symlink(real, w.source); err != nil {
		t.Fatal(err)
	}
	w.mount()
	w.readBack()
	if s := w.status(); s.Source != real || s.Mountpoint != real {
		t.Errorf("source %s, mount point %s", s.Source, s.Mountpoint)
	}
	w.fails(1, []string{"already"}, "mount", "--store", "fs:"+w.store, real)
	w.stop()
	if text, _ := w.daemon.log(); strings.Contains(text, "read-ahead") {
		t.Errorf("got %s", text)
	}
}

// TestLostTerminal: neither the terminal's end nor that of the log's reader ends the
// mount under its users.
func TestLostTerminal(t *testing.T) {
	w := newWorld(t, 1)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d := w.command()
	d.cmd.Stderr = writer
	w.launch(d)
	writer.Close()
	for seen, buf := "", make([]byte, 4096); !strings.Contains(seen, "msg=mounted"); {
		n, err := reader.Read(buf)
		if err != nil {
			t.Fatalf("%v; it said\n%s", err, seen)
		}
		seen += string(buf[:n])
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	hold(t, `cd "$1"; echo ready; read x; :`, w.source)
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGTERM} { // each is answered by a line in the log
		if err := d.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		w.fails(1, []string{"in use"}, "unmount", w.source)
	}
	w.readBack()
}

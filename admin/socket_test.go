package admin

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

func TestSocket(t *testing.T) {
	t.Run("modes", func(t *testing.T) {
		dir := filepath.Join(tempDir(t), "run")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		start(t, &fake{}, func(o *Options) { o.RunDir = dir })
		for path, want := range map[string]os.FileMode{dir: 0o700, SocketPath(dir, volume): 0o600} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, %v", path, info.Mode(), err)
			}
		}
	})
	t.Run("a living one stays, and another source of the volume has one of its own", func(t *testing.T) {
		var dir string
		s, c := start(t, &fake{status: Status{PID: 1}}, func(o *Options) { dir = o.RunDir })
		copied, _ := start(t, &fake{status: Status{PID: 2}}, func(o *Options) { o.RunDir = dir })
		if s.Name() != volume || copied.Name() != volume+"-2" {
			t.Errorf("called %s and %s", s.Name(), copied.Name())
		}
		for pid, c := range map[int]*Client{1: c, 2: NewClient(dir, copied.Name())} {
			if s, err := c.Status(t.Context(), false); err != nil || s.PID != pid {
				t.Errorf("%d: %+v, %v", pid, s, err)
			}
		}
	})
	t.Run("there is an end to copies", func(t *testing.T) {
		var dir string
		start(t, &fake{}, func(o *Options) { dir = o.RunDir })
		for range maxCopies - 1 {
			start(t, &fake{}, func(o *Options) { o.RunDir = dir })
		}
		if _, err := listenSocket(dir, volume); !errors.Is(err, errAnswers) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a dead one is replaced", func(t *testing.T) {
		dir := tempDir(t)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: SocketPath(dir, volume)})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		_, c := start(t, &fake{}, func(o *Options) { o.RunDir = dir })
		if _, err := c.Status(t.Context(), false); err != nil {
			t.Error(err)
		}
	})
}

// TestInheritedSocket: who connects between two daemons is answered by the second.
func TestInheritedSocket(t *testing.T) {
	dir := tempDir(t)
	o := Options{
		Daemon: &fake{status: Status{PID: 2}}, RunDir: dir, Volume: volume, Listen: "127.0.0.1:0", Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}
	first, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	var kept *os.File
	var monitoring *os.File
	keep := func(file **os.File) func(int) error {
		return func(fd int) error {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			*file = os.NewFile(uintptr(dup), "kept")
			return err
		}
	}
	err = first.Lend(keep(&kept), keep(&monitoring))
	if err != nil {
		t.Fatal(err)
	}
	first.control.SetUnlinkOnClose(false) // it is killed
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var got Status
	asked := make(chan error, 1)
	go func() {
		var err error
		got, err = NewClient(dir, volume).Status(t.Context(), false)
		asked <- err
	}()
	o.Control, o.Monitoring = kept, monitoring
	second, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	if second.Name() != volume || second.Address() != first.Address() {
		t.Errorf("called %s, listens at %s instead of %s", second.Name(), second.Address(), first.Address())
	}
	second.Serve()
	if err := <-asked; err != nil || got.PID != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(SocketPath(dir, volume)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestSocketEnds(t *testing.T) {
	for _, served := range []bool{true, false} {
		t.Run(fmt.Sprintf("gone after Close, served %v", served), func(t *testing.T) {
			dir := tempDir(t)
			s, err := Listen(Options{
				Daemon: &fake{}, RunDir: dir, Volume: volume, Listen: "127.0.0.1:0",
				Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			if served {
				s.Serve()
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(SocketPath(dir, volume)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("got %v", err)
			}
			if c, err := net.Dial("tcp", s.Address()); err == nil {
				c.Close()
				t.Error("somebody still listens")
			}
		})
	}
	t.Run("directory is a link", func(t *testing.T) {
		dir := filepath.Join(tempDir(t), "run")
		if err := os.Symlink(tempDir(t), dir); err != nil {
			t.Fatal(err)
		}
		if _, err := listenSocket(dir, volume); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("address in use", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		dir := tempDir(t)
		_, err = Listen(Options{Daemon: &fake{}, RunDir: dir, Volume: volume, Listen: l.Addr().String(), Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "admin.listen") {
			t.Errorf("got %v", err)
		}
		if _, err := os.Lstat(SocketPath(dir, volume)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the control socket is left behind: %v", err)
		}
	})
}

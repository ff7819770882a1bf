package main

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/mountinfo"
)

// TestCoveredMount: somebody has mounted over the mount.
func TestCoveredMount(t *testing.T) {
	w := newWorld(t, 1)
	w.mount()
	if err := unix.Mount("cover", w.source, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := w.daemon.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.daemon.await(t, "tmpfs is mounted over it", 1)
	if err := unix.Unmount(w.source, 0); err != nil {
		t.Errorf("the cover is gone: %v", err)
	}
	w.readBack()
	w.stop()
}

// TestInsideMount: a command for a whole mount is not done for a path in it.
func TestInsideMount(t *testing.T) {
	w := newWorld(t, 1)
	w.mount()
	for _, command := range []string{"unmount", "status", "evict", "pause", "resume"} {
		w.fails(2, []string{"orders-0", "mount point"}, command, filepath.Join(w.source, "orders-0"))
	}
	w.stop()
}

// TestWhoIsInTouchesNothing: to look for the users of a mount is not to use it.
func TestWhoIsInTouchesNothing(t *testing.T) {
	w := newWorld(t, 1)
	address := freeAddress(t)
	w.mount("--admin-listen", address)
	m, _, err := mountinfo.At(w.source)
	if err != nil {
		t.Fatal(err)
	}
	pid := hold(t, `cd "$1"; echo ready; read x; :`, filepath.Join(w.source, "orders-0"))
	before := requests(t, address)
	w.fails(1, []string{"in use"}, "unmount", w.source)
	if u, ok, err := whoIsIn(m.Device); !ok || err != nil || u.pid != pid {
		t.Errorf("got %v, %v, %v", u, ok, err)
	}
	if after := requests(t, address); after != before {
		t.Errorf("the mount was asked:\n%s\nbefore:\n%s", after, before)
	}
}

// requests are the counters of the kernel's requests that a monitor is shown.
func requests(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "tierfs_fuse_requests_total{") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// freeAddress is one that nobody listens on just now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

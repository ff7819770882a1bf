package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/mountinfo"
)

// TestLife is what an operator does, on a real mount: adopt, look, evict, read
// back, check, unmount.
func TestLife(t *testing.T) {
	w := newWorld(t, 4)
	w.mount()
	w.readBack()
	t.Run("status", func(t *testing.T) { statusOfNew(t, w) })
	t.Run("the source is closed, the mount is not", func(t *testing.T) {
		info, err := os.Stat(w.source)
		if err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("through the mount: %v, %v", info.Mode(), err)
		}
		if _, err := os.Lstat(filepath.Join(w.source, ".tierfs")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf(".tierfs can be seen: %v", err)
		}
	})
	t.Run("mounted twice", func(t *testing.T) {
		w.fails(1, []string{w.source, "already", "tierfs upgrade", "tierfs unmount " + w.source}, "mount", "--store", "fs:"+w.store, w.source)
	})
	t.Run("evict", func(t *testing.T) {
		out := w.must("evict", "--all", w.source)
		if !strings.Contains(out, "evicted 3 segments") || !strings.Contains(out, "active") {
			t.Errorf("got %s", out)
		}
		if s := w.status(); s.Segments["remote"] != 3 || s.Segments["active"] != 1 || s.Bytes["remote"] == 0 || s.UploadLagBytes != 0 {
			t.Errorf("got %+v", s)
		}
		if out := w.must("evict", "--all", w.source); !strings.Contains(out, "uploaded 0 segments, 0 B\nevicted 0 segments, 0 B (3 segments, ") {
			t.Errorf("again: got %s", out)
		}
		w.readBack()
	})
	t.Run("ls", func(t *testing.T) { lsAfterEviction(t, w) })
	t.Run("pause", func(t *testing.T) { pauseAndResume(t, w) })
	t.Run("check", func(t *testing.T) {
		if out := w.must("check", w.source); !strings.Contains(out, "1 partitions, 3 records, 6 objects: 0 findings") {
			t.Errorf("got %s", out)
		}
	})
	w.must("unmount", w.source)
	if left := w.daemon.processes(); len(left) > 0 {
		t.Errorf("unmount did not wait for processes %v", left)
	}
	w.ended(0)
	t.Run("after unmount", func(t *testing.T) {
		info, err := os.Stat(w.source)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the source is %v, %v", info.Mode(), err)
		}
		w.fails(1, []string{"no tierfs is mounted"}, "status", w.source)
		if out := w.must("check", "--store", "fs:"+w.store, w.source); !strings.Contains(out, "0 findings") {
			t.Errorf("got %s", out)
		}
	})
}

func pauseAndResume(t *testing.T, w *world) {
	t.Helper()
	w.must("pause", w.source)
	if !w.status().Paused {
		t.Error("not paused")
	}
	w.fails(1, []string{"paused"}, "evict", "--all", w.source)
	if err := unix.Kill(w.status().PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.daemon.await(w.t, "took the mount over", 1)
	if !w.status().Paused {
		t.Error("the successor is not paused")
	}
	w.must("resume", w.source)
	if w.status().Paused {
		t.Error("still paused")
	}
}

func statusOfNew(t *testing.T, w *world) {
	t.Helper()
	s := w.status()
	if s.Holder.PID != w.daemon.cmd.Process.Pid || s.PID == s.Holder.PID || s.Holder.Kind != "process" || s.Writes != "writeback" || s.Layout != "kafka" ||
		!s.Store.Reachable || s.Store.Backend != "fs" || s.Mountpoint != w.source || len(s.Volume) != 32 {
		t.Errorf("got %+v", s)
	}
	if out := w.must("status", "--topics", w.source); !strings.Contains(out, "orders  ") || !strings.Contains(out, "reachable") {
		t.Errorf("got %s", out)
	}
}

func lsAfterEviction(t *testing.T, w *world) {
	t.Helper()
	var list []admin.Segment
	if err := json.Unmarshal([]byte(w.must("ls", "--json", w.source+"/orders-0")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 4 || list[0].State != "remote" || list[0].End == nil || list[3].State != "active" || list[3].Why != "active" {
		t.Errorf("got %+v", list)
	}
	if int(list[0].Size) != len(w.logs["orders-0/"+list[0].Stem+".log"]) {
		t.Errorf("the size is %d", list[0].Size)
	}
	w.fails(1, []string{"orders-7", "no partition"}, "ls", w.source+"/orders-7")
	w.fails(2, []string{"partition"}, "ls", w.source)
}

func TestUnmountWhileInUse(t *testing.T) {
	w := newWorld(t, 2)
	w.mount()
	busy := fmt.Sprintf("process %d (sh)", hold(t, `cd "$1"; echo ready; read x; :`, w.source))
	w.fails(1, []string{"in use", busy}, "unmount", w.source)
	if err := w.daemon.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	w.daemon.await(t, busy, 1)
	w.readBack()
}

// TestDeadMount: the daemon was killed, its mount is still there.
func TestDeadMount(t *testing.T) {
	w := newWorld(t, 3)
	w.mount()
	w.must("evict", "--all", w.source)
	w.daemon.kill()
	w.fails(1, []string{"no daemon answers"}, "status", w.source)
	if err := os.Rename(w.store, w.store+"-away"); err != nil { // and the store is away
		t.Fatal(err)
	}
	w.mount()
	if s := w.status(); s.Segments["remote"] != 2 || s.Store.Reachable || s.Store.Error == "" || s.Owner {
		t.Errorf("got %+v", s)
	}
	active := fmt.Sprintf("orders-0/%020d.log", 80)
	if got, err := os.ReadFile(filepath.Join(w.source, active)); err != nil || string(got) != string(w.logs[active]) {
		t.Errorf("the local segment cannot be read: %v", err)
	}
	if err := os.Rename(w.store+"-away", w.store); err != nil {
		t.Fatal(err)
	}
	w.readBack()
	if s := w.status(); !s.Store.Reachable {
		t.Errorf("got %+v", s.Store)
	}
	w.stop()
}

// TestAbortedSession: somebody aborted the connection by way of the kernel.
func TestAbortedSession(t *testing.T) {
	w := newWorld(t, 1)
	w.mount()
	connections := t.TempDir()
	if err := unix.Mount("none", connections, "fusectl", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(connections, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	m, _, err := mountinfo.At(w.source)
	if err != nil {
		t.Fatal(err)
	}
	_, number, _ := strings.Cut(m.Device, ":")
	if err := os.WriteFile(filepath.Join(connections, number, "abort"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	w.ended(1)
	if text, _ := w.daemon.log(); !strings.Contains(text, "the kernel ended the session") {
		t.Errorf("got %s", text)
	}
	w.mount()
	w.readBack()
	w.stop()
}

// TestRefusals: each is one line, and nothing is touched.
func TestRefusals(t *testing.T) {
	w := newWorld(t, 2)
	config := filepath.Join(t.TempDir(), "tierfs.toml")
	if err := os.WriteFile(config, []byte("[cache]\nchunk_size = \"5 MB\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.source, "orders-0", fmt.Sprintf("%020d.log", 0))
	store := "fs:" + w.store
	w.env = []string{"TIERFS_STORE_S3_ACCESS_KEY=me", "TIERFS_STORE_S3_SECRET_KEY=hush"}
	for name, tc := range map[string]struct {
		code  int
		words []string
		args  []string
	}{
		"settings":            {2, []string{config + ":2", "cache.chunk_size", "5 MB", "4096"}, []string{"--config", config, "--store", store, w.source}},
		"no file of settings": {2, []string{"/no/such.toml"}, []string{"--config", "/no/such.toml", w.source}},
		"no store":            {2, []string{"store.backend is missing", "--store"}, []string{w.source}},
		"bad store":           {2, []string{"--store", "s3://bucket/prefix"}, []string{"--store", "bucket", w.source}},
		"no such store":       {1, []string{"store.fs.path", "/no/such/store", "make it"}, []string{"--store", "fs:/no/such/store", w.source}},
		"no source":           {1, []string{"/no/such/source", "no such directory"}, []string{"--store", store, "/no/such/source"}},
		"source is a file":    {1, []string{file, "not a directory"}, []string{"--store", store, file}},
		"cache in the source": {2, []string{"--cache-path", "inside", w.source}, []string{"--store", store, "--cache-path", w.source + "/cache", w.source}},
		"wrong endpoint": {1, []string{"bucket", "store.s3.endpoint", "127.0.0.1:1"}, []string{
			"--store", "s3://bucket", "--store-s3-endpoint", "http://127.0.0.1:1", "--store-s3-region", "us-east-1", w.source}},
	} {
		t.Run(name, func(t *testing.T) {
			w.fails(tc.code, tc.words, append([]string{"mount"}, tc.args...)...)
		})
	}
	t.Run("source in use", func(t *testing.T) {
		pid := hold(t, `exec 3<"$1"; echo ready; read x; :`, file)
		w.fails(1, []string{w.source, "in use", fmt.Sprintf("process %d (sh)", pid), file}, "mount", "--store", store, w.source)
	})
	entries, err := os.ReadDir(w.source)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(w.source)
	if err != nil || info.Mode().Perm() != 0o755 || len(entries) != 4 {
		t.Errorf("the source was touched: %v, %v", entries, info.Mode())
	}
	if entries, err := os.ReadDir(w.store); err != nil || len(entries) > 1 { // its directory for temporary files
		t.Errorf("the store was touched: %v, %v", entries, err)
	}
}

// TestLock: the same source on two mount points.
func TestLock(t *testing.T) {
	w := newWorld(t, 1)
	one, two := t.TempDir(), t.TempDir()
	w.mount(one)
	defer func() {
		if _, ok, _ := mountinfo.At(one); ok {
			_ = unix.Unmount(one, unix.MNT_DETACH)
		}
	}()
	w.fails(1, []string{w.source, "another tierfs"}, "mount", "--store", "fs:"+w.store, w.source, two)
	w.must("unmount", one)
	w.ended(0)
}

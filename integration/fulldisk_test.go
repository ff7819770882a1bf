package integration

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// A mount starts on a disk that is full to the last block, root's included, and frees it.
func TestFullDisk(t *testing.T) {
	p := newSmall(t)
	p.write("meta.properties", []byte("version=1\nnode.id=1\n"))
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		p.write(name, []byte("0\n1\norders 0 1000000\n"))
	}
	p.partition("orders-0")
	p.mount()
	p.stop()
	p.eat()
	if err := os.WriteFile(p.path("one"), make([]byte, 4096), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk takes a file: %v", err)
	}

	p.mount()
	p.evict()
	if got := p.metric("tierfs_segments", "state", "remote"); got != segmentsOf-1 {
		t.Errorf("%v segments were evicted of %d", got, segmentsOf-1)
	}
	for name := range p.logs {
		p.whole(name)
	}
	p.must(os.WriteFile(p.view("one"), make([]byte, 4096), 0o600))
	p.stop()
	if found := p.check(); len(found) != 0 {
		t.Errorf("found %q", found)
	}
}

// newSmall is a plain source without a partition on a small disk of its own.
func newSmall(t *testing.T) *plain {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	p := &plain{t: t, ctx: ctx, store: rig.FS(t.TempDir()), logs: map[string][]byte{}}
	root, err := filepath.EvalSymlinks(t.TempDir())
	p.must(err)
	image, disk := filepath.Join(root, "image"), filepath.Join(root, "disk")
	p.source = filepath.Join(disk, "data")
	p.must(os.WriteFile(image, nil, 0o600))
	p.must(os.Truncate(image, 24<<20))
	p.must(os.Mkdir(disk, 0o755))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-b", "4096", image}, {"mount", "-o", "loop", image, disk}} {
		if out, err := exec.CommandContext(p.ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { p.must(syscall.Unmount(disk, 0)) })
	p.must(os.Mkdir(p.source, 0o755))
	p.below, err = os.Open(p.source)
	p.must(err)
	t.Cleanup(func() { p.must(p.below.Close()) })
	p.daemon, err = daemon.New(daemon.Options{Binary: checked, Dir: filepath.Join(root, "tierfs"), Source: p.source, Settings: p.store.Settings})
	p.must(err)
	t.Cleanup(p.close)
	return p
}

// eat takes every block of the disk below.
func (p *plain) eat() {
	p.t.Helper()
	f, err := os.Create(p.path("fill"))
	p.must(err)
	for size := 1 << 20; size >= 4096; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			p.t.Fatal(err)
		}
	}
	p.must(f.Close())
}

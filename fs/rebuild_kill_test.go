package fs

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

const lifeVar = "TIERFS_FS_TEST_LIFE"

// TestLife is the process that TestRebuildAfterKills kills: it takes over what is in
// the memory that it inherits, and changes it without end, in parallel.
func TestLife(t *testing.T) {
	dir := os.Getenv(lifeVar)
	if dir == "" {
		return
	}
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	memory, err := holder.OpenTable(3)
	check(t, err)
	volume, err := tier.Open(context.Background(), tier.Options{Root: root, Takeover: true})
	check(t, err)
	f, err := newFileSystem(context.Background(), Options{
		Root: root, Volume: volume, Table: memory, Keeper: &keptFDs{fds: map[string]int{}},
		Log: slog.New(slog.DiscardHandler), Metrics: metrics.New(prometheus.NewRegistry()).Fuse,
	})
	check(t, err)
	f.rebuild()
	_, _ = os.Stdout.WriteString("go\n")
	for i := range 3 {
		go func() {
			for {
				liveOn(f, i, rand.IntN(20))
			}
		}()
	}
	select {}
}

// liveOn makes, opens, closes, removes and forgets one of a few files.
func liveOn(f *fileSystem, who, i int) {
	in := fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID, Unique: rand.Uint64() >> 1}
	name := fmt.Sprintf("%d-%d", who, i)
	var out fuse.CreateOut
	if !f.Create(nil, &fuse.CreateIn{InHeader: in, Flags: unix.O_RDWR, Mode: 0o600}, name, &out).Ok() {
		return
	}
	if rand.IntN(2) == 0 {
		f.Unlink(nil, &in, name)
	}
	f.inodes.syncFailed(f.inodes.get(out.NodeId), unix.EIO)
	if rand.IntN(2) == 0 { // in both orders
		f.Forget(out.NodeId, 1)
		f.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
	} else {
		f.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
		f.Forget(out.NodeId, 1)
	}
}

// Whenever a daemon is killed, its successor can take over.
func TestRebuildAfterKills(t *testing.T) {
	dir := t.TempDir()
	memory, err := holder.NewTable()
	check(t, err)
	defer func() { check(t, memory.Close()) }()
	for round := range 15 {
		fd, err := unix.FcntlInt(uintptr(memory.FD()), unix.F_DUPFD_CLOEXEC, 3)
		check(t, err)
		inherited := os.NewFile(uintptr(fd), "table")
		cmd := exec.Command(os.Args[0], "-test.run", "^TestLife$")
		cmd.Env = append(os.Environ(), lifeVar+"="+dir)
		cmd.ExtraFiles = []*os.File{inherited}
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		b := make([]byte, 1000)
		n, err := out.Read(b)
		if string(b[:n]) != "go\n" || err != nil {
			_ = cmd.Process.Kill()
			t.Fatalf("round %d: the next daemon says %q, %v", round, b[:n], err)
		}
		time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // at any moment
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		check(t, inherited.Close())
		again, err := holder.OpenTable(memory.FD())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		check(t, again.Close())
	}
	if id := memory.NextNode(); id < 100 {
		t.Errorf("only %d nodes", id)
	}
}

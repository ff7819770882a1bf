package fs

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/tier"
)

// unmounted is a file system that no kernel has.
func unmounted(t *testing.T) *fileSystem {
	t.Helper()
	root, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Close(root)) })
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	f, err := newFileSystem(ctx, Options{Root: root, Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	return f
}

// newNodes is a table of inodes that no successor gets.
func newNodes(t *testing.T) *testNodes {
	t.Helper()
	m, err := holder.NewTable()
	check(t, err)
	t.Cleanup(func() { check(t, m.Close()) })
	return &testNodes{t, newInodeTable(handle.Handle{Type: 1, Bytes: "root"}, m, nil)}
}

type testNodes struct {
	t *testing.T
	*inodeTable
}

func (n *testNodes) enter(e tier.Entry) *node {
	got, err := n.inodeTable.enter(e)
	if err != nil {
		n.t.Error(err)
	}
	return got
}

func entryOf(h string) tier.Entry {
	return tier.Entry{Handle: handle.Handle{Type: 1, Bytes: h}, Stat: unix.Stat_t{Mode: unix.S_IFDIR | 0o755}}
}

func TestInodeTable(t *testing.T) {
	table := newNodes(t)
	a := table.enter(entryOf("a"))
	if again := table.enter(entryOf("a")); again != a {
		t.Error("two nodes of one inode")
	}
	b := table.enter(entryOf("b"))
	if a.id == b.id || a.id == fuse.FUSE_ROOT_ID {
		t.Errorf("numbers %d and %d", a.id, b.id)
	}
	table.forget(a.id, 1)
	if table.get(a.id) != a {
		t.Error("forgotten before the last lookup")
	}
	table.forget(a.id, 1)
	if table.get(a.id) != nil || table.find(a.handle) != nil {
		t.Error("not forgotten")
	}
	if c := table.enter(entryOf("a")); c.id <= b.id {
		t.Errorf("number %d is used again", c.id)
	}
	table.forget(b.id, 7) // more than there are
	table.forget(b.id, 1)
	table.forget(fuse.FUSE_ROOT_ID, 1)
	if table.get(fuse.FUSE_ROOT_ID) == nil || table.size() != 2 {
		t.Errorf("%d inodes left", table.size())
	}
}

func TestInodeTableInParallel(t *testing.T) {
	table := newNodes(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				n := table.enter(entryOf(string(rune('a' + i%3))))
				table.forget(n.id, 1)
			}
		})
	}
	wg.Wait()
	if table.size() != 1 {
		t.Errorf("%d inodes left", table.size())
	}
}

type fakeKernel struct {
	told    chan uint64
	release chan struct{}
}

func (k *fakeKernel) InodeNotify(node uint64, off, length int64) fuse.Status {
	if off != attributes || length != 0 {
		node = 0
	}
	k.told <- node
	<-k.release
	return fuse.OK
}

func (k *fakeKernel) EpochNotify() fuse.Status { return k.InodeNotify(allNames, attributes, 0) }

// allNames stands for all names among the nodes that a fakeKernel was told of.
const allNames = 1 << 40

// A notification that the kernel holds up holds nobody else up, and what comes
// meanwhile is told afterwards, once.
func TestNotifier(t *testing.T) {
	table := newNodes(t)
	a, b := table.enter(entryOf("a")), table.enter(entryOf("b"))
	k := &fakeKernel{told: make(chan uint64), release: make(chan struct{})}
	n := newNotifier(table.inodeTable, nil)
	n.kernel = k
	go n.run()
	n.changed(a.handle)
	if got := <-k.told; got != a.id {
		t.Errorf("told %d, want %d", got, a.id)
	}
	n.changed(handle.Handle{Type: 1, Bytes: "unknown"})
	n.changed(b.handle)
	n.changed(b.handle)
	k.release <- struct{}{}
	if got := <-k.told; got != b.id {
		t.Errorf("told %d, want %d", got, b.id)
	}
	k.release <- struct{}{}
	n.renamed()
	n.renamed()
	if got := <-k.told; got != allNames {
		t.Errorf("told %d, want all names", got)
	}
	k.release <- struct{}{}
	n.stop()
}

func TestFlagsBelow(t *testing.T) {
	for flags, want := range map[uint32]int{
		unix.O_RDONLY:                                 unix.O_RDONLY,
		unix.O_WRONLY | unix.O_APPEND:                 unix.O_RDWR,
		unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC:     unix.O_RDWR,
		unix.O_RDWR | unix.O_DIRECT | unix.O_EXCL:     unix.O_RDWR,
		unix.O_WRONLY | unix.O_SYNC:                   unix.O_RDWR | unix.O_SYNC,
		unix.O_WRONLY | unix.O_DSYNC | unix.O_NOATIME: unix.O_RDWR | unix.O_DSYNC,
	} {
		if got := flagsBelow(flags); got != want|unix.O_NOFOLLOW|unix.O_CLOEXEC {
			t.Errorf("%#o: got %#o", flags, got)
		}
	}
}

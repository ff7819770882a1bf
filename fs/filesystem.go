package fs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// fileSystem answers the kernel's requests. Each method runs in a goroutine of
// its own; the kernel holds a directory's lock while it creates, removes or renames
// in it. Nothing of go-fuse is embedded: its default for what is missing is ENOSYS.
type fileSystem struct {
	root    int    // descriptor of the source, and of its file system for handles
	rootDev uint64 // device of the source
	volume  *tier.Volume
	memory  *holder.Table // of inodes and handles, for a successor
	private bool          // memory is this file system's own: there will be no successor
	inodes  *inodeTable
	handles *handleTable
	notify  *notifier // nil while nothing is served

	base     context.Context // of every request that may wait; ends with the mount
	fuseFD   int             // open while any request is in flight
	log      *slog.Logger
	failures *rate.Sometimes
	cold     *coldLog
	owed     *owed
	metrics  *metrics.Fuse

	rootMu   sync.Mutex
	rootAttr RootAttr // guarded by rootMu
	setRoot  func(RootAttr) error

	writeback bool // the kernel gathers writes; set before anything is served
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

func newFileSystem(ctx context.Context, opt Options) (*fileSystem, error) {
	root, st, err := rootOf(opt.Root)
	if err != nil {
		return nil, err
	}
	memory := opt.Table
	if memory == nil {
		if memory, err = holder.NewTable(); err != nil {
			return nil, err
		}
	}
	inodes := newInodeTable(root, memory, opt.Keeper)
	return &fileSystem{
		root:     opt.Root,
		rootDev:  st.Dev,
		volume:   opt.Volume,
		memory:   memory,
		private:  opt.Table == nil,
		inodes:   inodes,
		handles:  newHandleTable(opt.Volume, inodes, memory),
		base:     ctx,
		fuseFD:   -1,
		log:      opt.Log,
		failures: &rate.Sometimes{First: 10, Interval: time.Second},
		cold:     &coldLog{log: opt.Log},
		owed:     newOwed(),
		metrics:  opt.Metrics,
		rootAttr: opt.RootAttr,
		setRoot:  opt.SetRootAttr,
	}, nil
}

// String names the file system in go-fuse's messages.
func (f *fileSystem) String() string { return fsType }

// SetDebug does nothing: requests are counted, not printed.
func (f *fileSystem) SetDebug(bool) {}

// Init is called when the kernel has said hello; the server needs nothing of it.
func (f *fileSystem) Init(*fuse.Server) {}

// OnUnmount is called after the last request: the kernel has forgotten everything,
// but says so only for what it dropped before.
func (f *fileSystem) OnUnmount() {
	f.handles.clear()
	f.inodes.clear()
	f.closeMemory()
}

// abandon closes what is this process' own, and leaves the mount, the memory and what
// the holder keeps to a successor. The last handler has returned. The volume still
// believes that all is open, as it does when a process dies; a successor over the same
// volume calls settle when it has rebuilt its tables.
func (f *fileSystem) abandon() (settle func()) {
	handles, nodes := f.handles.abandon(), f.inodes.abandon()
	f.closeMemory()
	return func() {
		for _, o := range handles {
			o.closeFile()
		}
		for _, n := range nodes {
			n.releaseFile()
		}
	}
}

func (f *fileSystem) closeMemory() {
	if f.private {
		_ = f.memory.Close()
	}
}

// answered counts a request; handlers defer it with the time they began.
func (f *fileSystem) answered(op metrics.FuseOp, began time.Time) {
	f.metrics.Request(op, time.Since(began))
}

// directory borrows a descriptor of the directory with the number id. Done with
// it, the caller releases the loan.
func (f *fileSystem) directory(id uint64) (*node, tier.Dir, lent, fuse.Status) {
	n := f.inodes.get(id)
	if n == nil {
		return nil, tier.Dir{}, lent{}, fuse.Status(unix.ESTALE)
	}
	if !n.isDir() {
		return nil, tier.Dir{}, lent{}, fuse.ENOTDIR
	}
	l, err := f.descriptor(n, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, tier.Dir{}, lent{}, f.status("open directory", n, err)
	}
	return n, tier.Dir{FD: l.fd, Handle: n.handle}, l, fuse.OK
}

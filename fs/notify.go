package fs

import (
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/tierfs/tierfs/handle"
)

// attributes is the offset that tells the kernel to drop an inode's attributes and
// keep its pages: an eviction changes no byte.
const attributes = -1

// A notifier tells the kernel about attributes that changed below, and about what a
// failed request may have changed: the kernel believes that nothing happened, and a
// change of names is more than one step below. It has a goroutine of its own, because
// the kernel may make a notification wait for a request that is still being answered.
type notifier struct {
	inodes *inodeTable
	kernel kernel

	wake  chan struct{} // cap 1
	quit  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	pending map[change]struct{} // guarded by mu
}

// kernel is whom a notifier tells.
type kernel interface {
	InodeNotify(node uint64, off, length int64) fuse.Status
	EntryNotify(parent uint64, name string) fuse.Status
}

// change is of the attributes of an inode, or of what a name in it leads to.
type change struct {
	inode handle.Handle
	name  string // "" for the attributes
}

func newNotifier(inodes *inodeTable, kernel kernel) *notifier {
	return &notifier{
		inodes:  inodes,
		kernel:  kernel,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		ended:   make(chan struct{}),
		pending: map[change]struct{}{},
	}
}

// changed takes note of attributes and returns at once.
func (n *notifier) changed(h handle.Handle) { n.note(change{inode: h}) }

func (n *notifier) note(c change) {
	n.mu.Lock()
	n.pending[c] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) take() map[change]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pending
	n.pending = map[change]struct{}{}
	return p
}

func (n *notifier) run() {
	defer close(n.ended)
	for {
		select {
		case <-n.quit:
			return
		case <-n.wake:
		}
		for c := range n.take() {
			n.tell(c)
		}
	}
}

// tell has no error to report: one means that the kernel has just forgotten the
// inode or the name, or that the mount is gone, and nothing is left to be told.
func (n *notifier) tell(c change) {
	node := n.inodes.find(c.inode)
	switch {
	case node == nil:
	case c.name == "":
		n.kernel.InodeNotify(node.id, attributes, 0)
	default:
		n.kernel.EntryNotify(node.id, c.name)
	}
}

// failedChange makes the kernel look again at an inode of which a request may have
// changed a part.
func (f *fileSystem) failedChange(n *node) {
	if f.notify != nil {
		f.notify.changed(n.handle)
	}
}

// failedName is failedChange for a name in a directory. What the kernel knows below
// the name is forgotten with it, mounts on it included.
func (f *fileSystem) failedName(dir handle.Handle, name string) {
	if f.notify != nil {
		f.notify.note(change{inode: dir, name: name})
	}
}

// stop ends run and waits for it.
func (n *notifier) stop() {
	close(n.quit)
	<-n.ended
}

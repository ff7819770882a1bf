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
// the kernel may make a notification wait.
type notifier struct {
	inodes *inodeTable
	kernel kernel

	wake  chan struct{} // cap 1
	quit  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	pending map[handle.Handle]struct{} // guarded by mu: inodes with other attributes
	names   bool                       // guarded by mu: a name may lead to something else
}

// kernel is whom a notifier tells.
type kernel interface {
	InodeNotify(node uint64, off, length int64) fuse.Status
	EpochNotify() fuse.Status
}

func newNotifier(inodes *inodeTable, kernel kernel) *notifier {
	return &notifier{
		inodes:  inodes,
		kernel:  kernel,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		ended:   make(chan struct{}),
		pending: map[handle.Handle]struct{}{},
	}
}

// changed takes note of attributes and returns at once.
func (n *notifier) changed(h handle.Handle) {
	n.mu.Lock()
	n.pending[h] = struct{}{}
	n.mu.Unlock()
	n.rouse()
}

// renamed takes note of a name and returns at once.
func (n *notifier) renamed() {
	n.mu.Lock()
	n.names = true
	n.mu.Unlock()
	n.rouse()
}

func (n *notifier) rouse() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) take() (inodes map[handle.Handle]struct{}, names bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	inodes, names = n.pending, n.names
	n.pending, n.names = map[handle.Handle]struct{}{}, false
	return inodes, names
}

// run has no error to report: one means that the kernel has just forgotten the inode,
// or that the mount is gone, and nothing is left to be told; or that the kernel is too
// old to be told of names, and believes a wrong one for cacheTime at most.
func (n *notifier) run() {
	defer close(n.ended)
	for {
		select {
		case <-n.quit:
			return
		case <-n.wake:
		}
		inodes, names := n.take()
		if names {
			n.kernel.EpochNotify()
		}
		for h := range inodes {
			if node := n.inodes.find(h); node != nil {
				n.kernel.InodeNotify(node.id, attributes, 0)
			}
		}
	}
}

// failedChange makes the kernel look again at an inode of which a request may have
// changed a part.
func (f *fileSystem) failedChange(n *node) {
	if f.notify != nil {
		f.notify.changed(n.handle)
	}
}

// failedName is failedChange for names. Every name is looked up again, since that is
// rare; what is mounted on a directory of the mount is detached then.
func (f *fileSystem) failedName() {
	if f.notify != nil {
		f.notify.renamed()
	}
}

// stop ends run and waits for it.
func (n *notifier) stop() {
	close(n.quit)
	<-n.ended
}

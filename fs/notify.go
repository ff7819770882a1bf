package fs

import (
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/tierfs/tierfs/handle"
)

// attributes is the offset that tells the kernel to drop an inode's attributes and
// keep its pages: an eviction changes no byte.
const attributes = -1

// A notifier tells the kernel about attributes that changed below. It has a
// goroutine of its own, because the kernel may make a notification wait for a
// request that is still being answered.
type notifier struct {
	inodes *inodeTable
	kernel interface {
		InodeNotify(node uint64, off, length int64) fuse.Status
	}

	wake  chan struct{} // cap 1
	quit  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	pending map[handle.Handle]struct{} // guarded by mu
}

func newNotifier(inodes *inodeTable, session *fuse.Server) *notifier {
	return &notifier{
		inodes:  inodes,
		kernel:  session,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		ended:   make(chan struct{}),
		pending: map[handle.Handle]struct{}{},
	}
}

// changed takes note and returns at once.
func (n *notifier) changed(h handle.Handle) {
	n.mu.Lock()
	n.pending[h] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) take() map[handle.Handle]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pending
	n.pending = map[handle.Handle]struct{}{}
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
		for h := range n.take() {
			if node := n.inodes.find(h); node != nil {
				// An error means that the kernel has just forgotten the inode, or
				// that the mount is gone: nothing is left to be told.
				n.kernel.InodeNotify(node.id, attributes, 0)
			}
		}
	}
}

// stop ends run and waits for it.
func (n *notifier) stop() {
	close(n.quit)
	<-n.ended
}

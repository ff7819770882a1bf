package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A daemon that dies may have received a FORGET that its memory does not show, and
// a lookup that is resent counts twice. So the count of a node from before a takeover
// is never too low, but it may be too high: it is *inexact*, and the FORGET of all
// that the kernel has would leave something of it, with its descriptor. The kernel is
// asked instead: a notification of attributes (which changes nothing but that the
// kernel asks for them again) answers ENOENT when it does not know the inode.
//
//   - After a takeover it is asked about every node once.
//   - A FORGET that leaves an inexact node above zero asks about it again. What the
//     kernel knows is forgotten by a FORGET some day, so nothing else is needed.
//   - A node is dropped when the kernel says ENOENT, no handle of it is open, and
//     nobody has looked it up from settle before the question until the answer.
//
// The last point is because of answers that are under way: the kernel has no inode
// until the thread that asked for the lookup has taken its answer. That thread waits
// for nothing but a processor, so settle is time enough. If it were not, the kernel
// would use a number that is gone, get ESTALE, and look the name up anew. A FORGET
// that is under way does no harm: numbers are never used twice, and one of an unknown
// node is ignored.
const (
	settle   = 10 * time.Second
	askPause = time.Millisecond // between two questions
)

// askKernel asks the questions that come up until quit is closed. A round begins
// every settle, the first one not before. ask notifies the kernel of the attributes
// of a node; it is called with no lock held and by nobody who answers requests.
func (f *fileSystem) askKernel(quit <-chan struct{}, ask func(node uint64) fuse.Status) {
	rounds := time.NewTicker(settle)
	defer rounds.Stop()
	pause := time.NewTicker(askPause)
	defer pause.Stop()
	for {
		select {
		case <-quit:
			return
		case <-rounds.C:
		}
		for _, n := range f.inodes.toAsk(time.Now()) {
			select {
			case <-quit:
				return
			case <-pause.C:
			}
			f.inodes.answerOf(n, time.Now(), ask)
		}
	}
}

// toAsk lists the nodes about which a question is open that may be asked now.
func (t *inodeTable) toAsk(now time.Time) []*node {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*node
	for id := range t.questions {
		if n := t.byID[id]; n != nil && n.settled(now) {
			out = append(out, n)
		}
	}
	return out
}

// settled reports whether no answer with the node can be under way. The caller
// holds inodeTable.mu.
func (n *node) settled(now time.Time) bool { return now.Sub(n.raised) >= settle }

// answerOf asks about one node, and drops it if the kernel does not know it. A
// question that cannot be answered now stays open.
func (t *inodeTable) answerOf(n *node, now time.Time, ask func(node uint64) fuse.Status) {
	t.mu.Lock()
	raised, ok := n.raised, n.settled(now) && t.byID[n.id] == n
	t.mu.Unlock()
	if !ok {
		return
	}
	unknown := false
	switch code := ask(n.id); {
	case code.Ok():
	case code == fuse.ENOENT:
		unknown = true
	default:
		return // the mount is about to go
	}
	t.mu.Lock()
	same := n.raised.Equal(raised) && t.byID[n.id] == n
	dropped := false
	if same && !unknown {
		delete(t.questions, n.id) // until its next FORGET
	}
	if same && unknown && n.opens == 0 {
		n.lookups = 0
		t.memory.SetLookups(n.slot, 0)
		dropped = t.dropUnused(n)
	}
	t.mu.Unlock()
	if dropped {
		t.end(n)
	}
}

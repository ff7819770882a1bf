package holder

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Kind says who keeps the descriptors.
type Kind string

// The kinds of holders.
const (
	Process Kind = "process" // a supervisor: see Supervise
	Systemd Kind = "systemd" // the fd store of the service manager
	None    Kind = "none"    // nobody: with this process all is gone
)

// sendWait is how long a message may wait for a holder that does not read. Behind that it counts as lost.
const sendWait = 5 * time.Second

// A Keeper is the daemon's side: it puts descriptors where they survive this process. It has a duplicate of each itself,
// so they can be given to a new holder, and to what is executed in place.
//
// All methods may be called in parallel. Put, Drop, Ready, Stopping, Beat, Adopt and Exec speak one after the other, each for at
// most some seconds; the others never wait for the holder.
//
// A holder process that is lost is no error of any call: from then on the Keeper is one of the kind None, and Lost says so.
type Keeper struct {
	speak sync.Mutex // held while something is said, so that what is kept here and there is the same

	mu     sync.Mutex // over the fields below
	kept   map[string]int
	link   *link         // to the supervisor; nil if there is none, or it is lost
	lost   chan struct{} // closed when link is lost
	gone   *link         // a link that is lost; Adopt makes sure that its supervisor is dead
	notify *notifySocket // to the service manager; nil if there is none
	max    int           // of descriptors that the service manager keeps; 0: it keeps none
	limit  time.Duration // between beats
	ending bool          // Stopping was called
}

// Connect takes what the environment says: the descriptors that were passed, and who keeps them. It unsets these variables,
// so that no child of this process believes that they are for it. To be called once, before any child is started.
func Connect(getenv func(string) string) (*Keeper, error) {
	fds, err := inherited(getenv)
	if err != nil {
		return nil, err
	}
	k := &Keeper{kept: fds, lost: make(chan struct{})}
	if err := k.connect(getenv); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *Keeper) connect(getenv func(string) string) error {
	if pid := getenv("WATCHDOG_PID"); pid == "" || pid == ownPID() {
		if usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 {
			k.limit = time.Duration(usec) * time.Microsecond
		}
	}
	if path := getenv("NOTIFY_SOCKET"); path != "" {
		if path[0] != '/' && path[0] != '@' {
			return fmt.Errorf("NOTIFY_SOCKET=%s is neither a path nor an abstract address", path)
		}
		k.notify = &notifySocket{path: path, wait: sendWait}
		if n, err := strconv.Atoi(getenv("FDSTORE")); err == nil && n > 0 {
			k.max = n
		}
	}
	sock, process := k.kept[nameHolder]
	delete(k.kept, nameHolder)
	if process {
		pid, err := strconv.Atoi(getenv("HOLDER_PID"))
		if err != nil {
			closeFD(sock)
			return fmt.Errorf("HOLDER_PID=%q is not a process", getenv("HOLDER_PID"))
		}
		k.notify, k.max = nil, 0
		if k.link, err = newLink(sock, pid, k.lose); err != nil {
			return err
		}
	}
	return unsetVariables()
}

// Kind returns who keeps the descriptors now.
func (k *Keeper) Kind() Kind {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.link != nil:
		return Process
	case k.max > 0:
		return Systemd
	}
	return None
}

// PID returns the process of the holder; 0 if there is none.
func (k *Keeper) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.link != nil:
		return k.link.pid
	case k.max > 0:
		return os.Getppid()
	}
	return 0
}

// Lost returns a channel that is closed when the holder process dies, or does not read for sendWait. It belongs to the
// holder of now: ask again after Adopt. Without a holder process it is never closed.
func (k *Keeper) Lost() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost
}

// lose forgets a link. Descriptors stay kept here.
func (k *Keeper) lose(l *link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.link == l {
		k.link, k.gone = nil, l
		close(k.lost)
	}
}

// Take returns a duplicate (close-on-exec) of what is kept under a name. The caller closes it.
func (k *Keeper) Take(name string) (fd int, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept, ok := k.kept[name]
	if !ok {
		return -1, false
	}
	if fd, err := dupFD(kept); err == nil {
		return fd, true
	}
	return -1, false
}

// Has reports whether something is kept under a name.
func (k *Keeper) Has(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.kept[name]
	return ok
}

// Names returns what is kept, sorted.
func (k *Keeper) Names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.kept))
}

// Put keeps a duplicate of fd under a name, in place of what had it. When it returns nil, the descriptor survives this
// process (as long as there is a holder). Names are those of systemd: printable, no colon, at most 255 bytes.
//
// On an error the name has here what it had before. That the holder process could not take it for want of descriptors is
// no case: it has fewer open than this process, which has opened its duplicate before, under the same limit.
func (k *Keeper) Put(name string, fd int) error {
	k.speak.Lock()
	defer k.speak.Unlock()
	return k.put(name, fd)
}

func (k *Keeper) put(name string, fd int) error {
	if err := checkName(name); err != nil {
		return err
	}
	replaces, err := k.room(name)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	dup, err := dupFD(fd)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	if err := k.store(name, dup, replaces); err != nil {
		closeFD(dup)
		return fmt.Errorf("keep %s: %w", name, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if old, ok := k.kept[name]; ok {
		closeFD(old)
	}
	k.kept[name] = dup
	return nil
}

// room says whether a name has something already, and returns ErrFull if it is a new one too many.
func (k *Keeper) room(name string) (replaces bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.kept[name]; ok {
		return true, nil
	}
	length := len(name)
	for other := range k.kept {
		length += len(other) + 1
	}
	if k.max > 0 && len(k.kept) >= k.max || length > maxNames {
		return false, ErrFull
	}
	return false, nil
}

func (k *Keeper) store(name string, fd int, replaces bool) error {
	l, n, keeps := k.peers()
	switch {
	case l != nil:
		k.tell(l, storeText(name), fd)
	case keeps:
		// systemd would keep both under the name.
		if replaces {
			if err := n.send(removeText(name), -1); err != nil {
				return err
			}
		}
		if err := n.send(storeText(name), fd); err != nil {
			return err
		}
		// systemd drops what it finds in its queue from a process that is dead by then, so we wait until it has read it.
		return n.barrier()
	}
	return nil
}

// Drop lets go what is kept under a name. A name that has nothing is no error.
func (k *Keeper) Drop(name string) error {
	k.speak.Lock()
	defer k.speak.Unlock()
	k.mu.Lock()
	fd, ok := k.kept[name]
	delete(k.kept, name)
	k.mu.Unlock()
	if !ok {
		return nil
	}
	closeFD(fd)
	l, n, keeps := k.peers()
	switch {
	case l != nil:
		k.tell(l, removeText(name), -1)
	case keeps:
		if err := n.send(removeText(name), -1); err != nil {
			return fmt.Errorf("drop %s: %w", name, err)
		}
	}
	return nil
}

// peers returns who is to be told.
func (k *Keeper) peers() (l *link, n *notifySocket, keeps bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link, k.notify, k.max > 0
}

// tell speaks to the supervisor. One that cannot be reached is lost.
func (k *Keeper) tell(l *link, text string, fd int) {
	if err := sendMessage(l.sock, text, fd); err != nil {
		k.lose(l)
	}
}

// Ready says that this process serves.
func (k *Keeper) Ready() error { return k.say("READY=1") }

// Stopping says that this process ends because it was asked to. It is not started again, and Adopt does nothing any more.
func (k *Keeper) Stopping() error {
	k.mu.Lock()
	k.ending = true
	k.mu.Unlock()
	return k.say("STOPPING=1")
}

// Beat says that this process is not stuck. See BeatEvery.
func (k *Keeper) Beat() error { return k.say("WATCHDOG=1") }

func (k *Keeper) say(text string) error {
	k.speak.Lock()
	defer k.speak.Unlock()
	l, n, _ := k.peers()
	switch {
	case l != nil:
		k.tell(l, text, -1)
	case n != nil:
		return n.send(text, -1)
	}
	return nil
}

// BeatEvery returns how often Beat is to be called: half the time after which a silent daemon is killed. 0: nobody waits
// for it. Adopt may change it.
func (k *Keeper) BeatEvery() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limit / 2
}

// Close lets go what is kept here; the holder goes on keeping it. For a supervisor this process is about to end.
func (k *Keeper) Close() error {
	k.speak.Lock()
	defer k.speak.Unlock()
	k.mu.Lock()
	links := []*link{k.link, k.gone}
	k.link, k.gone = nil, nil
	for name, fd := range k.kept {
		closeFD(fd)
		delete(k.kept, name)
	}
	k.mu.Unlock()
	for _, l := range links {
		if l != nil {
			l.close()
		}
	}
	return nil
}

package holder

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reapWait is how long the parent of a dead supervisor waits for its last thread.
const reapWait = time.Second

func ownPID() string { return strconv.Itoa(os.Getpid()) }

// A link is the connection to a supervisor. One goroutine waits for its end.
type link struct {
	sock  int
	pid   int
	pidfd int // -1: it was gone already
	wake  int // eventfd: close wants the goroutine to end
	wait  sync.WaitGroup
}

// newLink takes the socket over. lost is called once, from the link's goroutine, when the supervisor has died.
func newLink(sock, pid int, lost func(*link)) (_ *link, err error) {
	l := &link{sock: sock, pid: pid, pidfd: -1, wake: -1}
	if err := l.open(); err != nil {
		l.release()
		return nil, err
	}
	l.wait.Go(func() { l.watch(lost) })
	return l, nil
}

func (l *link) open() (err error) {
	kind, err := unix.GetsockoptInt(l.sock, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return fmt.Errorf("the holder's descriptor is no SOCK_SEQPACKET socket (%d, %w)", kind, err)
	}
	if err := sendTimeout(l.sock, sendWait); err != nil {
		return err
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	l.pidfd, err = unix.PidfdOpen(l.pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		l.pidfd = -1
	case err != nil:
		l.pidfd = -1
		return fmt.Errorf("pidfd_open: %w", err)
	case hungUp(l.sock):
		// It died before pidfd_open, so the pid may be somebody else's by now.
		closeFD(l.pidfd)
		l.pidfd = -1
	}
	return nil
}

// watch waits for the supervisor's end. It may be a child of this process (see Adopt; also of what this process was before
// an exec), and is then reaped.
func (l *link) watch(lost func(*link)) {
	for {
		fds := []unix.PollFd{{Fd: int32(l.sock)}, {Fd: int32(l.wake), Events: unix.POLLIN}}
		if err := poll(fds, -1); err != nil || fds[0].Revents != 0 {
			break
		}
		if fds[1].Revents != 0 {
			return
		}
	}
	lost(l)
	l.reap()
}

func (l *link) reap() {
	if l.pidfd >= 0 && ended(l.pidfd, reapWait) {
		reapChild(l.pid, unix.WNOHANG) // as a rule it is not our child, and its parent does it
	}
}

// kill ends a supervisor that is to be replaced: two of them would start two daemons.
func (l *link) kill() {
	if l.pidfd < 0 || ended(l.pidfd, 0) {
		return
	}
	if err := unix.PidfdSendSignal(l.pidfd, unix.SIGKILL, nil, 0); err == nil {
		l.reap()
	}
}

// close ends the goroutine and lets go the socket.
func (l *link) close() {
	_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // can only fail when it is awake anyway
	l.wait.Wait()
	l.release()
}

func (l *link) release() {
	closeFD(l.sock)
	closeFD(l.pidfd)
	closeFD(l.wake)
}

package holder

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotTaken says that the service manager did not read a message in time.
var ErrNotTaken = errors.New("the service manager does not answer")

// A notifySocket is the service manager's datagram socket.
type notifySocket struct {
	path string        // "@" stands for an abstract address
	wait time.Duration // for room in its queue
}

// send sends one message, with a descriptor unless fd is negative. The socket is made anew each time: the service manager
// may have been replaced in between.
func (n notifySocket) send(text string, fd int) error {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("notify: socket: %w", err)
	}
	defer closeFD(sock)
	if err := sendTimeout(sock, n.wait); err != nil {
		return err
	}
	// The address "@name" is abstract for package unix, as for systemd.
	if err := unix.Connect(sock, &unix.SockaddrUnix{Name: n.path}); err != nil {
		return fmt.Errorf("notify: connect to %s: %w", n.path, err)
	}
	err = sendMessage(sock, text, fd)
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("notify: %w", ErrNotTaken)
	}
	if err != nil {
		return fmt.Errorf("notify: send to %s: %w", n.path, err)
	}
	return nil
}

// barrier waits until the service manager has handled all that was sent before: it closes the descriptor that comes with
// the message (systemd before version 246 does so, too, with a message that it does not know).
func (n notifySocket) barrier() error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("notify: pipe: %w", err)
	}
	defer closeFD(pipe[0])
	err := n.send("BARRIER=1", pipe[1])
	closeFD(pipe[1])
	if err != nil {
		return err
	}
	for until := time.Now().Add(n.wait); time.Now().Before(until); {
		fds := []unix.PollFd{{Fd: int32(pipe[0])}}
		if err := poll(fds, time.Until(until)); err != nil {
			return err
		}
		if fds[0].Revents&unix.POLLHUP != 0 {
			return nil
		}
	}
	return fmt.Errorf("notify: barrier: %w", ErrNotTaken)
}

package holder

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dupFD returns a duplicate that is closed by an exec.
func dupFD(fd int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return dup, nil
}

// takeFile returns a duplicate of an open file's descriptor and closes the file. It does not use Fd, which may change the
// blocking mode that the descriptor shares with others.
func takeFile(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, failed := -1, error(nil)
	if err := raw.Control(func(n uintptr) { fd, failed = dupFD(int(n)) }); err != nil {
		return -1, err
	}
	if failed != nil {
		return -1, failed
	}
	return fd, f.Close()
}

// closeFD closes a descriptor of ours. What close(2) reports concerns writes, and nothing here writes.
func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// socketPair returns the supervisor's end and the daemon's end.
func socketPair() (ours, theirs int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("socketpair: %w", err)
	}
	return pair[0], pair[1], nil
}

// poll waits until one of the descriptors has an event, or for the timeout (negative: for ever). A signal ends it early,
// without an event.
func poll(fds []unix.PollFd, timeout time.Duration) error {
	ms := -1
	if timeout >= 0 {
		ms = int(min((timeout+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	n, err := unix.Poll(fds, ms)
	if n <= 0 {
		for i := range fds {
			fds[i].Revents = 0
		}
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("poll: %w", err)
	}
	return nil
}

// ended waits for the end of a process, its last thread included.
func ended(pidfd int, timeout time.Duration) bool {
	until := time.Now().Add(timeout)
	for {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		if err := poll(fds, max(0, time.Until(until))); err != nil {
			return false
		}
		if fds[0].Revents != 0 {
			return true
		}
		if !time.Now().Before(until) {
			return false
		}
	}
}

// hungUp says whether the other end of a socket is gone.
func hungUp(sock int) bool {
	fds := []unix.PollFd{{Fd: int32(sock)}}
	return poll(fds, 0) != nil || fds[0].Revents&(unix.POLLHUP|unix.POLLNVAL) != 0
}

// sendTimeout sets how long a send may wait for the other side.
func sendTimeout(sock int, d time.Duration) error {
	tv := unix.NsecToTimeval(int64(d))
	if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return fmt.Errorf("SO_SNDTIMEO: %w", err)
	}
	return nil
}

// sendMessage sends one datagram, with a descriptor unless fd is negative. It waits for room as long as sendTimeout says.
func sendMessage(sock int, text string, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	until := time.Now().Add(sendWait)
	for {
		err := unix.Sendmsg(sock, []byte(text), rights, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			return err
		}
	}
}

// receiveMessage takes one datagram, without waiting, and the descriptors that came with it (close-on-exec). A truncated
// datagram is returned longer than a message may be.
func receiveMessage(sock int, buf []byte) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	for {
		n, oobn, flags, _, err := unix.Recvmsg(sock, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		controls, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return 0, nil, fmt.Errorf("%w: %w", errMessage, err)
		}
		for _, c := range controls {
			if got, err := unix.ParseUnixRights(&c); err == nil {
				fds = append(fds, got...)
			}
		}
		if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			for _, fd := range fds {
				closeFD(fd)
			}
			return 0, nil, fmt.Errorf("%w: truncated", errMessage)
		}
		return n, fds, nil
	}
}

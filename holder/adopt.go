package holder

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStopping says that a daemon that ends needs no holder.
var ErrStopping = errors.New("this daemon is about to end")

// Adopt starts a new holder process for this one, which lives: it executes what is kept as Binary with args (its own name
// first) and env, in a session of its own, and gives it all that is kept. That process calls Inherit and Supervise. When
// Adopt returns nil it keeps the descriptors and watches this process.
//
// A holder process from before is ended, if it still lives (stopped, for instance). After an error there is none, and nobody to be Lost. Adopt
// takes at most some seconds, in which Put and the like wait.
func (k *Keeper) Adopt(args, env []string) error {
	k.speak.Lock()
	defer k.speak.Unlock()
	if k.Kind() == Systemd {
		return errors.New("the service manager is the holder")
	}
	if k.isEnding() {
		return ErrStopping // a new holder has not heard that, and would start another daemon
	}
	k.retire(true)
	l, limit, err := k.startHolder(args, env)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.link, k.lost, k.limit = l, make(chan struct{}), limit
	if err != nil {
		return fmt.Errorf("start a holder: %w", err)
	}
	if hungUp(l.sock) { // before lose knew the link
		k.link, k.gone = nil, l
		close(k.lost)
	}
	return nil
}

func (k *Keeper) isEnding() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ending
}

// retire ends the holder process that was lost, and the one of now.
func (k *Keeper) retire(now bool) {
	k.mu.Lock()
	old := []*link{k.gone}
	k.gone = nil
	if now {
		old, k.link = append(old, k.link), nil
	}
	k.mu.Unlock()
	for _, l := range old {
		if l != nil {
			l.kill()
			l.close()
		}
	}
}

func (k *Keeper) startHolder(args, env []string) (_ *link, limit time.Duration, err error) {
	theirs, ours, err := socketPair()
	if err != nil {
		return nil, 0, err
	}
	pid, pidfd, err := k.spawnHolder(theirs, args, env)
	closeFD(theirs) // or the new holder's death would not be seen
	if err != nil {
		closeFD(ours)
		return nil, 0, err
	}
	defer closeFD(pidfd)
	var l *link
	if limit, err = hello(ours); err != nil {
		closeFD(ours)
	} else if l, err = newLink(ours, pid, k.lose); err == nil {
		return l, limit, nil
	}
	_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) // it may have died by itself
	if ended(pidfd, reapWait) {
		reapChild(pid, unix.WNOHANG)
	}
	return nil, 0, err
}

func (k *Keeper) spawnHolder(sock int, args, env []string) (pid, pidfd int, err error) {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return 0, -1, fmt.Errorf("pidfd_open: %w", err)
	}
	defer closeFD(self)
	// Only Put and Drop change what is kept, and they wait for speak.
	return spawn(k.kept, map[string]int{nameHolder: sock, nameDaemon: self}, args, withoutVariables(env),
		&syscall.SysProcAttr{Setsid: true}, func(error) {})
}

// hello waits for what a new supervisor says when it has everything: the limit for beats.
func hello(sock int) (time.Duration, error) {
	buf := make([]byte, maxMessage)
	for until := time.Now().Add(sendWait); time.Now().Before(until); {
		fds := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLIN}}
		if err := poll(fds, time.Until(until)); err != nil {
			return 0, err
		}
		if fds[0].Revents == 0 {
			continue
		}
		n, got, err := receiveMessage(sock, buf)
		for _, fd := range got {
			closeFD(fd)
		}
		if err != nil {
			return 0, fmt.Errorf("the new holder died: %w", err)
		}
		usec, ok := strings.CutPrefix(string(buf[:n]), "WATCHDOG_USEC=")
		limit, err := strconv.ParseInt(usec, 10, 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("the new holder died, or said %q", buf[:n])
		}
		return time.Duration(limit) * time.Microsecond, nil
	}
	return 0, errors.New("the new holder says nothing")
}

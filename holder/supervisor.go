package holder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	firstDelay  = 100 * time.Millisecond
	longestWait = 2 * time.Second
	maxFailures = 5
	// complain is how often the log says that a daemon does not die.
	complain = 30 * time.Second
	// atOnce is how many messages are read before the supervisor looks at everything else again.
	atOnce = 64
	// startLimit is how often a successor may be silent for Options.Hang before it is ready: it opens the volume then.
	startLimit = 10
	// late is by how much the supervisor may be late to see that a daemon hangs. Behind that it did not run itself.
	late = time.Second
	// recent is for how long a daemon may be busy with a signal. Behind that it has done, or refused, what it was asked for.
	recent = 10 * time.Second
)

// ErrGaveUp says that the daemon died too often before it was ready.
var ErrGaveUp = errors.New("the daemon cannot be started")

// Options of Supervise.
type Options struct {
	Binary *os.File            // what to execute; kept under the name Binary, beside Files
	Args   []string            // of the daemon, its own name first
	Env    []string            // of the daemon; what an outer holder says in it is taken out
	Files  map[string]*os.File // what is kept from the start
	Notify string              // the outer NOTIFY_SOCKET, which gets READY, STOPPING and WATCHDOG of the daemon; "" for none
	Hang   time.Duration       // a ready daemon that says nothing for so long is killed, a successor after startLimit times that; 0: never
	Log    *slog.Logger

	adopted *adopted // see Inherit
}

// adopted is what a process was given to become the holder of a daemon that lives.
type adopted struct {
	daemon, sock int // a pidfd, and our end of the socket
	kept         map[string]int
}

// Inherit returns the Options of a process that was started by Keeper.Adopt, with the daemon and all that is kept. The
// caller adds Args, Env, Hang and Log. Of the environment it takes what Keeper.Adopt put there.
func Inherit(getenv func(string) string) (Options, error) {
	fds, err := inherited(getenv)
	if err != nil {
		return Options{}, err
	}
	if err := unsetVariables(); err != nil {
		return Options{}, err
	}
	daemon, ok := fds[nameDaemon]
	sock, ok2 := fds[nameHolder]
	if !ok || !ok2 {
		return Options{}, errors.New("no daemon to adopt was passed")
	}
	delete(fds, nameDaemon)
	delete(fds, nameHolder)
	return Options{adopted: &adopted{daemon: daemon, sock: sock, kept: fds}}, nil
}

// Supervise runs the daemon until it ends because it was asked to, or cannot be started, and returns its exit status (128
// and the signal's number if a signal ended it). SIGTERM, SIGINT and SIGHUP go to the daemon; the end of ctx is a
// SIGTERM, unless one of them ended it.
//
// A daemon that dies before it was ever ready is not started again. Later ones are: at once, and with a growing delay if
// they were not ready; maxFailures of these in a row end it with ErrGaveUp. If the binary was replaced and the new one was
// not ready before it died, the one before is used again. What the machine is short of
// is no failure of a daemon.
//
// The open files in Options belong to Supervise from the call on. It runs on one goroutine (and a small one for signals),
// and never waits for the daemon. Under ErrGaveUp the kept descriptors are closed when it returns, the fuse device with them.
func Supervise(ctx context.Context, opt Options) (status int, err error) {
	s, err := newSupervisor(opt)
	if err != nil {
		return 1, err
	}
	defer s.close()
	stop := s.listen(ctx)
	defer stop()
	s.prepare()
	if opt.adopted != nil {
		s.adopt()
	} else if err := s.start(); err != nil {
		return 1, err
	}
	for {
		if err := s.wait(); err != nil {
			return 1, err
		}
		done, status, err := s.step()
		if done || err != nil {
			return status, err
		}
	}
}

// A supervisor is the state of Supervise. Only its goroutine touches it, but for the channel and the eventfd of signals.
type supervisor struct {
	opt  Options
	log  *slog.Logger
	kept map[string]int
	buf  []byte

	pid    int // of the daemon; 0: not a child, or none
	pidfd  int // -1: none
	sock   int // to the daemon; -1: none
	exited bool

	everReady bool
	ready     bool // the daemon, as it runs now, was ready
	stopping  bool
	failures  int       // deaths before READY in a row
	startAt   time.Time // of the next daemon, while there is none
	previous  int       // the binary of the last READY, if it was replaced since; else -1

	beat     time.Time // the last sign of life
	dying    time.Time // since when the daemon should be dead; zero: it should not
	complain time.Time // when to say so next
	badAt    time.Time // when the last bad message was logged
	refused  bool      // it is known that the kernel refuses PR_SET_IO_FLUSHER
	unsaid   []func()  // warnings that wait for the first READY

	signals chan syscall.Signal
	wake    int              // eventfd, for signals
	pending []syscall.Signal // for the next READY
	asked   syscall.Signal   // the last SIGTERM or SIGINT that the daemon, as it runs now, got; 0: none
	askedAt time.Time
}

func newSupervisor(opt Options) (*supervisor, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &supervisor{
		opt: opt, log: opt.Log, kept: map[string]int{}, buf: make([]byte, maxMessage+1),
		pidfd: -1, sock: -1, previous: -1, wake: -1, signals: make(chan syscall.Signal, 16),
	}
	if err := s.take(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *supervisor) take() (err error) {
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if a := s.opt.adopted; a != nil {
		s.kept, s.pidfd, s.sock = a.kept, a.daemon, a.sock
	}
	for name, file := range s.opt.Files {
		if err := checkName(name); err != nil {
			return err
		}
		if s.kept[name], err = takeFile(file); err != nil {
			return fmt.Errorf("keep %s: %w", name, err)
		}
	}
	if s.opt.Binary != nil {
		fd, err := takeFile(s.opt.Binary)
		if err != nil {
			return fmt.Errorf("keep %s: %w", Binary, err)
		}
		s.keep(Binary, fd)
	}
	if _, ok := s.kept[Binary]; !ok {
		return errors.New("no binary to supervise")
	}
	return nil
}

func (s *supervisor) close() {
	s.forget()
	for _, fd := range s.kept {
		closeFD(fd)
	}
	closeFD(s.previous)
	closeFD(s.wake)
}

// adopt takes a daemon that lives. It is ready; what it was to be told of the limit for beats is told now.
func (s *supervisor) adopt() {
	s.everReady, s.ready, s.beat = true, true, time.Now()
	if err := unix.Send(s.sock, []byte(watchdogVar(s.opt.Hang)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		s.log.Warn("the adopted daemon does not listen", "error", err)
	}
	s.log.Info("took over as the holder of a living daemon", "descriptors", len(s.kept))
}

// wait sleeps until something happens, or until something is due.
func (s *supervisor) wait() error {
	fds := []unix.PollFd{
		{Fd: int32(s.wake), Events: unix.POLLIN},
		{Fd: int32(s.pidfd), Events: unix.POLLIN},
		{Fd: int32(s.sock), Events: unix.POLLIN},
	}
	timeout := time.Duration(-1)
	if due := s.due(); !due.IsZero() {
		timeout = max(0, time.Until(due))
	}
	if err := poll(fds, timeout); err != nil {
		return err
	}
	s.exited = fds[1].Revents != 0
	if fds[0].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(s.wake, count[:]) // nothing to read is fine: it only wakes us
	}
	return nil
}

// due returns when the supervisor has to act without an event; zero for never.
func (s *supervisor) due() time.Time {
	switch {
	case s.pidfd < 0:
		return s.startAt
	case !s.dying.IsZero():
		return s.complain
	case s.limit() > 0:
		return s.beat.Add(s.limit())
	}
	return time.Time{}
}

// limit is how long the daemon may be silent; 0: for ever. The first one has nobody who
// waits for it but who started it, and sees it.
func (s *supervisor) limit() time.Duration {
	switch {
	case s.stopping || !s.everReady:
		return 0
	case !s.ready:
		return startLimit * s.opt.Hang
	}
	return s.opt.Hang
}

// step does what is to be done now. Messages come before everything that is decided by what they say.
func (s *supervisor) step() (done bool, status int, err error) {
	s.receive(atOnce)
	if s.exited {
		s.exited = false
		if done, status, err := s.died(); done {
			return done, status, err
		}
	}
	s.forward()
	now := time.Now()
	switch {
	case s.pidfd < 0 && !now.Before(s.startAt):
		return s.startAgain()
	case s.pidfd >= 0:
		s.lookAtHang(now)
	}
	return false, 0, nil
}

// startAgain starts a successor. What the machine cannot give now, such as memory or
// descriptors, is asked for again: a mount is not given up for that.
func (s *supervisor) startAgain() (done bool, status int, err error) {
	switch err := s.start(); {
	case err == nil:
		return false, 0, nil
	case slices.ContainsFunc(scarce, func(e error) bool { return errors.Is(err, e) }):
		s.log.Error("the daemon could not be started, which is tried again", "error", err, "in", longestWait)
		s.startAt = time.Now().Add(longestWait)
		return false, 0, nil
	default:
		s.log.Error("the daemon could not be started", "error", err)
		return s.failed(1)
	}
}

// scarce are the errors of a fork, an execve or a socket that another moment may be without.
var scarce = []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ENOBUFS}

// lookAtHang kills a daemon that gives no sign of life. One that sits in the kernel (a hanging disk) does not die then:
// nothing is started beside it.
func (s *supervisor) lookAtHang(now time.Time) {
	limit := s.limit()
	switch hangs := s.dying.IsZero() && limit > 0 && now.Sub(s.beat) >= limit; {
	case hangs && now.Sub(s.beat) >= limit+late:
		// The supervisor did not run itself, for instance because a freezer stopped it, and probably the daemon with it.
		s.beat = now
	case hangs:
		s.log.Error("the daemon hangs and is killed", "silent", now.Sub(s.beat))
		if err := unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0); err != nil {
			s.log.Error("the daemon could not be killed", "error", err)
		}
		s.dying, s.complain = now, now.Add(complain)
	case !s.dying.IsZero() && !now.Before(s.complain):
		s.log.Error("the daemon should be dead, but a thread of it is left, probably in the kernel; no other is started before it is gone",
			"since", now.Sub(s.dying))
		s.complain = now.Add(complain)
	}
}

// died is called when the last thread of the daemon is gone. What it said before is heard first.
func (s *supervisor) died() (done bool, status int, err error) {
	s.receive(-1)
	status, known := s.reap()
	s.forget()
	if s.stopping && !known {
		status = 0
	}
	if s.stopping || !s.everReady {
		if s.everReady { // else it has said why, and nothing is to come behind that
			s.log.Info("the daemon has ended", "status", status)
		}
		return true, status, nil
	}
	if s.asked != 0 && time.Since(s.askedAt) < recent {
		s.remember(s.asked) // it died before it could do what it was asked for
	}
	s.asked = 0
	if !s.ready {
		s.log.Error("the daemon died before it was ready", "status", status)
		return s.failed(status)
	}
	s.log.Error("the daemon died and is replaced", "status", status)
	s.ready, s.startAt = false, time.Now()
	return false, 0, nil
}

// failed counts a daemon that was not ready before it died, and says when the next one is tried.
func (s *supervisor) failed(status int) (done bool, _ int, err error) {
	s.failures++
	if s.failures >= maxFailures {
		return true, max(status, 1), fmt.Errorf("%w: it died %d times in a row before it was ready, the last time with status %d",
			ErrGaveUp, s.failures, status)
	}
	if s.previous >= 0 {
		s.log.Error("the new binary does not work, the one before is used again")
		closeFD(s.kept[Binary])
		s.kept[Binary], s.previous = s.previous, -1
	}
	wait := delay(s.failures)
	s.log.Info("the daemon is started again", "in", wait, "failures", s.failures)
	s.startAt = time.Now().Add(wait)
	return false, 0, nil
}

// delay is the wait before the next start after so many failures in a row.
func delay(failures int) time.Duration {
	return min(firstDelay<<(failures-1), longestWait)
}

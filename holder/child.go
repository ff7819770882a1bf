package holder

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// oomScore makes the kernel look for someone else to kill: behind a mount hangs whoever reads it.
const oomScore = "-900"

// settle is how long after the end of a context the signal that ended it is waited for.
const settle = 50 * time.Millisecond

// prepare sets what the daemon shall inherit. What the kernel refuses costs safety under pressure, but no function.
func (s *supervisor) prepare() {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0); err != nil {
		s.later("the OOM score cannot be lowered", err)
	}
	if _, err := RaiseFileLimit(); err != nil {
		s.later("the limit of open files cannot be raised", err)
	}
}

// later warns when a daemon serves: one that refuses to start says why in one line, which
// stands alone.
func (s *supervisor) later(what string, err error) {
	if s.everReady {
		s.log.Warn(what, "error", err)
		return
	}
	s.unsaid = append(s.unsaid, func() { s.log.Warn(what, "error", err) })
}

// start starts the daemon with all that is kept.
func (s *supervisor) start() error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer closeFD(theirs)
	env := append(withoutVariables(s.opt.Env), "HOLDER_PID="+strconv.Itoa(os.Getpid()))
	if s.opt.Hang > 0 {
		env = append(env, watchdogVar(s.opt.Hang))
	}
	// A process group of its own: Ctrl-C reaches the supervisor only, which passes it on.
	attr := &syscall.SysProcAttr{Setpgid: true}
	pid, pidfd, err := spawn(s.kept, map[string]int{nameHolder: theirs}, s.opt.Args, env, attr, func(err error) {
		if !s.refused {
			s.later("PR_SET_IO_FLUSHER was refused", err)
		}
		s.refused = true
	})
	if err != nil {
		closeFD(ours)
		return err
	}
	s.pid, s.pidfd, s.sock = pid, pidfd, ours
	s.ready, s.stopping, s.asked, s.dying, s.beat = false, false, 0, time.Time{}, time.Now()
	s.log.Debug("the daemon was started", "pid", pid, "descriptors", len(s.kept))
	return nil
}

func watchdogVar(limit time.Duration) string {
	return "WATCHDOG_USEC=" + strconv.FormatInt(limit.Microseconds(), 10)
}

// spawn executes the kept binary with all that is kept, and more, from descriptor 3 on. The binary is among them, and is
// executed as /proc/self/fd/N of the child: no path can lead to another file.
func spawn(kept, more map[string]int, args, env []string, attr *syscall.SysProcAttr, refused func(error)) (pid, pidfd int, err error) {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, -1, fmt.Errorf("open /dev/null: %w", err)
	}
	defer closeFD(null)
	names, files := []string{}, []uintptr{uintptr(null), 1, 2}
	for _, set := range []map[string]int{kept, more} {
		for name, fd := range set {
			names, files = append(names, name), append(files, uintptr(fd))
		}
	}
	at := slices.Index(names, Binary)
	if at < 0 {
		return 0, -1, fmt.Errorf("no %s is kept", Binary)
	}
	attr.PidFD = &pidfd
	// The flag belongs to the thread that forks; fork and execve hand it on.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := ioFlusher(true)
	if err != nil {
		refused(err)
	}
	pid, err = syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(3+at), args, &syscall.ProcAttr{
		Env: append(env, listenEnv(names, nil)...), Files: files, Sys: attr,
	})
	if !was {
		_, _ = ioFlusher(false) // what was refused to be set cannot be unset either
	}
	if err != nil {
		return 0, -1, fmt.Errorf("execute the kept binary: %w", err)
	}
	if pidfd < 0 { // a kernel without CLONE_PIDFD; nobody has reaped the child, so the pid is its own
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return 0, -1, fmt.Errorf("pidfd_open: %w", err)
		}
	}
	return pid, pidfd, nil
}

// reap returns the exit status of a child that has ended, as a shell would say it; of another daemon nothing is known.
func (s *supervisor) reap() (status int, known bool) {
	if s.pid == 0 {
		return 1, false
	}
	return reapChild(s.pid, 0)
}

func reapChild(pid, flags int) (status int, known bool) {
	var ws unix.WaitStatus
	for {
		got, err := unix.Wait4(pid, &ws, flags, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || got != pid:
			return 1, false
		case ws.Signaled():
			return 128 + int(ws.Signal()), true
		}
		return ws.ExitStatus(), true
	}
}

// forget closes what belonged to the daemon that is gone.
func (s *supervisor) forget() {
	closeFD(s.pidfd)
	closeFD(s.sock)
	s.pid, s.pidfd, s.sock = 0, -1, -1
}

// listen starts to take signals, and the end of ctx, and wakes the loop for each. The function it returns ends that.
func (s *supervisor) listen(ctx context.Context) (stop func()) {
	caught := make(chan os.Signal, cap(s.signals))
	signal.Notify(caught, unix.SIGTERM, unix.SIGINT)
	if !signal.Ignored(unix.SIGHUP) { // as nohup has it
		signal.Notify(caught, unix.SIGHUP)
	}
	// A log that nobody reads any more must not end us, which SIGPIPE would. Nobody listens to this channel.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, unix.SIGPIPE)
	quit := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() { s.gather(ctx, caught, quit) })
	return func() {
		signal.Stop(caught)
		signal.Stop(pipe)
		close(quit)
		wait.Wait()
	}
}

// gather makes the end of ctx a SIGTERM. Often a signal is what ended it; then that signal is enough.
func (s *supervisor) gather(ctx context.Context, caught <-chan os.Signal, quit <-chan struct{}) {
	ended, asked := ctx.Done(), false
	var settled <-chan time.Time
	for {
		sig := unix.SIGTERM
		select {
		case got := <-caught:
			sig = got.(syscall.Signal)
			asked = asked || sig != unix.SIGHUP
		case <-ended:
			ended, settled = nil, time.After(settle)
			continue
		case <-settled:
			if asked {
				continue
			}
		case <-quit:
			return
		}
		select {
		case s.signals <- sig:
		default: // so many wait already that one more says nothing new
		}
		_, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // can only fail when it is awake anyway
	}
}

// forward hands the signals that came to the daemon. While a successor is on its way the first is kept until it is ready:
// it might not listen yet, and would die of it. A second one is meant, and goes to it at once.
func (s *supervisor) forward() {
	for {
		select {
		case sig := <-s.signals:
			if s.everReady && !s.ready && (s.pidfd < 0 || len(s.pending) == 0) {
				s.remember(sig)
				continue
			}
			s.signal(sig)
		default:
			return
		}
	}
}

// remember keeps a signal for the next READY.
func (s *supervisor) remember(sig syscall.Signal) {
	if !slices.Contains(s.pending, sig) {
		s.log.Info("a signal waits for the next daemon", "signal", sig.String())
		s.pending = append(s.pending, sig)
	}
}

func (s *supervisor) signal(sig syscall.Signal) {
	if sig != unix.SIGHUP {
		s.asked, s.askedAt = sig, time.Now()
	}
	s.log.Debug("a signal is passed on to the daemon", "signal", sig.String())
	if err := unix.PidfdSendSignal(s.pidfd, sig, nil, 0); err != nil {
		s.log.Warn("a signal did not reach the daemon", "signal", sig.String(), "error", err)
	}
}

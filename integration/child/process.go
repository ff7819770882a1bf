// Package child runs the programs that the tests, the demo and the benchmarks are about: a broker, a client, a daemon.
//
// It promises that a child never outlives its parent, however the parent ends (the kernel kills it), that a child does not see
// the terminal's Ctrl-C (the parent decides the order in which things stop), and that a wait for what a child prints is woken by
// the line itself.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// ErrStillRunning is returned by Stop when the process had to be killed.
var ErrStillRunning = errors.New("did not stop in time and was killed")

// Process is a started child. Its methods may be called in parallel.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts cmd in a process group of its own. The caller must Stop or Kill it.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		// The death signal is tied to the thread that forked: this one stays for as long as the child runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID is the process id, also after its end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and all its output has been read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the process ended: nil for exit status 0. Valid once Done is closed.
func (p *Process) Err() error { return p.err }

// ExitCode is the exit status, -1 when a signal ended the process. Valid once Done is closed.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Running says whether the process has not been seen to end.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends sig to the process. A process that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %d: %w", p.PID(), err)
	}
	return nil
}

// Stop sends SIGTERM and waits. After the grace it kills, and says so by ErrStillRunning.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("process %d: %w", p.PID(), ErrStillRunning), p.Kill())
	}
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// markVariable tells the processes of one Daemon from all others: children inherit it.
const markVariable = "INTEGRATION_DAEMON"

// Roles of the processes of a mount, by the command that they run.
const (
	Holder = "mount"  // or "holder", of a daemon that has lost its first one
	Serves = "daemon" // the one that answers the kernel
)

// PID is the process that plays a role now.
func (d *Daemon) PID(role string) (int, error) {
	for pid, command := range d.Processes() {
		if command == role || role == Holder && command == "holder" {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process of the mount on %s is its %q", d.Mountpoint(), role)
}

// Processes are those of the mount that live, with their commands.
func (d *Daemon) Processes() map[int]string {
	found := map[int]string{}
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	mark := []byte(markVariable + "=" + d.options.Dir)
	for _, path := range paths {
		if !mayBeOurs(filepath.Dir(path)) {
			continue
		}
		environ, err := os.ReadFile(path) // that of a zombie is empty
		if err != nil || !slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return bytes.Equal(v, mark) }) {
			continue
		}
		dir := filepath.Dir(path)
		pid, err := strconv.Atoi(filepath.Base(dir))
		line, lineErr := os.ReadFile(dir + "/cmdline")
		words := bytes.Split(line, []byte{0})
		if err == nil && lineErr == nil && len(words) > 1 {
			found[pid] = string(words[1])
		}
	}
	return found
}

// mayBeOurs leaves other programs out: a look at the environment of one that is stuck in the kernel waits for as long. A daemon is
// executed by a descriptor, whose number is its name then.
func mayBeOurs(dir string) bool {
	comm, err := os.ReadFile(dir + "/comm")
	name := strings.TrimSpace(string(comm))
	_, number := strconv.Atoi(name)
	return err == nil && (number == nil || strings.HasPrefix(name, "tierfs"))
}

// Kill ends every process of the mount by SIGKILL, the holder first, and waits for their end. The dead mount stays.
func (d *Daemon) Kill() error {
	for {
		all := d.Processes()
		if len(all) == 0 {
			return d.process.Kill()
		}
		for pid := range all { // none may start another one while it lasts
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		for pid := range all {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(time.Millisecond)
	}
}

// KillRole ends the process of one role by SIGKILL and does not wait.
func (d *Daemon) KillRole(role string) (pid int, err error) {
	if pid, err = d.PID(role); err != nil {
		return 0, err
	}
	return pid, unix.Kill(pid, unix.SIGKILL)
}

// TakenOver waits until the mount has been taken over so many times.
func (d *Daemon) TakenOver(ctx context.Context, times uint64) error {
	for {
		s, err := d.Status(ctx)
		if err == nil && s.Takeovers >= times {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%d takeovers instead of %d: %w; tierfs' last lines:\n%s", s.Takeovers, times, context.Cause(ctx), d.output.Tail(20)), err)
		case <-d.process.Done():
			return fmt.Errorf("the mount ended; tierfs' last lines:\n%s", d.output.Tail(20))
		case <-time.After(2 * time.Millisecond):
		}
	}
}

package fs

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/metrics"
)

const checkpointing = "checkpoint"

// checkpointChild replaces a file as brokers do.
func checkpointChild(args []string) error {
	path := args[0]
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	if _, err := f.WriteString("new"); err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), os.Rename(path+".tmp", path))
}

// TestKilledWhileRenaming kills a process in the middle of a rename, in which case the kernel does not send the new ctime and notes an
// error at the inode: who uses the file next, as a broker that starts again, must not meet it.
func TestKilledWhileRenaming(t *testing.T) {
	const opRename = 12
	for name, there := range map[string]bool{"a new name": false, "a name that is there": true} {
		t.Run(name, func(t *testing.T) {
			renamed, goOn := make(chan struct{}), make(chan struct{})
			m := mountTest(t, gathered, func(c *mountConfig) {
				c.fs.before = func(operation uint32) {
					if operation == opRename {
						renamed <- struct{}{}
						<-goOn
					}
				}
			})
			root, err := handle.At(m.root, "")
			check(t, err)
			path := m.path("checkpoint")
			if there {
				check(t, os.WriteFile(path, []byte("old"), 0o644))
			}
			for range 5 {
				cmd := child(checkpointing, path)
				check(t, cmd.Start())
				<-renamed
				check(t, cmd.Process.Kill())
				goOn <- struct{}{}
				var exit *exec.ExitError
				if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
					t.Fatalf("the child was not killed: %v", err)
				}
				m.waitFor("the thread has paid or is known to be gone", func() bool { return !m.server.fs.owed.pending() })
				told := m.count(metrics.OpGetAttr)
				m.waitFor("the kernel has been told", func() bool { // of names first
					m.server.fs.notify.changed(root)
					stat(t, m.mnt)
					return m.count(metrics.OpGetAttr) > told
				})
				fd, err := unix.Open(path, unix.O_RDONLY, 0)
				check(t, err)
				if err := unix.Close(fd); err != nil {
					t.Fatalf("close: %v", err)
				}
				got, err := os.ReadFile(path)
				if check(t, err); string(got) != "new" {
					t.Fatalf("got %q", got)
				}
			}
		})
	}
}

// TestOwed has threads pay, not pay, and pay for something else.
func TestOwed(t *testing.T) {
	o := newOwed()
	alive, lost := uint32(os.Getpid()), make(chan struct{}, 16)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		o.watch(quit, func() { lost <- struct{}{} })
	}()
	o.owes(alive, 1)
	const dead = 1<<31 - 2
	o.owes(dead, 2)
	o.paid(dead, 2)
	o.owes(dead-1, 3)
	o.paid(dead-1, 4) // the file that was replaced
	<-lost
	o.mu.Lock()
	if len(o.callers) != 1 || o.callers[alive].node != 1 {
		t.Errorf("left are %v", o.callers)
	}
	o.mu.Unlock()
	o.paid(alive, 1)
	if o.pending() || len(lost) > 0 {
		t.Errorf("pending %v, lost %d", o.pending(), len(lost))
	}
	close(quit)
	<-ended
}

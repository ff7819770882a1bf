package integration

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
)

// TestTakeoverThatFails has no successor be able to serve: the holder gives up and says why, whoever waits for the mount gets an error,
// and `tierfs mount` makes a new one of what is dead. Nothing is lost.
func TestTakeoverThatFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		damage     func(p *plain, holder int)
	}{
		{"the table is damaged", "table of inodes and handles is damaged", func(p *plain, holder int) { p.patchTable(holder, 16, "\xff") }},
		{"the table is of another version", "has a version that is not known", func(p *plain, holder int) { p.patchTable(holder, 8, "\xe7") }},
		{"the binary is broken", "execute the kept binary", func(p *plain, _ int) { p.breakBinary() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachWrites(t, func(t *testing.T, mode string) {
				p := newPlain(t, writing(fsStore(t), mode), "", "cold", "held")
				p.mountAs(mode)
				p.evict()
				_, err := p.daemon.DoWith(p.ctx, copyOf(t, checked), "upgrade", p.source)
				p.must(err)
				p.failsForGood(c.says, func(holder int) { c.damage(p, holder) })
			})
		})
	}
}

// failsForGood ends the daemon while its holder is stopped, damages what the successor needs, and looks at what becomes of it.
func (p *plain) failsForGood(says string, damage func(holder int)) {
	p.t.Helper()
	f, err := os.Create(p.view("synced"))
	p.must(err)
	p.must(all(f.WriteString("synced")))
	p.must(errors.Join(f.Sync(), f.Close()))

	holder, err := p.daemon.PID(daemon.Holder)
	p.must(err)
	serves, err := p.daemon.PID(daemon.Serves)
	p.must(err)
	p.must(unix.Kill(holder, unix.SIGSTOP))
	p.must(unix.Kill(serves, unix.SIGKILL))
	p.eventually("the daemon is dead", func() bool {
		tasks, err := os.ReadDir(procOf(serves, "task"))
		return err != nil || len(tasks) == 1 && zombie(serves)
	})
	damage(holder)
	waiting := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(p.view("held-0"))
		waiting <- err
	}()
	p.must(unix.Kill(holder, unix.SIGCONT))
	select {
	case <-p.daemon.Process().Done():
	case <-time.After(time.Minute):
		p.t.Fatal("the holder does not give up")
	}
	if p.daemon.Process().ExitCode() == 0 {
		p.t.Error("the holder ended as if nothing were wrong")
	}
	text := p.daemon.Log().Text()
	for _, want := range []string{"the daemon cannot be started", "5 times in a row", says} {
		if !strings.Contains(text, want) {
			p.t.Errorf("nobody said %q", want)
		}
	}
	p.within(10*time.Second, "who waited", func() error {
		if err := <-waiting; !dead(err) {
			p.t.Errorf("who waited for the mount got %v", err)
		}
		return nil
	})
	if _, err := os.Lstat(p.view("synced")); !dead(err) {
		p.t.Errorf("the mount should be dead: %v", err)
	}
	p.mount()
	p.allWhole()
	if got, err := p.cold("synced"); err != nil || string(got) != "synced" {
		p.t.Errorf("what was synced is %q, %v", got, err)
	}
	p.stop()
	if findings := p.check(); len(findings) != 0 {
		p.t.Errorf("found %q", findings)
	}
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(procOf(pid, "stat"))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(rest, "Z")
}

// patchTable overwrites bytes of the table that the holder keeps.
func (p *plain) patchTable(holder int, at int64, with string) {
	p.t.Helper()
	fds, err := os.ReadDir(procOf(holder, "fd"))
	p.must(err)
	for _, fd := range fds {
		path := procOf(holder, "fd/"+fd.Name())
		name, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(name, "/memfd:tierfs-table") {
			continue
		}
		table, err := os.OpenFile(path, os.O_RDWR, 0)
		p.must(err)
		p.must(all(table.WriteAt([]byte(with), at)))
		p.must(table.Close())
		return
	}
	p.t.Fatal("the holder has no table")
}

// breakBinary makes an empty file of the binary that the holder would start, which nobody runs now.
func (p *plain) breakBinary() {
	p.t.Helper()
	text := p.daemon.Log().Text()
	_, rest, _ := strings.Cut(text[strings.LastIndex(text, "handing the mount over"):], "binary=")
	path, _, _ := strings.Cut(rest, "\n")
	p.must(os.Truncate(path, 0))
}

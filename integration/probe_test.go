package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// probeAt makes the test binary a process that does everything a broker does to files, in the directory that is its value, until
// SIGTERM: see probe. It is another process, because whoever waits for a mount cannot be killed by what kills the mount.
const probeAt = "TIERFS_TEST_PROBE"

// probed is what a probe has seen.
type probed struct {
	Rounds  int
	Longest map[string]time.Duration // of each call
}

// prober is a probe that runs.
type prober struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// startProbe makes the directory and works in it until stop, or the end of the test.
func startProbe(t *testing.T, dir string) *prober {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &prober{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), probeAt+"="+dir)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, os.Stderr
	p.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // no error if it has ended
	return p
}

// stop ends the probe and returns what it saw: an error if a call failed, or bytes were wrong.
func (p *prober) stop(ctx context.Context) (probed, error) {
	kill := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	defer kill()
	err := errors.Join(p.cmd.Process.Signal(unix.SIGTERM), p.cmd.Wait())
	var seen probed
	if err == nil {
		err = json.Unmarshal(p.out.Bytes(), &seen)
	}
	if err != nil {
		err = fmt.Errorf("the probe: %w: %s", err, p.out.Bytes())
	}
	return seen, err
}

func runProbe(dir string) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	p := probe{dir: dir, seen: probed{Longest: map[string]time.Duration{}}}
	for {
		select {
		case <-stop:
			if err := json.NewEncoder(os.Stdout).Encode(p.seen); err != nil {
				os.Exit(1)
			}
			os.Exit(0)
		default:
		}
		if err := p.round(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

type probe struct {
	dir    string
	seen   probed
	opened *os.File // over all rounds
	want   []byte   // what is in it
}

// timed does one call and notes how long it took.
func (p *probe) timed(what string, call func() error) error {
	began := time.Now()
	err := call()
	if took := time.Since(began); took > p.seen.Longest[what] {
		p.seen.Longest[what] = took
	}
	if err != nil {
		return fmt.Errorf("%s in round %d: %w", what, p.seen.Rounds, err)
	}
	return nil
}

// round does each operation that changes names, and appends; every one of them has to succeed, and to have been done once.
func (p *probe) round() error {
	p.seen.Rounds++
	name := filepath.Join(p.dir, fmt.Sprint("file-", p.seen.Rounds))
	other, sub := name+".other", name+".dir"
	var f *os.File
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"create", func() (err error) {
			f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_APPEND, 0o640)
			return err
		}},
		{"write", func() error { return all(f.Write([]byte("hello"))) }},
		{"fsync", func() error { return f.Sync() }},
		{"link", func() error { return os.Link(name, other) }},
		{"stat", func() error { return p.links(f, 2) }},
		{"unlink", func() error { return os.Remove(other) }},
		{"rename", func() error { return os.Rename(name, other) }},
		{"lookup", func() error { return missing(name) }},
		{"mkdir", func() error { return os.Mkdir(sub, 0o750) }},
		{"rename over", func() error { return p.replace(other, name) }},
		{"symlink", func() error { return os.Symlink("nowhere", filepath.Join(sub, "link")) }},
		{"readdir", func() error { return p.lists(sub, "link") }},
		{"unlink symlink", func() error { return os.Remove(filepath.Join(sub, "link")) }},
		{"rmdir", func() error { return os.Remove(sub) }},
		{"setxattr", func() error { return unix.Fsetxattr(int(f.Fd()), "user.probe", []byte("x"), unix.XATTR_CREATE) }},
		{"truncate", func() error { return f.Truncate(3) }},
		{"unlink open", func() error { return os.Remove(name) }},
		{"stat", func() error { return p.links(f, 0) }},
		{"write unlinked", func() error { return all(f.Write([]byte("lo, again"))) }},
		{"read unlinked", func() error { return holds(f, []byte("hello, again")) }},
		{"close", func() error { return f.Close() }},
		{"append", p.append},
	} {
		if err := p.timed(step.what, step.do); err != nil {
			return err
		}
	}
	return nil
}

func all(_ int, err error) error { return err }

func (p *probe) links(f *os.File, want uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if uint64(st.Nlink) != want || st.Mode&0o777 != 0o640 {
		return fmt.Errorf("%d links, mode %o; want %d", st.Nlink, st.Mode, want)
	}
	return nil
}

func missing(name string) error {
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is there: %w", name, err)
	}
	return nil
}

// replace renames a file over another one, which it makes before.
func (p *probe) replace(from, to string) error {
	if err := os.WriteFile(to, []byte("to be replaced"), 0o600); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func (p *probe) lists(dir, want string) error {
	names, err := os.ReadDir(dir)
	if err == nil && (len(names) != 1 || names[0].Name() != want) {
		err = fmt.Errorf("listed are %v", names)
	}
	return err
}

func holds(f *os.File, want []byte) error {
	got := make([]byte, len(want)+1)
	n, err := f.ReadAt(got, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if !bytes.Equal(got[:n], want) {
		return fmt.Errorf("it holds %q instead of %q", got[:n], want)
	}
	return nil
}

// append writes to a file that stays open for as long as the probe runs, and looks at all of it now and then.
func (p *probe) append() (err error) {
	if p.opened == nil {
		p.opened, err = os.OpenFile(filepath.Join(p.dir, "long"), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_APPEND, 0o644)
		if err != nil {
			return err
		}
	}
	more := bytes.Repeat([]byte{byte(p.seen.Rounds)}, 1+p.seen.Rounds*37%5000)
	p.want = append(p.want, more...)
	if _, err = p.opened.Write(more); err != nil || p.seen.Rounds%50 != 0 {
		return err
	}
	if err := unix.Fadvise(int(p.opened.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	return holds(p.opened, p.want)
}

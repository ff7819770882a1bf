package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A flush asks the kernel to hand on what it holds of a file of the mount.
type flush struct {
	Mountpoint string `json:"mountpoint"`
	Path       string `json:"path"` // below the mount point
	Inode      uint64 `json:"inode"`
}

// flushed is the answer; "" is success.
type flushed struct {
	Error string `json:"error"`
}

// flusherCommand is the other side of flusher: one answer for each request, until
// nobody asks any more. It has no descriptor of the mount's daemon.
func (p *program) flusherCommand() *cobra.Command {
	return &cobra.Command{
		Use: "flusher", Hidden: true, Args: between(0, 0),
		RunE: func(*cobra.Command, []string) error {
			in, out := json.NewDecoder(os.Stdin), json.NewEncoder(p.stdout)
			for {
				var f flush
				if err := in.Decode(&f); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if err := out.Encode(flushed{message(f.do())}); err != nil {
					return err
				}
			}
		},
	}
}

// do syncs the file through the mount. It keeps nothing open: that would hold the
// mount busy.
func (f flush) do() error {
	root, err := unix.Open(f.Mountpoint, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: f.Mountpoint, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, f.Path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOATIME | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	path := filepath.Join(f.Mountpoint, f.Path)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Ino != f.Inode {
		return fmt.Errorf("%s: is inode %d by now, not %d", path, st.Ino, f.Inode)
	}
	if err := unix.Fsync(fd); err != nil {
		return &os.PathError{Op: "fsync", Path: path, Err: err}
	}
	return nil
}

// flusher has another process touch the mount that this process serves: one that
// waited for itself could not be killed. The process is started when it is first
// needed, and again when it is stuck or dead. Safe for use in parallel; one request
// is under way at a time.
type flusher struct {
	mountpoint string
	environ    []string

	turn chan struct{} // cap 1: held while a request is under way, and by pause

	mu     sync.Mutex // guards the process
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.Closer
	answer *bufio.Reader
}

func newFlusher(mountpoint string, environ []string) *flusher {
	return &flusher{mountpoint: mountpoint, environ: environ, turn: make(chan struct{}, 1)}
}

// flush returns when everything that the kernel held of the file when it was called
// has been written below and synced.
func (f *flusher) flush(ctx context.Context, path string, inode uint64) error {
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-f.turn }()
	if err := f.start(); err != nil {
		return fmt.Errorf("flush %s: %w", path, err)
	}
	result := make(chan error, 1)
	go func() { result <- f.ask(flush{f.mountpoint, path, inode}) }()
	select {
	case err := <-result:
		if err != nil {
			return fmt.Errorf("flush %s: %w", path, err)
		}
		return nil
	case <-ctx.Done():
		f.stop() // ends ask
		<-result
		return fmt.Errorf("flush %s: %w", path, ctx.Err())
	}
}

// pause ends the request under way and lets none begin until resume: an unmount would
// find the mount busy, and a child that starts before an upgrade be nobody's behind it.
func (f *flusher) pause() {
	for {
		f.stop()
		select {
		case f.turn <- struct{}{}:
			f.stop()
			return
		case <-time.After(pausePace):
		}
	}
}

func (f *flusher) resume() { <-f.turn }

const pausePace = 50 * time.Millisecond

func (f *flusher) start() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cmd != nil {
		return nil
	}
	cmd := exec.Command("/proc/self/exe", "flusher")
	cmd.Args[0], cmd.Env, cmd.Stderr = os.Args[0], f.environ, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	f.cmd, f.stdin, f.stdout, f.answer = cmd, stdin, stdout, bufio.NewReader(stdout)
	return nil
}

func (f *flusher) ask(what flush) error {
	line, err := json.Marshal(what)
	if err == nil {
		_, err = f.stdin.Write(append(line, '\n'))
	}
	if err == nil {
		line, err = f.answer.ReadBytes('\n')
	}
	if err != nil {
		f.stop()
		return fmt.Errorf("the flusher: %w", err)
	}
	var said flushed
	if err := json.Unmarshal(line, &said); err != nil {
		f.stop()
		return fmt.Errorf("the flusher: %w", err)
	}
	if said.Error != "" {
		return errors.New(said.Error)
	}
	return nil
}

// stop kills the process, and does not wait for its end: one that waits in the kernel for
// an answer of this daemon, or for a disk, dies when it gets it.
func (f *flusher) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cmd == nil {
		return
	}
	_ = f.cmd.Process.Kill()
	_ = f.stdin.Close()
	_ = f.stdout.Close() // ends ask
	go f.cmd.Wait()      // of no use to anybody, but to the kernel
	f.cmd = nil
}

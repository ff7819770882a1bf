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
	"time"

	"github.com/tierfs/tierfs/integration/child"
)

// Requests to a load, one a line; each gets one loadReply as a line of JSON.
const (
	askReady  = "ready"  // the first one: everything is looked up and open
	askPauses = "pauses" // the longest calls since the last one; replied when all threads have done a call that began after it
	askRest   = "rest"   // both threads stop, no call lasts
	askWork   = "work"   // they go on
	askVerify = "verify" // at rest: read back what was appended
)

// loadReply is a reply. Times are in nanoseconds.
type loadReply struct {
	Known, Open int // of ready
	Reads       int // calls, of pauses

	Read, Append, Sync time.Duration // the longest of each, of pauses
	Appended           int64         // bytes so far, of verify
}

// reader and writer are how long the threads waited at most, in milliseconds.
func (r loadReply) reader() float64 { return milliseconds(r.Read) }
func (r loadReply) writer() float64 { return milliseconds(max(r.Append, r.Sync)) }

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// answer serves requests until there are no more.
func (l *load) answer(from io.Reader, to io.Writer) error {
	replies := json.NewEncoder(to)
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var r loadReply
		switch lines.Text() {
		case askReady:
			r.Known, r.Open = l.known, len(l.open)
		case askPauses:
			r.Read, r.Reads = l.reads.take()
			r.Append, _ = l.appends.take()
			if l.syncs {
				r.Sync, _ = l.fsyncs.take()
			}
		case askRest:
			l.gate.Lock()
		case askWork:
			l.gate.Unlock()
		case askVerify:
			if err := l.verify(); err != nil {
				return err
			}
			r.Appended = l.appended
		default:
			return fmt.Errorf("unknown request %q", lines.Text())
		}
		if err := replies.Encode(r); err != nil {
			return err
		}
	}
	return lines.Err()
}

// loader is the other side of a load. Not safe for use by several goroutines.
type loader struct {
	process  *child.Process
	requests *os.File
	from     *os.File
	replies  chan loadReply // closed when there are no more
}

// startLoad starts a load with these flags.
func startLoad(flags ...string) (*loader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	stdin, requests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	from, stdout, err := os.Pipe()
	if err != nil {
		return nil, joined(err, requests.Close())
	}
	defer stdout.Close()
	cmd := exec.Command(self, append([]string{"load"}, flags...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, os.Stderr
	process, err := child.Start(cmd)
	if err != nil {
		return nil, errors.Join(err, requests.Close(), from.Close())
	}
	l := &loader{process: process, requests: requests, from: from, replies: make(chan loadReply, 1)}
	go func() {
		defer close(l.replies)
		for replies := json.NewDecoder(from); ; {
			var r loadReply
			if replies.Decode(&r) != nil {
				return
			}
			l.replies <- r // there is room: one request at a time
		}
	}()
	return l, nil
}

// ask sends a request and waits for its reply. After an error nothing more can be asked.
func (l *loader) ask(ctx context.Context, request string) (loadReply, error) {
	if _, err := fmt.Fprintln(l.requests, request); err != nil {
		return loadReply{}, fmt.Errorf("load: %w", err)
	}
	select {
	case r, ok := <-l.replies:
		if !ok {
			return r, fmt.Errorf("the load ended instead of a reply to %q", request)
		}
		return r, nil
	case <-ctx.Done():
		return loadReply{}, fmt.Errorf("load: no reply to %q: %w", request, context.Cause(ctx))
	}
}

// loadGrace is how long a load may take to end. One whose mount answers no more cannot even be killed.
const loadGrace = 10 * time.Second

// end ends the load, and says so if it does not.
func (l *loader) end() error {
	err := l.requests.Close()
	for _, force := range []bool{false, true} {
		if force {
			err = errors.Join(err, errors.New("the load had to be killed"), l.process.Signal(os.Kill))
		}
		select {
		case <-l.process.Done():
			return errors.Join(err, l.process.Err(), l.from.Close())
		case <-time.After(loadGrace):
		}
	}
	return errors.Join(err, errors.New("the load does not end: it waits for the mount"), l.from.Close())
}

package child

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// Output collects what a child prints: it is the child's stdout or stderr. Every line goes to a file, and whoever waits for one
// is woken by it. Safe for use by several goroutines.
type Output struct {
	mu      sync.Mutex
	file    *os.File
	text    bytes.Buffer
	changed chan struct{} // closed and replaced at each write
}

// NewOutput makes an Output that appends to the file at path.
func NewOutput(path string) (*Output, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &Output{file: file, changed: make(chan struct{})}, nil
}

var _ io.WriteCloser = (*Output)(nil)

// Write implements io.Writer for exec.Cmd.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	close(o.changed)
	o.changed = make(chan struct{})
	return o.file.Write(p)
}

// Close closes the file. What was collected stays readable.
func (o *Output) Close() error { return o.file.Close() }

// Text is all that was printed so far.
func (o *Output) Text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Tail is the last n lines of Text.
func (o *Output) Tail(n int) string {
	lines := strings.Split(strings.TrimRight(o.Text(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Len is the length of Text, to be given to Await as a starting point.
func (o *Output) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Len()
}

// Await waits for text behind position from. It ends early with an error when ctx or the process ends.
func (o *Output) Await(ctx context.Context, p *Process, from int, text string) error {
	for {
		o.mu.Lock()
		found := bytes.Contains(o.text.Bytes()[from:], []byte(text))
		changed := o.changed
		o.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("process %d did not print %q: %w; its last lines:\n%s", p.PID(), text, context.Cause(ctx), o.Tail(20))
		case <-p.Done():
			if !strings.Contains(o.Text()[from:], text) {
				return fmt.Errorf("process %d ended (%v) before it printed %q; its last lines:\n%s", p.PID(), p.Err(), text, o.Tail(20))
			}
		}
	}
}

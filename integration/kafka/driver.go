package kafka

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tierfs/tierfs/integration/child"
)

// clusterID is any id in the form that StorageTool wants: 16 bytes in URL-safe base64.
const clusterID = "dGllcmZzLXRpZXJmcy0wMQ"

// ErrClient is what a request to the client failed with: a record that is not what was produced, a time-out, an unknown topic.
var ErrClient = errors.New("kafka client")

// Driver is a Kafka client in a JVM of its own, one for all requests of a test. It knows every record that it produced. Its
// methods may be called in parallel.
type Driver struct {
	process *child.Process
	log     *child.Output
	readers sync.WaitGroup

	mu      sync.Mutex // guards what follows
	in      io.WriteCloser
	last    int
	waiting map[string]*Call
	broken  error
}

// Call is a request under way.
type Call struct {
	driver *Driver
	id     string
	done   chan struct{}
	reply  Reply
	err    error
}

// Reply holds the values of an answer.
type Reply map[string]string

// Int is a value as a number, 0 when it is missing or none.
func (r Reply) Int(key string) int64 {
	n, err := strconv.ParseInt(r[key], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Duration is a value that was given in milliseconds.
func (r Reply) Duration(key string) time.Duration {
	return time.Duration(r.Int(key)) * time.Millisecond
}

// StartDriver starts a client whose log goes to dir/driver.log. measured chooses a full JVM instead of a quickly started one.
func StartDriver(install Install, dir string, measured bool) (*Driver, error) {
	log, err := child.NewOutput(filepath.Join(dir, "driver.log"))
	if err != nil {
		return nil, err
	}
	flags := quick("1g")
	if measured {
		flags = steady("1g")
	}
	cmd := install.java("WARN", flags, "tierfs.driver.Driver")
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, w := io.Pipe()
	cmd.Stdout = w
	process, err := child.Start(cmd)
	if err != nil {
		return nil, err
	}
	d := &Driver{process: process, log: log, in: in, waiting: map[string]*Call{}}
	d.readers.Go(func() {
		<-process.Done()
		w.Close() // never fails
	})
	d.readers.Go(func() { d.read(answers) })
	return d, nil
}

// read hands each answer to its call, and fails what is left when the client has ended.
func (d *Driver) read(answers io.Reader) {
	for lines := bufio.NewScanner(answers); lines.Scan(); {
		id, rest, _ := strings.Cut(lines.Text(), " ")
		d.mu.Lock()
		call := d.waiting[id]
		delete(d.waiting, id)
		d.mu.Unlock()
		if call != nil {
			call.finish(rest)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = fmt.Errorf("%w: its process has ended; last lines:\n%s", ErrClient, d.log.Tail(20))
	for _, call := range d.waiting {
		call.err = d.broken
		close(call.done)
	}
	clear(d.waiting)
}

func (c *Call) finish(answer string) {
	status, rest, _ := strings.Cut(answer, " ")
	if status == "ok" {
		c.reply = Reply{}
		for _, word := range strings.Fields(rest) {
			key, value, _ := strings.Cut(word, "=")
			c.reply[key] = value
		}
	} else {
		c.err = fmt.Errorf("%w: %s", ErrClient, rest)
	}
	close(c.done)
}

// Go sends a request; args are key=value words without spaces.
func (d *Driver) Go(verb string, args ...string) *Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	call := &Call{driver: d, id: strconv.Itoa(d.last), done: make(chan struct{})}
	err := d.broken
	if err == nil {
		_, err = fmt.Fprintln(d.in, call.id, verb, strings.Join(args, " "))
	}
	if err != nil {
		call.err = err
		close(call.done)
		return call
	}
	d.waiting[call.id] = call
	return call
}

// Do sends a request and waits for its answer.
func (d *Driver) Do(ctx context.Context, verb string, args ...string) (Reply, error) {
	reply, err := d.Go(verb, args...).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", verb, strings.Join(args, " "), err)
	}
	return reply, nil
}

// Format formats the broker's directories by Kafka's own StorageTool. Formatted ones stay as they are.
func (d *Driver) Format(ctx context.Context, b *Broker) error {
	_, err := d.Do(ctx, "format", "config="+b.properties, "cluster="+clusterID)
	return err
}

// Wait waits for the answer. ctx bounds only this wait.
func (c *Call) Wait(ctx context.Context) (Reply, error) {
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Acked waits until the produce request under way has n acknowledged records.
func (c *Call) Acked(ctx context.Context, n int64) error {
	_, err := c.driver.Do(ctx, "await", "id="+c.id, fmt.Sprintf("acked=%d", n))
	return err
}

// More waits until the produce request under way has n more acknowledged records than now.
func (c *Call) More(ctx context.Context, n int64) error {
	now, err := c.driver.Do(ctx, "await", "id="+c.id, "acked=0")
	if err != nil {
		return err
	}
	return c.Acked(ctx, now.Int("acked")+n)
}

// Stop tells the produce request under way to end, and waits for its answer.
func (c *Call) Stop(ctx context.Context) (Reply, error) {
	if _, err := c.driver.Do(ctx, "stop", "id="+c.id); err != nil {
		return nil, err
	}
	return c.Wait(ctx)
}

// Close ends the client and waits for it.
func (d *Driver) Close() error {
	d.mu.Lock()
	err := d.in.Close()
	d.mu.Unlock()
	err = errors.Join(err, d.process.Stop(10*time.Second))
	d.readers.Wait()
	return errors.Join(err, d.log.Close())
}

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/rig"
)

// Set once by TestMain: Kafka's jars, the tierfs under test, and the same with the race detector in it.
var (
	install         kafka.Install
	binary, checked string
)

func TestMain(m *testing.M) {
	if where := os.Getenv(stormAt); where != "" {
		runStorm(where)
	}
	if where := os.Getenv(probeAt); where != "" {
		runProbe(where)
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	var err error
	if install, err = kafka.Locate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "tierfs-binary-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary, checked = filepath.Join(dir, "tierfs"), filepath.Join(dir, "tierfs-race")
	if err := errors.Join(daemon.Build(context.Background(), binary, false), daemon.Build(context.Background(), checked, true)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// soak says whether the long version of the tests was asked for.
func soak() bool { return os.Getenv("TIERFS_SOAK") != "" }

// fixture is a rig whose errors fail the test and which is gone when the test ends.
type fixture struct {
	*rig.Rig
	t     *testing.T
	ctx   context.Context
	store rig.Store
}

// newFixture sets a rig up with a time limit for all of the test. Nothing is mounted and no broker runs yet.
func newFixture(t *testing.T, store rig.Store, o rig.Options) *fixture {
	t.Helper()
	limit := 8 * time.Minute // far more than any needs on a machine that has nothing else to do
	if soak() {
		limit = 20 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	o.Store, o.Install = store, install
	if o.Root == "" {
		o.Root = t.TempDir()
	}
	if o.Binary == "" {
		o.Binary = binary
	}
	r, err := rig.New(o)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Rig: r, t: t, ctx: ctx, store: store}
	t.Cleanup(f.close)
	return f
}

func (f *fixture) close() {
	if err := f.Close(); err != nil {
		f.t.Error(err)
	}
	f.afterwards()
}

// afterwards looks at what tierfs and the broker have said in their lives.
func (f *fixture) afterwards() {
	if races := strings.Count(f.Daemon.Log().Text(), "WARNING: DATA RACE"); races > 0 {
		f.t.Errorf("the race detector found %d races in tierfs", races)
	}
	if f.t.Failed() {
		f.t.Logf("tierfs:\n%s\nbroker:\n%s", f.Daemon.Log().Tail(80), alarming(f.Broker.Log()))
	}
}

// logEntry matches the first line of an entry of a broker's log; what follows until the next one belongs to it.
var logEntry = regexp.MustCompile(`^[\d:.]+ ([A-Z]+) `)

// alarming are the first and the last lines of a broker's log that are more than information.
func alarming(log *child.Output) string {
	var lines []string
	keep := true // what the JVM itself says comes before any entry
	for line := range strings.Lines(log.Text()) {
		if entry := logEntry.FindStringSubmatch(line); entry != nil {
			keep = entry[1] != "INFO"
		}
		if keep {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	if len(lines) > 60 {
		lines = slices.Concat(lines[:30], []string{fmt.Sprintf("… %d lines …", len(lines)-60)}, lines[len(lines)-30:])
	}
	return strings.Join(lines, "\n")
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) up() {
	f.t.Helper()
	f.must(f.Up(f.ctx))
}

// do is a request to the client that has to succeed.
func (f *fixture) do(verb string, args ...string) kafka.Reply {
	f.t.Helper()
	reply, err := f.Rig.Do(f.ctx, verb, args...)
	f.must(err)
	return reply
}

// tierfs is a command that has to succeed.
func (f *fixture) tierfs(args ...string) string {
	f.t.Helper()
	out, err := f.Daemon.Do(f.ctx, args...)
	f.must(err)
	return out
}

// evict waits for the broker's checkpoints, then uploads and evicts all that the invariants allow.
func (f *fixture) evict() {
	f.t.Helper()
	f.must(f.Checkpointed(f.ctx))
	f.t.Logf("evict: %s", strings.TrimSpace(f.tierfs("evict", "--all", f.View())))
}

func (f *fixture) status() daemon.Status {
	f.t.Helper()
	s, err := f.Daemon.Status(f.ctx)
	f.must(err)
	return s
}

func (f *fixture) metric(name string, labels ...string) float64 {
	f.t.Helper()
	value, err := f.Daemon.Metric(f.ctx, name, labels...)
	f.must(err)
	return value
}

// gets is the number of GET requests that the daemon has made to the store.
func (f *fixture) gets() float64 {
	f.t.Helper()
	return f.metric("tierfs_store_requests_total", "op", "get")
}

// used is what the source takes on its disk.
func (f *fixture) used() int64 {
	f.t.Helper()
	used, err := f.Used()
	f.must(err)
	return used
}

// openLogs are the broker's descriptors of segments.
func (f *fixture) openLogs() []string {
	f.t.Helper()
	open, err := child.OpenFiles(f.Broker.PID(), f.View())
	f.must(err)
	open = slices.DeleteFunc(open, func(s string) bool { return !strings.HasSuffix(s, ".log") })
	slices.Sort(open)
	return open
}

// segment matches the log of a segment, as the broker sees it.
var segment = regexp.MustCompile(`^\d{20}\.log$`)

// eventually looks again until the condition holds: for what shows only in a directory or a bucket, which nobody announces.
func (f *fixture) eventually(what string, limit time.Duration, holds func() (bool, error)) {
	f.t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for tick := time.Tick(100 * time.Millisecond); ; {
		ok, err := holds()
		f.must(err)
		if ok {
			return
		}
		select {
		case <-tick:
		case <-deadline.C:
			f.t.Fatalf("%s: not within %v", what, limit)
		case <-f.ctx.Done():
			f.t.Fatalf("%s: %v", what, context.Cause(f.ctx))
		}
	}
}

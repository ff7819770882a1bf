package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tierfs/tierfs/integration/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNativeDirectory holds the harness itself to account, on a plain directory: the broker's life and the client's comparison.
func TestNativeDirectory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b, d := newPair(t, ctx)
	at := "bootstrap=" + b.Bootstrap()
	do := func(verb string, args ...string) Reply {
		t.Helper()
		reply, err := d.Do(ctx, verb, append([]string{at}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	fails := func(want, verb string, args ...string) {
		t.Helper()
		_, err := d.Do(ctx, verb, append([]string{at}, args...)...)
		if !errors.Is(err, ErrClient) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %v: %v, want an error with %q", verb, args, err, want)
		}
	}

	t.Run("every kind of producer is read back", func(t *testing.T) {
		for _, compression := range []string{"none", "lz4", "zstd", "gzip"} {
			topic := "topic=plain-" + compression
			do("create", topic, "partitions=2", "payload=text")
			if r := do("produce", topic, "records=4000", "compression="+compression); r.Int("acked") != 4000 {
				t.Errorf("produced %v", r)
			}
			if r := do("consume", topic); r.Int("records") != 4000 {
				t.Errorf("consumed %v", r)
			}
		}
		do("create", "topic=txn", "partitions=3")
		do("produce", "topic=txn", "records=6000", "mode=txn", "txn=300", "abort=4")
		if r := do("consume", "topic=txn"); r.Int("records") != 6000 {
			t.Errorf("uncommitted: %v", r)
		}
		if r := do("consume", "topic=txn", "isolation=read_committed"); r.Int("records") != 4800 {
			t.Errorf("committed: %v", r)
		}
		do("random", "topic=txn", "count=20", "seed=1")
		do("times", "topic=plain-zstd", "count=20", "seed=2")
	})
	t.Run("the comparison sees what is wrong", func(t *testing.T) {
		do("create", "topic=other", "partitions=2")
		do("produce", "topic=other", "records=4000")
		fails("different from byte", "consume", "topic=plain-none", "ledger=other")
		do("create", "topic=longer", "partitions=2", "payload=text")
		fails("of 0 sent", "consume", "topic=plain-none", "ledger=longer")
		fails("unknown words", "consume", "topic=other", "isolatoin=read_committed")
		fails("was not created here", "consume", "topic=nowhere")
	})
	t.Run("a killed broker comes back with what it acknowledged", func(t *testing.T) {
		do("create", "topic=kill", "config.flush.messages=1", "config.segment.bytes=1048576")
		run := d.Go("produce", at, "topic=kill", "rate=2000")
		acked(t, ctx, run, 2000)
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		acked(t, ctx, run, 6000)
		if r, err := run.Stop(ctx); err != nil || r.Int("failed") != 0 {
			t.Fatalf("stop: %v, %v", r, err)
		}
		do("consume", "topic=kill")
		if r := do("logdirs"); r.Int("offline") != 0 || r.Int("dirs") != 1 {
			t.Errorf("log dirs: %v", r)
		}
	})
	t.Run("a lost segment is noticed", func(t *testing.T) {
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		logs, err := filepath.Glob(filepath.Join(b.config.DataDir, "kill-0", "*.log"))
		if err != nil || len(logs) < 3 {
			t.Fatalf("segments: %v, %v", logs, err)
		}
		if err := os.Truncate(logs[len(logs)-1], 0); err != nil {
			t.Fatal(err)
		}
		if err := b.Start(ctx); err != nil {
			t.Fatal(err)
		}
		fails("was acknowledged", "consume", "topic=kill")
	})
	t.Run("the descriptors of a segment are seen", func(t *testing.T) {
		open, err := child.OpenFiles(b.PID(), b.config.DataDir)
		if err != nil || !strings.Contains(fmt.Sprint(open), "txn-0/00000000000000000000.log") {
			t.Errorf("open: %v, %v", open, err)
		}
		do("delete", "topic=txn")
	})
}

func acked(t *testing.T, ctx context.Context, run *Call, n int64) {
	t.Helper()
	if err := run.Acked(ctx, n); err != nil {
		t.Fatal(err)
	}
}

// newPair starts a formatted broker and a client, both gone at the end of the test.
func newPair(t *testing.T, ctx context.Context) (*Broker, *Driver) {
	t.Helper()
	install, err := Locate()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := StartDriver(install, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := NewBroker(install, Config{Dir: filepath.Join(dir, "broker"), DataDir: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("broker:\n%s\nclient:\n%s", b.Log().Tail(15), d.log.Tail(40))
		}
	})
	if err := d.Format(ctx, b); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return b, d
}

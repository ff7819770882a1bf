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
	p := newPair(t, ctx)
	t.Run("every kind of producer is read back", func(t *testing.T) { p.on(t).kinds() })
	t.Run("the comparison sees what is wrong", func(t *testing.T) { p.on(t).comparison() })
	t.Run("a killed broker comes back with what it acknowledged", func(t *testing.T) { p.on(t).killed() })
	t.Run("a lost segment is noticed", func(t *testing.T) { p.on(t).lost() })
	t.Run("the descriptors of a segment are seen", func(t *testing.T) { p.on(t).descriptors() })
}

// pair is a broker on a plain directory and a client, both gone at the end of the test.
type pair struct {
	t      *testing.T
	ctx    context.Context
	broker *Broker
	client *Driver
}

func (p pair) on(t *testing.T) pair {
	p.t = t
	return p
}

func (p pair) request(verb string, args []string) (Reply, error) {
	return p.client.Do(p.ctx, verb, append([]string{"bootstrap=" + p.broker.Bootstrap()}, args...)...)
}

func (p pair) do(verb string, args ...string) Reply {
	p.t.Helper()
	reply, err := p.request(verb, args)
	p.must(err)
	return reply
}

func (p pair) fails(want, verb string, args ...string) {
	p.t.Helper()
	_, err := p.request(verb, args)
	if !errors.Is(err, ErrClient) || !strings.Contains(err.Error(), want) {
		p.t.Errorf("%s %v: %v, want an error with %q", verb, args, err, want)
	}
}

func (p pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p pair) kinds() {
	for _, compression := range []string{"none", "lz4", "zstd", "gzip"} {
		topic := "topic=plain-" + compression
		p.do("create", topic, "partitions=2", "payload=text")
		if r := p.do("produce", topic, "records=4000", "compression="+compression); r.Int("acked") != 4000 {
			p.t.Errorf("produced %v", r)
		}
		if r := p.do("consume", topic); r.Int("records") != 4000 {
			p.t.Errorf("consumed %v", r)
		}
	}
	p.do("create", "topic=txn", "partitions=3")
	p.do("produce", "topic=txn", "records=6000", "mode=txn", "txn=300", "abort=4")
	if r := p.do("consume", "topic=txn"); r.Int("records") != 6000 {
		p.t.Errorf("uncommitted: %v", r)
	}
	if r := p.do("consume", "topic=txn", "isolation=read_committed"); r.Int("records") != 4800 {
		p.t.Errorf("committed: %v", r)
	}
	p.do("random", "topic=txn", "count=20", "seed=1")
	p.do("times", "topic=plain-zstd", "count=20", "seed=2")
}

func (p pair) comparison() {
	p.do("create", "topic=other", "partitions=2")
	p.do("produce", "topic=other", "records=4000")
	p.fails("different from byte", "consume", "topic=plain-none", "ledger=other")
	p.do("create", "topic=longer", "partitions=2", "payload=text")
	p.fails("of 0 sent", "consume", "topic=plain-none", "ledger=longer")
	p.fails("unknown words", "consume", "topic=other", "isolatoin=read_committed")
	p.fails("was not created here", "consume", "topic=nowhere")
}

func (p pair) killed() {
	p.do("create", "topic=kill", "config.flush.messages=1", "config.segment.bytes=1048576")
	run := p.client.Go("produce", "bootstrap="+p.broker.Bootstrap(), "topic=kill", "rate=2000")
	p.must(run.Acked(p.ctx, 2000))
	p.must(p.broker.Kill())
	p.must(p.broker.Start(p.ctx))
	p.must(run.Acked(p.ctx, 6000))
	if r, err := run.Stop(p.ctx); err != nil || r.Int("failed") != 0 {
		p.t.Fatalf("stop: %v, %v", r, err)
	}
	p.do("consume", "topic=kill")
	if r := p.do("logdirs"); r.Int("offline") != 0 || r.Int("dirs") != 1 {
		p.t.Errorf("log dirs: %v", r)
	}
}

func (p pair) lost() {
	p.must(p.broker.Stop())
	logs, err := filepath.Glob(filepath.Join(p.broker.config.DataDir, "kill-0", "*.log"))
	if err != nil || len(logs) < 3 {
		p.t.Fatalf("segments: %v, %v", logs, err)
	}
	p.must(os.Truncate(logs[len(logs)-1], 0))
	p.must(p.broker.Start(p.ctx))
	p.fails("was acknowledged", "consume", "topic=kill")
}

func (p pair) descriptors() {
	open, err := child.OpenFiles(p.broker.PID(), p.broker.config.DataDir)
	if err != nil || !strings.Contains(fmt.Sprint(open), "txn-0/00000000000000000000.log") {
		p.t.Errorf("open: %v, %v", open, err)
	}
	p.do("delete", "topic=txn")
}

func newPair(t *testing.T, ctx context.Context) pair {
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
	return pair{t, ctx, b, d}
}

package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/integration/rig"
)

// backlog is what a broker has on its own disk before anyone thought of tierfs.
var backlog = []topic{
	{name: "orders", create: []string{"partitions=2", "min=1000", "max=9000"}, produce: []string{"batch=65536"}, records: 8000},
	{name: "events", create: []string{"partitions=2", "payload=text"}, produce: []string{"mode=txn", "txn=300", "abort=4", "compression=lz4"}, records: 30000, txn: true},
}

// TestAdoption mounts over the directory of a broker that has been running natively.
func TestAdoption(t *testing.T) {
	tested := stores[:1]
	if soak() {
		tested = stores
	}
	for _, store := range tested {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			adoption(newFixture(t, store.open(t), rig.Options{Binary: checked}))
		})
	}
}

func adoption(f *fixture) {
	f.must(f.Client.Format(f.ctx, f.Broker))
	f.must(f.Broker.Start(f.ctx))
	f.produce(backlog)

	before, rest := f.picture(f.Source), sealed(f.segments())
	refuses(f.t, f.Daemon, []string{"mount", "--config", f.Daemon.Config(), f.Source}, fmt.Sprint(f.Broker.PID()), "java")
	unchanged(f.t, before, f.picture(f.Source))
	for path, now := range f.segments() {
		if was, ok := rest[path]; ok && was != now {
			f.t.Errorf("%s was %v and is %v", path, was, now)
		}
	}

	f.must(f.Broker.Stop())
	logs := f.segments()
	f.up()
	unchanged(f.t, logs, f.segments())
	f.evict()
	for path := range sealed(logs) {
		if _, ok := f.remote()[path]; !ok && !strings.HasPrefix(path, "__") {
			f.t.Errorf("%s of the backlog was not evicted", path)
		}
	}
	f.checkHidden()
	f.must(f.Forget())
	f.consume(backlog, 10)

	bare(f)
}

// bare starts the broker on the source while nothing is mounted: it must refuse, and must not have harmed what is tiered.
func bare(f *fixture) {
	f.must(f.Broker.Stop())
	logs := f.segments()
	f.must(f.Daemon.Stop())
	if info, err := os.Stat(f.Source); err != nil || info.Mode().Perm() != 0o700 {
		f.t.Errorf("the bare source is open to others: %v, %v", info.Mode(), err)
	}
	if err := f.Broker.Start(f.ctx); err == nil {
		f.t.Error("the broker started on the bare source")
		f.must(f.Broker.Stop())
	} else if !strings.Contains(f.Broker.Log().Text(), ".tierfs") {
		f.t.Errorf("the broker's log does not say why it refused the bare source")
	}
	f.must(f.Daemon.Start(f.ctx))
	unchanged(f.t, logs, f.segments())
	f.must(f.Broker.Start(f.ctx))
	f.consume(backlog, 5)
}

// picture is everything about a directory that a refused mount could have touched, but for sizes and times: the running broker goes
// on writing, to its own topics and the end of a transaction to others.
func (f *fixture) picture(dir string) map[string]string {
	f.t.Helper()
	all := map[string]string{}
	f.walk(dir, func(path string, e fs.DirEntry) {
		info, err := e.Info()
		if os.IsNotExist(err) {
			return
		}
		f.must(err)
		if segment.MatchString(e.Name()) || e.IsDir() && filepath.Dir(path) == "." { // the rest changes under a running broker
			all[path] = info.Mode().String()
		}
		if strings.HasPrefix(e.Name(), ".tierfs") {
			all[path] = "is there"
		}
	})
	return all
}

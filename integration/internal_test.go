package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/rig"
)

// ordinary is a topic that is tiered: beside it the others show that they are not.
const ordinary = "ordinary"

// TestNeverTiered lets everything grow sealed segments that the broker reads, rewrites or moves by itself: its own topics, the cluster's
// metadata, a compacted topic, and directories that are on their way to somewhere else. Nothing of them is uploaded or evicted.
func TestNeverTiered(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	f := newFixture(t, fsStore(t), rig.Options{
		Root: root, Binary: checked, Settings: "[retention]\ndelete_grace = \"1 s\"\n",
		Broker: map[string]string{
			"metadata.log.dir":              filepath.Join(root, "data"), // on the mount, as it is where nobody says anything else
			"metadata.log.segment.ms":       "1000",
			"metadata.max.idle.interval.ms": "200",
			"log.cleaner.backoff.ms":        "200",
			"log.segment.delete.delay.ms":   "10000", // of deleted topics
		},
	})
	f.up()
	for _, topic := range []string{ordinary, "doomed"} {
		f.do("create", "topic="+topic, "min=1000", "max=5000", "config.segment.bytes=1048576")
	}
	f.do("create", "topic=kv", "min=1000", "max=5000", "config.segment.bytes=1048576",
		"config.cleanup.policy=compact", "config.min.cleanable.dirty.ratio=0.001", "config.file.delete.delay.ms=1000")
	f.do("create", "topic=txn")
	f.do("produce", "topic="+ordinary, "records=1200")
	f.do("produce", "topic=kv", "records=1200")
	t.Run("internal topics", func(t *testing.T) { f.in(t).internalTopics() })
	t.Run("a compacted topic", func(t *testing.T) { f.in(t).compactedTopic() })
	t.Run("a deleted topic", func(t *testing.T) { f.in(t).deletedDirectory() })
	t.Run("a stray directory", func(t *testing.T) { f.in(t).strayDirectory() })
	t.Run("a future directory", func(t *testing.T) { f.in(t).futureDirectory() })
	f.online()
	f.do("consume", "topic="+ordinary)
	f.do("consume", "topic=kv")
}

// never evicts all that may go, and insists that directories whose names match have sealed segments that are neither marked nor in the
// store. The ordinary topic shows that others are.
func (f *fixture) never(pattern string) {
	f.t.Helper()
	f.evict()
	match := regexp.MustCompile(pattern)
	logs := map[string]int{}
	f.walk(f.Below(), func(path string, e fs.DirEntry) {
		dir, name := filepath.Split(path)
		if dir = strings.TrimSuffix(dir, "/"); !match.MatchString(dir) {
			return
		}
		if strings.HasSuffix(name, ".remote") || strings.HasSuffix(name, ".uploaded") {
			f.t.Errorf("%s is marked", path)
		}
		if strings.Contains(name, ".log") {
			logs[dir]++
		}
	})
	for dir, n := range logs {
		if n < 2 {
			f.t.Errorf("%s has %d segments: none is sealed", dir, n)
		}
	}
	if len(logs) == 0 {
		f.t.Errorf("there is no directory %s", pattern)
	}
	objects, err := f.store.Objects("/", "")
	f.must(err)
	tiered := 0
	for key := range objects {
		m := uploadKey.FindStringSubmatch(key)
		switch {
		case m == nil:
		case match.MatchString(m[2]):
			f.t.Errorf("%s is in the store", key)
		case m[2] == ordinary+"-0":
			tiered++
		}
	}
	if tiered == 0 || len(f.evicted(ordinary)) == 0 {
		f.t.Errorf("nothing of an ordinary topic is tiered either: %v", objects)
	}
}

// internalTopics makes the broker's own topics roll, by commits and transactions, and the metadata by itself.
func (f *fixture) internalTopics() {
	work := func() {
		f.do("commit", "group=g", "topic="+ordinary, "offset=5")
		f.do("produce", "topic=txn", "records=40", "mode=txn", "txn=10")
	}
	work()
	for _, topic := range []string{"__consumer_offsets", "__transaction_state"} {
		f.do("alter", "topic="+topic, "config.segment.ms=50")
	}
	for _, dir := range []string{"__consumer_offsets-0", "__transaction_state-0", "__cluster_metadata-0"} {
		f.eventually(dir+" has sealed segments", 40*time.Second, func() (bool, error) {
			logs, err := filepath.Glob(filepath.Join(f.View(), dir, "*.log"))
			if len(logs) < 3 && err == nil {
				work()
			}
			return len(logs) >= 3, err
		})
	}
	f.never("^__")
}

// compactedTopic waits for the cleaner: what it left behind before may have been uploaded, what it has rewritten is not.
func (f *fixture) compactedTopic() {
	cleaned := func() (bool, error) {
		text, err := os.ReadFile(filepath.Join(f.View(), "cleaner-offset-checkpoint"))
		if os.IsNotExist(err) {
			return false, nil
		}
		return strings.Contains(string(text), "kv 0 "), err
	}
	f.eventually("the topic is compacted", time.Minute, cleaned)
	f.eventually("its objects go", 30*time.Second, func() (bool, error) {
		objects, err := f.store.Objects("/kv-0/", "")
		return len(objects) == 0, err
	})
	f.do("produce", "topic=kv", "records=1200")
	f.never("^kv-")
}

// deletedDirectory has a topic deleted before any of its segments could be put.
func (f *fixture) deletedDirectory() {
	f.tierfs("pause", f.View())
	f.do("produce", "topic=doomed", "records=1200")
	f.do("delete", "topic=doomed")
	f.eventually("its directory is renamed", 20*time.Second, func() (bool, error) {
		dirs, err := filepath.Glob(filepath.Join(f.View(), "doomed-0.*-delete"))
		return len(dirs) == 1, err
	})
	f.tierfs("resume", f.View())
	f.never(`^doomed-0`)
}

// strayDirectory gives the broker, when it starts, a replica of a topic that the cluster does not know.
func (f *fixture) strayDirectory() {
	f.must(f.Broker.Stop())
	f.tierfs("pause", f.View())
	f.copyReplica("ghost-0")
	f.must(f.Broker.Start(f.ctx))
	f.eventually("its directory is renamed", 20*time.Second, func() (bool, error) {
		dirs, err := filepath.Glob(filepath.Join(f.View(), "ghost-0.*-stray"))
		return len(dirs) == 1, err
	})
	f.tierfs("resume", f.View())
	f.never(`^ghost-0`)
}

// futureDirectory makes what the broker makes of a replica that moves to this directory.
func (f *fixture) futureDirectory() {
	const name = "ordinary-0.0123456789abcdef0123456789abcdef-future"
	f.copyReplica(name)
	f.never(`-future$`)
	f.must(os.RemoveAll(filepath.Join(f.View(), name)))
}

// copyReplica makes a replica that looks like that of the compacted topic, through the mount; its topic is another.
func (f *fixture) copyReplica(name string) {
	f.t.Helper()
	from, to := filepath.Join(f.View(), "kv-0"), filepath.Join(f.View(), name)
	f.must(os.Mkdir(to, 0o755))
	entries, err := os.ReadDir(from)
	f.must(err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".deleted") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		f.must(err)
		if e.Name() == "partition.metadata" {
			data = fmt.Appendf(nil, "version: 0\ntopic_id: %s", "dGllcmZzLWdob3N0LTAwMQ")
		}
		f.must(os.WriteFile(filepath.Join(to, e.Name()), data, 0o644))
	}
}

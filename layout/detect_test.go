package layout_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
)

const aLog = "00000000000000000042.log"

// tree is a volume: directories, "" for the root, and the names in them.
type tree map[string][]string

func (tr tree) names(dir string) ([]string, error) {
	if names, ok := tr[dir]; ok {
		return names, nil
	}
	return nil, errors.New("no directory")
}

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		what string
		tree tree
		want layout.Kind // empty: not yet
	}{
		{"kafka: formatted", tree{"": {"bootstrap.checkpoint", "meta.properties"}}, layout.Kafka},
		{"kafka: recovery points", tree{"": {"recovery-point-offset-checkpoint"}}, layout.Kafka},
		{"kafka: high watermarks", tree{"": {"replication-offset-checkpoint"}}, layout.Kafka},
		{"kafka: log starts", tree{"": {"log-start-offset-checkpoint"}}, layout.Kafka},
		{"kafka: cleaner", tree{"": {"cleaner-offset-checkpoint"}}, layout.Kafka},
		{"kafka: clean shutdown", tree{"": {".kafka_cleanshutdown"}}, layout.Kafka},
		{"kafka: partition alone", tree{"": {"t-0"}, "t-0": {aLog, "partition.metadata"}}, layout.Kafka},
		{"kafka: leader epochs alone", tree{"": {"t-0"}, "t-0": {aLog, "leader-epoch-checkpoint"}}, layout.Kafka},
		{"iggy: first start", tree{"": {"streams", "state"}, "streams": {}}, layout.Iggy},
		{"iggy: metadata", tree{"": {"metadata", "streams"}, "streams": {}}, layout.Iggy},
		{"iggy: runtime", tree{"": {"runtime", "streams"}, "streams": {}}, layout.Iggy},
		{"iggy: streams made", tree{"": {"streams"}, "streams": {"0", "1"}}, layout.Iggy},
		{"iggy: the streams directory", tree{"": {"0"}, "0": {"topics"}}, layout.Iggy},
		{"generic: in the root", tree{"": {aLog}}, layout.Generic},
		{"generic: one level below", tree{"": {"shard"}, "shard": {aLog}}, layout.Generic},
		{"generic: hidden names do not matter", tree{"": {".tierfs", "shard"}, "shard": {aLog}}, layout.Generic},

		{"empty", tree{"": {}}, ""},
		{"unreadable", tree{}, ""},
		{"only our own state", tree{"": {".tierfs"}, ".tierfs": {aLog}}, ""},
		{"only a lock", tree{"": {".lock"}}, ""},
		{"files of other names", tree{"": {"a.log", "notes"}, "notes": {"b.log"}}, ""},
		{"a stem without .log", tree{"": {"00000000000000000042.index"}}, ""},
		{"topic-N without Kafka's files", tree{"": {"t-0"}, "t-0": {aLog}}, ""},
		{"topic-N beside others", tree{"": {"shard", "t-0"}, "shard": {aLog}, "t-0": {aLog}}, ""},
		{"streams alone", tree{"": {"streams"}, "streams": {}}, ""},
		{"streams of something else", tree{"": {"state", "streams"}, "streams": {"0", "video"}}, ""},
		{"a number without topics", tree{"": {"0"}, "0": {"data"}}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			if got, ok := layout.Detect(c.tree.names); got != c.want || ok != (c.want != "") {
				t.Fatalf("%q, %v", got, ok)
			}
		})
	}
}

func TestDetectIsBounded(t *testing.T) {
	wide := tree{"": nil}
	for i := range 20_000 {
		name := fmt.Sprintf("d%d", i)
		wide[""] = append(wide[""], name)
		wide[name] = []string{"x"}
	}
	looked := 0
	_, ok := layout.Detect(func(dir string) ([]string, error) {
		looked++
		return wide.names(dir)
	})
	if ok || looked > 1001 {
		t.Fatalf("%v after %d", ok, looked)
	}
}

func TestNew(t *testing.T) {
	for _, kind := range []layout.Kind{"", "auto", "Kafka", "redpanda"} {
		if _, err := layout.New(kind, 0); !errors.Is(err, layout.ErrKind) {
			t.Errorf("%q: %v", kind, err)
		}
	}
	if _, err := layout.New(layout.Generic, -1); err == nil {
		t.Error("a negative quiet time is accepted")
	}
}

func TestGenericClassify(t *testing.T) {
	none := layout.Partition{}
	classify(t, layout.Generic, []classified{
		{"", part(".", ""), ""},
		{".", part(".", ""), ""},
		{"shard", part("shard", ""), ""},
		{"a/b/c", part("a/b/c", ""), ""},
		{"orders-0", part("orders-0", ""), ""},
		{"/a", none, layout.NotPartition},
		{"a/", none, layout.NotPartition},
		{"a//b", none, layout.NotPartition},
	})
}

func TestGenericConstants(t *testing.T) {
	r := rules(t, layout.Generic)
	if r.Kind() != layout.Generic || r.Format() != segment.Generic || r.IndexSuffix() != "" || r.AnchorSuffix() != "" {
		t.Error("names")
	}
	if len(r.SideSuffixes()) != 0 || r.Disqualifies("00000000000000000042.log.swap") != "" {
		t.Error("side files")
	}
	if r.FetchTimeout() != 30*time.Second || r.MaxBlocked(1) != 64 || r.FirstFetch() != 64<<10 || r.QuietTime() != time.Minute {
		t.Error("limits")
	}
	if r.Follows(9, 100, false) != "" || r.Follows(9, 9, false) != layout.Overlap {
		t.Error("sealing")
	}
	if ranges, err := r.BootRanges(nil, nil, 1); ranges != nil || err != nil {
		t.Error("boot ranges")
	}
	b, err := r.Bounds(files{}.read)
	if err != nil || b.Evictable(layout.Partition{}, 1<<60) != "" {
		t.Error("bounds")
	}
}

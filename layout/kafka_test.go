package layout_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
)

func rules(t testing.TB, kind layout.Kind) layout.Rules {
	t.Helper()
	r, err := layout.New(kind, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// classified is one row for Classify.
type classified struct {
	path   string
	want   layout.Partition
	reason layout.Reason
}

func classify(t *testing.T, kind layout.Kind, rows []classified) {
	t.Helper()
	r := rules(t, kind)
	for _, c := range rows {
		t.Run(c.path, func(t *testing.T) {
			if p, reason := r.Classify(c.path); p != c.want || reason != c.reason {
				t.Fatalf("%+v, %q", p, reason)
			}
		})
	}
}

func part(topic, number string) layout.Partition {
	return layout.Partition{Topic: topic, Number: number}
}

func TestKafkaClassify(t *testing.T) {
	long := strings.Repeat("x", 249)
	none := layout.Partition{}
	classify(t, layout.Kafka, []classified{
		{"orders-0", part("orders", "0"), ""},
		{"orders-12", part("orders", "12"), ""},
		{"orders.eu_west-v2-3", part("orders.eu_west-v2", "3"), ""},
		{"orders--1", part("orders-", "1"), ""},
		{"_-0", part("_", "0"), ""},
		{"1-2", part("1", "2"), ""},
		{"audit-delete-0", part("audit-delete", "0"), ""},
		{"orders-2147483647", part("orders", "2147483647"), ""},
		{long + "-0", part(long, "0"), ""},
		{"__mine-0", part("__mine", "0"), ""},

		{"__cluster_metadata-0", part("__cluster_metadata", "0"), layout.InternalTopic},
		{"__consumer_offsets-49", part("__consumer_offsets", "49"), layout.InternalTopic},
		{"__transaction_state-7", part("__transaction_state", "7"), layout.InternalTopic},
		{"__share_group_state-7", part("__share_group_state", "7"), layout.InternalTopic},

		{"orders-0.1d3f9f4d9d6d4d0f9d6f4d0f9d6f4d0f-delete", part("orders", "0"), layout.Deleted},
		{"a.b-c-0.1d3f9f4d9d6d4d0f9d6f4d0f9d6f4d0f-delete", part("a.b-c", "0"), layout.Deleted},
		{"xxxx.1d3f9f4d9d6d4d0f9d6f4d0f9d6f4d0f-delete", none, layout.Deleted},
		{"orders-0.1d3f9f4d9d6d4d0f9d6f4d0f9d6f4d0f-future", part("orders", "0"), layout.Future},
		{"orders-0.1d3f9f4d9d6d4d0f9d6f4d0f9d6f4d0f-stray", part("orders", "0"), layout.Stray},
		{"-delete", none, layout.Deleted},

		{"", none, layout.NotPartition},
		{".", none, layout.NotPartition},
		{"orders", none, layout.NotPartition},
		{"orders-", none, layout.NotPartition},
		{"-0", none, layout.NotPartition},
		{"..-0", none, layout.NotPartition},
		{"orders-x", none, layout.NotPartition},
		{"orders-1x", none, layout.NotPartition},
		{"orders-01", none, layout.NotPartition},
		{"orders-2147483648", none, layout.NotPartition},
		{"or ders-0", none, layout.NotPartition},
		{"ord\u00e9rs-0", none, layout.NotPartition},
		{"x" + long + "-0", none, layout.NotPartition},
		{"orders-0/below", none, layout.NotPartition},
		{"below/orders-0", none, layout.NotPartition},
		{"/orders-0", none, layout.NotPartition},
		{"lost+found", none, layout.NotPartition},
	})
}

func TestKafkaDisqualifies(t *testing.T) {
	r := rules(t, layout.Kafka)
	for name, want := range map[string]layout.Reason{
		"00000000000000000042.log.cleaned":       layout.Compaction,
		"00000000000000000042.index.cleaned":     layout.Compaction,
		"00000000000000000042.timeindex.swap":    layout.Compaction,
		"00000000000000000042.log.swap":          layout.Compaction,
		"00000000000000000042.log":               "",
		"00000000000000000042.log.deleted":       "",
		"00000000000000000042.snapshot":          "",
		"leader-epoch-checkpoint":                "",
		"partition.metadata.swap":                "",
		"cleaner-offset-checkpoint.cleaned":      "",
		"00000000000000000042.log.cleaned.other": "",
	} {
		t.Run(name, func(t *testing.T) {
			if got := r.Disqualifies(name); got != want {
				t.Fatalf("%q", got)
			}
		})
	}
}

// files is a volume root for Bounds.
type files map[string]string

func (f files) read(name string) ([]byte, error) {
	if s, ok := f[name]; ok {
		return []byte(s), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func TestKafkaBounds(t *testing.T) {
	const recovery, watermark = "recovery-point-offset-checkpoint", "replication-offset-checkpoint"
	both := files{recovery: "0\n2\na.b-c 0 100\nd 1 100\n", watermark: "0\n2\na.b-c 0 90\nd 1 200\n"}
	for _, c := range []struct {
		what  string
		files files
		p     layout.Partition
		next  uint64
		want  layout.Reason
	}{
		{"below both", both, part("a.b-c", "0"), 89, ""},
		{"at the high watermark", both, part("a.b-c", "0"), 90, ""},
		{"above the high watermark", both, part("a.b-c", "0"), 91, layout.HighWatermark},
		{"above both", both, part("a.b-c", "0"), 101, layout.RecoveryPoint},
		{"at the recovery point", both, part("d", "1"), 100, ""},
		{"above the recovery point", both, part("d", "1"), 101, layout.RecoveryPoint},
		{"another number", both, part("d", "2"), 1, layout.RecoveryPoint},
		{"another topic", both, part("e", "1"), 1, layout.RecoveryPoint},
		{"highest", both, part("d", "1"), math.MaxUint64, layout.RecoveryPoint},
		{"no recovery points", files{watermark: both[watermark]}, part("d", "1"), 1, layout.RecoveryPoint},
		{"no high watermarks", files{recovery: both[recovery]}, part("d", "1"), 1, layout.HighWatermark},
		{"no file", files{}, part("d", "1"), 1, layout.RecoveryPoint},
		{"partition without high watermark", files{recovery: both[recovery], watermark: "0\n0\n"}, part("d", "1"), 1, layout.HighWatermark},
	} {
		t.Run(c.what, func(t *testing.T) {
			b, err := rules(t, layout.Kafka).Bounds(c.files.read)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.Evictable(c.p, c.next); got != c.want {
				t.Fatalf("%q", got)
			}
		})
	}
	for _, name := range []string{recovery, watermark} {
		t.Run("damaged "+name, func(t *testing.T) {
			_, err := rules(t, layout.Kafka).Bounds(files{name: "0\n1\n"}.read)
			if !errors.Is(err, layout.ErrCheckpoint) || !strings.Contains(err.Error(), name) {
				t.Fatal(err)
			}
		})
	}
	t.Run("unreadable", func(t *testing.T) {
		_, err := rules(t, layout.Kafka).Bounds(func(string) ([]byte, error) { return nil, fs.ErrPermission })
		if !errors.Is(err, fs.ErrPermission) {
			t.Fatal(err)
		}
	})
}

// TestKafkaRealBounds reads what a broker wrote while it ran.
func TestKafkaRealBounds(t *testing.T) {
	b, err := rules(t, layout.Kafka).Bounds(func(name string) ([]byte, error) {
		return os.ReadFile(filepath.Join("testdata", name))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p    layout.Partition
		next uint64
		want layout.Reason
	}{
		{part("compacted", "0"), 120, ""},
		{part("compacted", "0"), 121, layout.RecoveryPoint},
		{part("tx-1", "0"), 20, ""},
		{part("tx-1", "0"), 252, layout.RecoveryPoint},
		{part("plain.topic", "0"), 200, layout.RecoveryPoint},
	} {
		if got := b.Evictable(c.p, c.next); got != c.want {
			t.Errorf("%v before %d: %q", c.p, c.next, got)
		}
	}
}

func TestKafkaConstants(t *testing.T) {
	r := rules(t, layout.Kafka)
	if r.Kind() != layout.Kafka || r.Format() != segment.Kafka || r.IndexSuffix() != ".index" || r.AnchorSuffix() != "" {
		t.Error("names")
	}
	if !slices.Equal(r.SideSuffixes(), []string{".index", ".timeindex", ".txnindex", ".snapshot"}) {
		t.Error("side files")
	}
	if r.FetchTimeout() != 20*time.Second || r.MaxBlocked(1) != 4 || r.MaxBlocked(64) != 4 || r.FirstFetch() != 1<<20 || r.QuietTime() != 0 {
		t.Error("limits")
	}
	if ranges, err := r.BootRanges(nil, nil, 1<<20); ranges != nil || err != nil {
		t.Error("boot ranges")
	}
	if r.Follows(9, 10, false) != "" || r.Follows(9, 20, false) != "" || r.Follows(9, 9, false) != layout.Overlap || r.Follows(9, 3, true) != layout.Overlap {
		t.Error("sealing")
	}
}

func TestClassifyIsCheap(t *testing.T) {
	for path, kind := range map[string]layout.Kind{
		"orders.eu-west-12":                 layout.Kafka,
		"streams/1/topics/2/partitions/3":   layout.Iggy,
		"any/directory":                     layout.Generic,
		"orders-0.1d3f9f4d9d6d4d0f9-delete": layout.Kafka,
	} {
		r := rules(t, kind)
		if n := testing.AllocsPerRun(100, func() { r.Classify(path) }); n > 1 {
			t.Errorf("%s: %v allocations", path, n)
		}
	}
}

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// contract is what scripts rely on: names and their labels.
var contract = map[string]string{
	"tierfs_segments":                      "state",
	"tierfs_bytes":                         "where",
	"tierfs_upload_stalled":                "",
	"tierfs_upload_lag_bytes":              "",
	"tierfs_upload_oldest_seconds":         "",
	"tierfs_not_evictable_bytes":           "reason",
	"tierfs_fetched_bytes_total":           "topic",
	"tierfs_takeovers_total":               "",
	"tierfs_uploads_total":                 "result",
	"tierfs_evictions_total":               "",
	"tierfs_store_requests_total":          "op,result",
	"tierfs_store_request_seconds":         "op",
	"tierfs_store_bytes_total":             "op",
	"tierfs_cache_hits_total":              "",
	"tierfs_cache_misses_total":            "",
	"tierfs_cold_reads_waiting":            "",
	"tierfs_cold_read_seconds":             "",
	"tierfs_fuse_requests_total":           "op",
	"tierfs_fuse_request_seconds":          "op",
	"tierfs_batch_checksum_failures_total": "",
}

// own are the names beyond the contract.
var own = map[string]string{
	"tierfs_store_retries_total":            "op",
	"tierfs_cache_trimmed_chunks_total":     "",
	"tierfs_cache_bad_chunks_total":         "",
	"tierfs_cache_bypassed_reads_total":     "",
	"tierfs_upload_seconds":                 "",
	"tierfs_upload_bytes_total":             "",
	"tierfs_upload_running":                 "",
	"tierfs_upload_queued_segments":         "",
	"tierfs_upload_rejected_segments_total": "reason",
	"tierfs_evicted_bytes_total":            "",
	"tierfs_retired_total":                  "",
	"tierfs_rehydrations_total":             "",
	"tierfs_retire_refused_total":           "",
	"tierfs_tombstones":                     "",
	"tierfs_quarantined_segments":           "",
	"tierfs_owner":                          "",
}

// useAll calls every method once.
func useAll(m *Metrics) {
	m.Store.Request("put", "ok", 1.5, 100)
	m.Store.Request("get", "not_found", 0.5, 0)
	m.Store.Retry("get")
	m.Cache.Hit()
	m.Cache.Miss()
	m.Cache.Trimmed(2)
	m.Cache.BadChunk()
	m.Cache.Bypass()
	m.Cache.Waiting(+1)
	m.Cache.ColdRead(0.25)
	m.Cache.Fetched("orders", 10)
	m.Cache.BadBatch()
	m.Upload.Uploaded(2, 1000)
	m.Upload.Failed("auth")
	m.Upload.Running(+1)
	m.Upload.Queue(3)
	m.Upload.Rejected("torn")
	m.Upload.Evicted(1000)
	m.Upload.Retired(4)
	m.Tier.Rehydrated()
	m.Tier.RetireRefused()
	m.Tier.Collect(func() Snapshot {
		return Snapshot{
			Segments:     map[string]int64{"remote": 7},
			Bytes:        map[string]int64{"cache": 99},
			NotEvictable: map[string]int64{"high watermark": 12},
			LagBytes:     5,
			Oldest:       90 * time.Second,
			Stalled:      true,
			Tombstones:   2,
			Quarantined:  1,
			Owner:        true,
		}
	})
	m.Fuse.Request(OpRead, time.Millisecond)
	m.Fuse.Takeover()
}

func TestNames(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	useAll(New(reg))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]bool)
	for _, family := range families {
		name := family.GetName()
		got[name] = true
		want, ok := contract[name]
		if !ok {
			want, ok = own[name]
		}
		if !ok {
			t.Errorf("%s is on no list", name)
			continue
		}
		var labels []string
		for _, l := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		if s := strings.Join(labels, ","); s != want {
			t.Errorf("%s has labels %q, want %q", name, s, want)
		}
	}
	for _, list := range []map[string]string{contract, own} {
		for name := range list {
			if !got[name] {
				t.Errorf("%s is missing", name)
			}
		}
	}
}

func TestLint(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	useAll(New(reg))
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestValues(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	useAll(New(reg))
	want := `
# HELP tierfs_bytes Bytes by where they are: allocated bytes of local logs, bytes of remote segments, bytes in the chunk cache.
# TYPE tierfs_bytes gauge
tierfs_bytes{where="cache"} 99
tierfs_bytes{where="local"} 0
tierfs_bytes{where="remote"} 0
# HELP tierfs_not_evictable_bytes Local bytes that may not be evicted, by reason.
# TYPE tierfs_not_evictable_bytes gauge
tierfs_not_evictable_bytes{reason="high watermark"} 12
# HELP tierfs_owner 1 while the mount is known to own its volume; any other uploads, evicts and deletes nothing.
# TYPE tierfs_owner gauge
tierfs_owner 1
# HELP tierfs_segments Segments by state.
# TYPE tierfs_segments gauge
tierfs_segments{state="active"} 0
tierfs_segments{state="remote"} 7
tierfs_segments{state="sealed"} 0
tierfs_segments{state="uploaded"} 0
# HELP tierfs_upload_oldest_seconds Age of the oldest sealed segment that is not uploaded.
# TYPE tierfs_upload_oldest_seconds gauge
tierfs_upload_oldest_seconds 90
# HELP tierfs_upload_stalled 1 while uploads fail: for 60 seconds or more, or the store's breaker is open.
# TYPE tierfs_upload_stalled gauge
tierfs_upload_stalled 1
# HELP tierfs_uploads_total Segment uploads by result.
# TYPE tierfs_uploads_total counter
tierfs_uploads_total{result="auth"} 1
tierfs_uploads_total{result="ok"} 1
# HELP tierfs_store_bytes_total Bytes of bodies sent to and read from the object store.
# TYPE tierfs_store_bytes_total counter
tierfs_store_bytes_total{op="get"} 0
tierfs_store_bytes_total{op="put"} 100
# HELP tierfs_evicted_bytes_total Bytes of local copies that were dropped.
# TYPE tierfs_evicted_bytes_total counter
tierfs_evicted_bytes_total 1000
`
	err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"tierfs_bytes", "tierfs_not_evictable_bytes", "tierfs_owner", "tierfs_segments", "tierfs_upload_oldest_seconds",
		"tierfs_upload_stalled", "tierfs_uploads_total", "tierfs_store_bytes_total", "tierfs_evicted_bytes_total")
	if err != nil {
		t.Error(err)
	}
}

func TestNilCountsNothing(t *testing.T) { useAll(&Metrics{}) }

func TestUnregistered(t *testing.T) { useAll(New(nil)) }

func TestTopicsAreBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg)
	for i := range MaxTopics + 50 {
		m.Cache.Fetched(fmt.Sprintf("topic-%d", i), 1)
	}
	m.Cache.Fetched("topic-3", 1)
	if n := testutil.CollectAndCount(m.Cache.fetched); n != MaxTopics+1 {
		t.Fatalf("%d series, want %d", n, MaxTopics+1)
	}
	if n := testutil.ToFloat64(m.Cache.fetched.WithLabelValues(OtherTopics)); n != 50 {
		t.Errorf("the others count %v, want 50", n)
	}
	if n := testutil.ToFloat64(m.Cache.fetched.WithLabelValues("topic-3")); n != 2 {
		t.Errorf("a topic of the first counts %v, want 2", n)
	}
}

func TestFuseOps(t *testing.T) {
	seen := make(map[string]bool)
	for op := range numFuseOps {
		if op.String() == "" || seen[op.String()] {
			t.Errorf("operation %d has the name %q", op, op)
		}
		seen[op.String()] = true
	}
	if s := FuseOp(255).String(); s != "other" {
		t.Errorf("an unknown operation is called %q", s)
	}
}

func TestFuseRequestAllocatesNothing(t *testing.T) {
	f := New(prometheus.NewPedanticRegistry()).Fuse
	if n := testing.AllocsPerRun(1000, func() { f.Request(OpWrite, 30*time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func BenchmarkFuseRequest(b *testing.B) {
	f := New(prometheus.NewPedanticRegistry()).Fuse
	for b.Loop() {
		f.Request(OpWrite, 30*time.Microsecond)
	}
}

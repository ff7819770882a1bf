package daemon

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSum(t *testing.T) {
	const page = `# TYPE tierfs_store_requests_total counter
tierfs_store_requests_total{op="get",result="ok"} 3
tierfs_store_requests_total{op="get",result="retry"} 1
tierfs_store_requests_total{op="put",result="ok"} 5
tierfs_not_evictable_bytes{reason="internal topic"} 1.5e+06
tierfs_upload_stalled 1
`
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"tierfs_store_requests_total", nil, 9},
		{"tierfs_store_requests_total", []string{"op", "get"}, 4},
		{"tierfs_store_requests_total", []string{"op", "get", "result", "ok"}, 3},
		{"tierfs_store_requests_total", []string{"op", "list"}, 0},
		{"tierfs_not_evictable_bytes", []string{"reason", "internal topic"}, 1.5e6},
		{"tierfs_upload_stalled", nil, 1},
		{"tierfs_upload", nil, 0},
	} {
		if got, err := sum(page, c.name, c.labels); err != nil || got != c.want {
			t.Errorf("%s %v: %v, %v; want %v", c.name, c.labels, got, err, c.want)
		}
	}
}

func TestDiskUsage(t *testing.T) {
	dir := t.TempDir()
	full, sparse := filepath.Join(dir, "full"), filepath.Join(dir, "sparse")
	if err := os.WriteFile(full, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sparse, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(sparse, 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(full, filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(full, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil { // delayed allocation
		t.Fatal(err)
	}
	f.Close()
	if used, err := DiskUsage(dir); err != nil || used < 1<<20 || used > 1<<20+1<<16 {
		t.Errorf("used: %d, %v", used, err)
	}
}

func TestMounted(t *testing.T) {
	for path, want := range map[string]bool{"/": true, "/proc": true, t.TempDir(): false} {
		if got, err := Mounted(path); err != nil || got != want {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/config"
)

// runHere runs a command in this process.
func runHere(t *testing.T, env []string, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	p := program{stdout: &out, stderr: &errs, environ: env, runDir: filepath.Join(t.TempDir(), "run")}
	err = p.run(t.Context(), args)
	return out.String(), err
}

func TestExitStatus(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		word string
	}{
		{"", 2, "no command"},
		{"frobnicate", 2, "unknown command"},
		{"status", 2, "usage: tierfs status"},
		{"status a b", 2, "usage: tierfs status"},
		{"status --frobnicate /x", 2, "unknown flag"},
		{"status /", 1, "no tierfs is mounted"},
		{"ls /nowhere/orders-0", 1, "no tierfs is mounted"},
		{"evict --topic", 2, "--topic"},
		{"mount --cache-size 4 /x", 2, "cache.size"},
		{"mount --store-s3-secret-key x /x", 2, "unknown flag"},
		{"mount a b c", 2, "usage: tierfs mount"},
		{"probe", 2, "store.backend is missing"},
		{"probe nothing", 2, "STORE"},
		{"probe fs:/no/such/dir", 1, "make it"},
		{"probe gs://bucket", 2, "gcs"},
		{"check /no/such/dir --store sim:", 1, "no such directory"},
		{"config --config /no/such/file", 2, "/no/such/file"},
		{"config --mount-writes direct", 2, "mount.writes"},
		{"version", 0, ""},
		{"config", 0, ""},
		{"help mount", 0, ""},
	} {
		t.Run(tc.args, func(t *testing.T) {
			_, err := runHere(t, nil, strings.Fields(tc.args)...)
			if code := exitStatus(err); code != tc.code {
				t.Errorf("exit status %d, want %d: %v", code, tc.code, err)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.word) || strings.Contains(oneLine(err), "\n")) {
				t.Errorf("%q is not in %q, or that is not one line", tc.word, err)
			}
		})
	}
	if exitStatus(errFound) != 1 || exitStatus(fmt.Errorf("x: %w", &config.Error{})) != 2 {
		t.Error("wrong exit status")
	}
	if s := oneLine(errors.Join(errors.New("a"), errors.New("b"))); s != "a; b" {
		t.Errorf("got %q", s)
	}
}

func TestConfigCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.toml")
	if err := os.WriteFile(file, []byte("[upload]\nconcurrency = 7\n[housekeeping]\ninterval = \"9 m\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"TIERFS_CONFIG=" + file, "TIERFS_STORE_S3_ACCESS_KEY=me", "TIERFS_STORE_S3_SECRET_KEY=hush", "TIERFS_CACHE_SIZE=1 GiB"}
	out, err := runHere(t, env, "config", "--store", "s3://logs/kafka-1", "--cache-size", "2 GiB", "--take-ownership")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"upload.concurrency = 7 # file " + file + ":2",
		`cache.size = "2 GiB" # flag --cache-size`,
		"store.take_ownership = true # flag --take-ownership",
		`store.s3.bucket = "logs" # flag --store`,
		`store.prefix = "kafka-1" # flag --store`,
		"store.s3.secret_key = *** # environment TIERFS_STORE_S3_SECRET_KEY",
		`fetch.timeout = "auto" # default`,
		`housekeeping.interval = "9 m" # file ` + file + ":4, no effect in this version",
	} {
		found := false
		for line := range strings.Lines(out) {
			found = found || strings.Join(strings.Fields(line), " ") == want
		}
		if !found {
			t.Errorf("%s is missing in\n%s", want, out)
		}
	}
	if strings.Contains(out, "hush") {
		t.Error("a secret is shown")
	}
}

func TestVersionCommand(t *testing.T) {
	out, err := runHere(t, nil, "version")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"tierfs ", "commit ", "go1.", "kernel ", "fuse ", "7."} {
		if !strings.Contains(out, word) {
			t.Errorf("%q is missing in\n%s", word, out)
		}
	}
}

func TestProbeCommand(t *testing.T) {
	out, err := runHere(t, nil, "probe", "fs:"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"put ", "head ", "get ", "list ", "delete ", "enforces checksums   yes"} {
		if !strings.Contains(out, word) {
			t.Errorf("%q is missing in\n%s", word, out)
		}
	}
}

func TestPrintStatus(t *testing.T) {
	s := admin.Status{
		PID: 7, Mountpoint: "/m", Source: "/s", Writes: "through", Volume: "id", VolumeName: "kafka-1", OwnerWhy: "it is a copy",
		Store:    admin.Store{Backend: "fs", Location: "fs:/d", Error: "away"},
		Segments: map[string]int64{"remote": 12345}, Bytes: map[string]int64{"local": 3 << 30, "remote": 5 << 40},
		NotEvictableBytes: map[string]int64{"high watermark": 1 << 20}, UploadStalled: true, UploadStalledWhy: "no answer",
		UploadLagBytes: 7 << 20, UploadOldestSeconds: 90, Quarantined: 2, Paused: true,
		Topics: []admin.Topic{{Name: "orders", Partitions: 3, Segments: map[string]int64{"active": 3, "remote": 4}, RemoteBytes: 1 << 30, Why: "compaction"}},
	}
	var out bytes.Buffer
	if err := printStatus(&out, &s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"id (kafka-1)", "no: it is a copy", "fs:/d, not reachable: away", "not known yet", "12,345 remote", "3.0 GiB local", "5.0 TiB remote",
		"stalled: no answer", "7.0 MiB behind, oldest 1m30s", "1.0 MiB: high watermark", "2 segments whose bytes cannot be found", "compaction",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestEncode: what is encoded is read back as it was, whatever is in it.
func TestEncode(t *testing.T) {
	c, err := Load(Input{Env: []string{
		"TIERFS_STORE_S3_SECRET_KEY=quo\"te\\ \n=#é", "TIERFS_CACHE_SIZE=1.5 GiB", "TIERFS_FETCH_TIMEOUT=block", "TIERFS_FETCH_MAX_BLOCKED=7",
		"TIERFS_FETCH_DENY=updatedb, locate", "TIERFS_UPLOAD_BANDWIDTH=100 MiB/s", "TIERFS_RETENTION_DEFAULT_LOCAL_RETENTION_SIZE=0",
		`TIERFS_RETENTION_TOPIC=[{name = "a-*", local_retention_age = "6 h"}, {name = "b", tiered_storage = false, local_retention_size = "3 KiB"}]`,
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Config{c, Default()} {
		file := filepath.Join(t.TempDir(), "encoded")
		if err := os.WriteFile(file, c.Encode(), 0o600); err != nil {
			t.Fatal(err)
		}
		back, err := Load(Input{File: file})
		if err != nil {
			t.Fatalf("%v\n%s", err, c.Encode())
		}
		if diff := cmp.Diff(c, back, cmpopts.IgnoreUnexported(Config{})); diff != "" {
			t.Errorf("%s\n%s", diff, c.Encode())
		}
	}
}

package backend_test

import (
	"path"
	"testing"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/backend"
)

// FuzzParseURL: what is accepted names a store and a prefix that keys can have.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"fs:/dir", "s3://bucket/prefix", "gs://b/p", "az://a/c/p", "sim:", "s3://k:s@b/p"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := backend.ParseURL(raw)
		if err != nil {
			return
		}
		if c.Backend == "s3" && c.S3.Bucket == "" || c.Backend == "fs" && !path.IsAbs(c.FS.Path) || c.Backend == "" {
			t.Errorf("%q: %+v", raw, c)
		}
		if c.Prefix != "" && objstore.CheckKey(c.Prefix+"/k") != nil && objstore.CheckKey(c.Prefix) != nil {
			t.Errorf("%q: prefix %q", raw, c.Prefix)
		}
	})
}

package backend_test

import (
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/backend"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, s3test.Leftovers()...) }

func TestParseURL(t *testing.T) {
	s3 := func(bucket, prefix string) backend.Config {
		return backend.Config{Backend: "s3", Prefix: prefix, S3: backend.S3{Bucket: bucket}}
	}
	for url, want := range map[string]backend.Config{
		"fs:/var/store":         {Backend: "fs", FS: backend.FS{Path: "/var/store"}},
		"fs:///var/store/":      {Backend: "fs", FS: backend.FS{Path: "/var/store"}},
		"sim:":                  {Backend: "sim"},
		"s3://bucket":           s3("bucket", ""),
		"s3://bucket/":          s3("bucket", ""),
		"s3://bucket/kafka-1":   s3("bucket", "kafka-1"),
		"s3://bucket/a/b/":      s3("bucket", "a/b"),
		"gs://bucket/p":         {Backend: "gcs", Prefix: "p"},
		"az://account/cont/pre": {Backend: "azure", Prefix: "cont/pre"},
	} {
		if got, err := backend.ParseURL(url); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", url, got, err, want)
		}
	}
	for _, url := range []string{"", "/dir", "fs:", "fs:dir", "fs:./dir", "s3:bucket", "s3://", "s3:///prefix", "ftp://x/y",
		"s3://key:secret@bucket/p", "S3://key:secret@bucket", "s3//key:secret@bucket", "key:secret@s3://bucket", "fs:key:secret@dir",
		"s3://bucket/p?x=1", "s3://bucket:9000/p", "s3://bucket/../p", "s3://bucket/a//b", "s3://b#f"} {
		got, err := backend.ParseURL(url)
		if err == nil {
			t.Errorf("%q: %+v", url, got)
			continue
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: a secret or two lines: %v", url, err)
		}
	}
}

func TestOpen(t *testing.T) {
	srv := s3test.Start(t)
	for _, c := range []struct {
		name, says string
		cfg        backend.Config
	}{
		{"fs", "fs:/", backend.Config{Backend: "fs", FS: backend.FS{Path: t.TempDir()}}},
		{"sim", "in memory", backend.Config{Backend: "sim"}},
		{"s3", "bucket-", backend.Config{Backend: "s3", S3: backend.S3{
			Bucket: srv.Bucket(t), Endpoint: srv.Endpoint, AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
		}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, what, err := backend.Open(t.Context(), c.cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			if closer, ok := s.(io.Closer); ok {
				defer closer.Close()
			}
			if !strings.Contains(what, c.says) || strings.Contains(what, s3test.SecretKey) {
				t.Errorf("description %q", what)
			}
			if _, err := objstore.Probe(t.Context(), s, "tierfs"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenFails(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  backend.Config
		want string
	}{
		{"none", backend.Config{}, "store.backend"},
		{"unknown", backend.Config{Backend: "tape"}, "store.backend"},
		{"gcs", backend.Config{Backend: "gcs"}, `store.backend: "gcs" is not supported by this build`},
		{"azure", backend.Config{Backend: "azure"}, `store.backend: "azure" is not supported by this build`},
		{"fs_no_path", backend.Config{Backend: "fs"}, "store.fs.path"},
		{"fs_missing", backend.Config{Backend: "fs", FS: backend.FS{Path: "/none/such"}}, "store.fs.path: directory /none/such"},
		{"s3_no_bucket", backend.Config{Backend: "s3"}, "store.s3.bucket"},
		{"s3_half_a_key", backend.Config{Backend: "s3", S3: backend.S3{Bucket: "b", AccessKey: "a"}}, "store.s3.secret_key"},
		{"s3_proxy", backend.Config{Backend: "s3", Proxy: "::", S3: backend.S3{Bucket: "b", AccessKey: "a", SecretKey: "s", Region: "r"}}, "store.proxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := backend.Open(t.Context(), c.cfg, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; want one line with %q", err, c.want)
			}
		})
	}
}

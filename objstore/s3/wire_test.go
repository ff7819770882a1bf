package s3_test

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/s3"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// TestWire: what a PUT looks like.
func TestWire(t *testing.T) {
	type seen struct {
		http.Header
		length int64
		body   int64
		te     []string
	}
	got := make(chan seen, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got <- seen{r.Header.Clone(), r.ContentLength, n, r.TransferEncoding}
	}))
	defer srv.Close()
	cfg := s3.Config{Bucket: "b", Endpoint: srv.URL, AccessKey: "a", SecretKey: "s", SSE: "aws:kms", SSEKMSKey: "key-id"}
	s := open(t, cfg)
	for _, size := range []int{0, 1, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := body(7, size)
			opts := objstore.PutOptions{IfAbsent: true, Metadata: map[string]string{"start": "42"}, StorageClass: "GLACIER_IR"}
			if err := s.Put(t.Context(), "d/k.log", b, opts); err != nil {
				t.Fatal(err)
			}
			h := <-got
			if h.length != int64(size) || h.body != int64(size) || len(h.te) > 0 {
				t.Errorf("Content-Length %d, %d bytes, Transfer-Encoding %q", h.length, h.body, h.te)
			}
			want := map[string]string{
				"X-Amz-Checksum-Crc64nvme": base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, b.CRC64NVME)),
				"X-Amz-Content-Sha256":     "UNSIGNED-PAYLOAD", "If-None-Match": "*", "X-Amz-Meta-Start": "42", "Content-Encoding": "",
				"X-Amz-Storage-Class": "GLACIER_IR", "X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "key-id",
				"Accept-Encoding": "",
			}
			for k, v := range want {
				if h.Get(k) != v {
					t.Errorf("%s: %q, want %q", k, h.Get(k), v)
				}
			}
			if strings.Contains(h.Get("Authorization"), "accept-encoding") {
				t.Errorf("accept-encoding is signed: %s", h.Get("Authorization"))
			}
			for k := range h.Header {
				if strings.HasPrefix(k, "X-Amz-Checksum-") && k != "X-Amz-Checksum-Crc64nvme" || k == "X-Amz-Trailer" || k == "X-Amz-Sdk-Checksum-Algorithm" {
					t.Errorf("the SDK added %s", k)
				}
			}
		})
	}
	if err := s.Put(t.Context(), "d/k.index", body(1, 1), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if h := <-got; h.Get("X-Amz-Storage-Class") != "" || h.Get("If-None-Match") != "" {
		t.Errorf("class %q, condition %q", h.Get("X-Amz-Storage-Class"), h.Get("If-None-Match"))
	}
}

// TestMemory: 256 MiB up and down in a few MiB, both ways counted together with
// the garbage.
func TestMemory(t *testing.T) {
	const size = 256 << 20
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 64<<10)
		if r.Method == http.MethodPut {
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, buf)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", size-1, size))
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.WriteHeader(206)
		for range size / len(buf) {
			w.Write(buf)
		}
	}))
	defer srv.Close()
	s := objstore.Decorate(open(t, s3.Config{Bucket: "b", Endpoint: srv.URL, AccessKey: "a", SecretKey: "s"}), objstore.Options{})
	f, err := os.Create(filepath.Join(t.TempDir(), "segment"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b, err := objstore.NewBody(f, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "k", b, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := s.GetRange(t.Context(), "k", 0, size)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if sum, err := objstore.Checksum(r, size); err != nil || sum != b.CRC64NVME {
		t.Fatalf("%x, %v", sum, err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Fatalf("%d bytes allocated for %d", used, size)
	}
}

// TestConnections: uploads and reads have pools of their own, an idle connection
// is used again while it is young, and not later.
func TestConnections(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv, func(c *s3.Config) { c.IdleTimeout = 200 * time.Millisecond })
	for range 3 {
		if err := s.Put(t.Context(), "k", body(1, 10), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := read(t, s, "k", 0, 10); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.connections(); n != 2 {
		t.Fatalf("%d connections for two pools", n)
	}
	for range 2 {
		select {
		case <-p.closed:
		case <-time.After(10 * time.Second):
			t.Fatal("an idle connection stays open")
		}
	}
	if _, err := read(t, s, "k", 0, 10); err != nil {
		t.Fatal(err)
	}
	if n := p.connections(); n != 3 {
		t.Fatalf("%d connections", n)
	}
}

func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// TestSkew: the store's clock is learned from its refusal, at once.
func TestSkew(t *testing.T) {
	var mu sync.Mutex
	var dates []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		dates = append(dates, r.Header.Get("X-Amz-Date"))
		theirs := time.Now().Add(3 * time.Hour).UTC()
		w.Header().Set("Date", theirs.Format(http.TimeFormat))
		sent, err := time.Parse("20060102T150405Z", dates[len(dates)-1])
		if err != nil || theirs.Sub(sent).Abs() > 15*time.Minute {
			says(403, "RequestTimeTooSkewed")(w, r)
		}
	}))
	defer srv.Close()
	s := open(t, s3.Config{Bucket: "b", Endpoint: srv.URL, AccessKey: "a", SecretKey: "s"})
	for range 2 {
		if err := s.Put(t.Context(), "k", body(1, 100), objstore.PutOptions{}); err != nil {
			t.Fatalf("%v (%q)", err, dates)
		}
	}
	if len(dates) != 3 {
		t.Fatalf("requests at %q", dates)
	}
}

// TestCredentials of the SDK's chain: renewed once when refused, and an absence of
// any is said.
func TestCredentials(t *testing.T) {
	for _, k := range []string{"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(k, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	var mu sync.Mutex
	requests, refuse := 0, 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if requests++; requests <= refuse {
			says(400, "ExpiredToken")(w, r)
		}
	}))
	defer srv.Close()
	t.Run("none", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "")
		s := open(t, s3.Config{Bucket: "b", Endpoint: srv.URL})
		_, err := objstore.Probe(t.Context(), s, "")
		checkLine(t, err, []string{"no credentials", "store.s3.access_key"})
		if !errors.Is(err, objstore.ErrAuth) {
			t.Errorf("%v", err)
		}
	})
	t.Run("renewed", func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "a")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
		s := open(t, s3.Config{Bucket: "b", Endpoint: srv.URL})
		requests, refuse = 0, 1
		if err := s.Put(t.Context(), "k", body(1, 1), objstore.PutOptions{}); err != nil || requests != 2 {
			t.Fatalf("%d requests, %v", requests, err)
		}
		requests, refuse = 0, 1
		err := s.Put(t.Context(), "k", body(1, 1), objstore.PutOptions{})
		if !errors.Is(err, objstore.ErrAuth) || requests != 1 {
			t.Fatalf("again within the minute: %d requests, %v", requests, err)
		}
	})
}

// TestConfig: settings that cannot work are refused before anything is sent.
func TestConfig(t *testing.T) {
	good := s3.Config{Bucket: "b", Endpoint: "http://127.0.0.1:1", AccessKey: "a", SecretKey: "very-secret"}
	for name, c := range map[string]struct {
		change func(*s3.Config)
		want   string
	}{
		"no_bucket":        {func(c *s3.Config) { c.Bucket = "" }, "store.s3.bucket"},
		"one_key":          {func(c *s3.Config) { c.AccessKey = "" }, "store.s3.access_key"},
		"static_no_keys":   {func(c *s3.Config) { c.AccessKey, c.SecretKey, c.CredentialsSource = "", "", "static" }, "store.s3.credentials_source"},
		"source":           {func(c *s3.Config) { c.CredentialsSource = "magic" }, "store.s3.credentials_source"},
		"url_style":        {func(c *s3.Config) { c.URLStyle = "vhost" }, "store.s3.url_style"},
		"sse":              {func(c *s3.Config) { c.SSE = "rot13" }, "store.s3.sse"},
		"endpoint":         {func(c *s3.Config) { c.Endpoint = "127.0.0.1:9000" }, "store.s3.endpoint"},
		"endpoint_secrets": {func(c *s3.Config) { c.Endpoint = "http://me:very-secret@127.0.0.1:9000" }, "store.s3.endpoint"},
		"ca_file":          {func(c *s3.Config) { c.CAFile = "/none.pem" }, "store.ca_file"},
		"ca_file_empty":    {func(c *s3.Config) { c.CAFile = "/dev/null" }, "store.ca_file"},
		"proxy":            {func(c *s3.Config) { c.Proxy = "me:very-secret@proxy" }, "store.proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			_, err := s3.New(t.Context(), cfg)
			checkLine(t, err, []string{c.want})
			if strings.Contains(fmt.Sprint(err), "very-secret") {
				t.Errorf("a secret in %q", err)
			}
		})
	}
	if s := open(t, good); strings.Contains(s.String(), "very-secret") || !strings.Contains(s.String(), "b") {
		t.Errorf("%q", s)
	}
}

package s3_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/s3"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// TestProbe: a wrong setting gives one line that says which one, soon.
func TestProbe(t *testing.T) {
	srv := s3test.Start(t)
	good := config(srv, srv.Bucket(t))
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "<html>welcome</html>")
	}))
	defer site.Close()
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	cases := []struct {
		name   string
		change func(*s3.Config)
		want   []string
		kind   error
	}{
		{"bucket", func(c *s3.Config) { c.Bucket = "no-such-bucket" }, []string{"store.s3.bucket", `"no-such-bucket"`}, objstore.ErrConfig},
		{"access_key", func(c *s3.Config) { c.AccessKey = "somebody" }, []string{"store.s3.access_key"}, objstore.ErrAuth},
		{"secret_key", func(c *s3.Config) { c.SecretKey = "wrong-secret" }, []string{"store.s3.secret_key"}, objstore.ErrAuth},
		{"region", func(c *s3.Config) { c.Region = "eu-nowhere-1" }, []string{"store.s3.region"}, objstore.ErrConfig},
		{"endpoint_refused", func(c *s3.Config) { c.Endpoint = "http://" + closedPort(t) }, []string{"store.s3.endpoint", "connection refused"}, objstore.ErrTransient},
		{"endpoint_unknown_host", func(c *s3.Config) { c.Endpoint = "http://nowhere.invalid:9000" }, []string{"store.s3.endpoint"}, objstore.ErrTransient},
		{"endpoint_without_tls", func(c *s3.Config) { c.Endpoint = strings.Replace(c.Endpoint, "http:", "https:", 1) }, []string{"store.s3.endpoint", "TLS"}, objstore.ErrConfig},
		{"endpoint_is_a_web_site", func(c *s3.Config) { c.Endpoint = site.URL }, []string{"endpoint"}, objstore.ErrConfig},
		{"endpoint_knows_nothing", func(c *s3.Config) { c.Endpoint = empty.URL }, []string{"store.s3.endpoint"}, nil},
		{"endpoint_is_silent", func(c *s3.Config) { c.Endpoint = "http://" + silentPort(t) }, []string{strings.TrimPrefix("http://127.0.0.1", "http://")}, objstore.ErrTransient},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			start := time.Now()
			_, err := objstore.Probe(t.Context(), open(t, cfg), "tierfs")
			if d := time.Since(start); d > 8*time.Second {
				t.Errorf("took %v", d)
			}
			checkLine(t, err, c.want)
			t.Log(err)
		})
	}
}

func checkLine(t *testing.T, err error, want []string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	line := err.Error()
	if strings.ContainsAny(line, "\n\r") {
		t.Errorf("more than a line: %q", line)
	}
	for _, w := range want {
		if !strings.Contains(line, w) {
			t.Errorf("%q does not say %q", line, w)
		}
	}
	for _, secret := range []string{s3test.SecretKey, "wrong-secret"} {
		if strings.Contains(line, secret) {
			t.Errorf("a secret in %q", line)
		}
	}
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// silentPort accepts connections and never answers.
func silentPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { c.Close() })
		}
	}()
	t.Cleanup(func() { cancel(); l.Close(); <-done })
	return l.Addr().String()
}

package admin

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tierfs/tierfs/metrics"
)

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + s.Address() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestListener(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics.New(reg).Upload.Evicted(10)
	ready := errors.New("not mounted")
	f := &fake{}
	s, _ := start(t, f, func(o *Options) {
		o.Listen, o.Metrics, o.Ready = "127.0.0.1:0", reg, func() error { return ready }
	})
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/metrics":    {200, "tierfs_evictions_total 1\n"},
		"/healthz":    {200, "ok\n"},
		"/readyz":     {503, "not mounted\n"},
		"/api/status": {200, `"pid":0`},
		"/status":     {404, ""},
		"/evict":      {404, ""},
		"/pause":      {404, ""},
		"/unmount":    {404, ""},
	} {
		t.Run(path, func(t *testing.T) {
			if code, body := get(t, s, path); code != want.code || !strings.Contains(body, want.body) {
				t.Errorf("got %d %s", code, body)
			}
		})
	}
	ready = nil
	if code, body := get(t, s, "/readyz"); code != 200 || body != "ready\n" {
		t.Errorf("got %d %s", code, body)
	}
}

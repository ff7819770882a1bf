package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
)

func TestDeadline(t *testing.T) {
	for _, op := range []string{"put", "get", "read", "head", "list", "delete"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bare := sim.New(sim.Options{})
				put(t, bare, "k", []byte("0123456789"))
				bare.SetHook(func(ctx context.Context, o, _ string) error {
					if o == op {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				})
				s := objstore.WithDeadline(bare, objstore.DeadlineOptions{})
				name := op
				if op == "read" {
					name = "get"
				}
				start := time.Now()
				err := call(t.Context(), s, name)
				if !errors.Is(err, objstore.ErrTransient) || objstore.Class(err) != "retry" {
					t.Fatalf("%v", err)
				}
				if d := time.Since(start); d < 5*time.Second || d > 31*time.Second {
					t.Fatalf("after %v", d)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := call(ctx, s, name); errors.Is(err, objstore.ErrTransient) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("the caller's own deadline: %v", err)
				}
			})
		})
	}
}

// TestDeadlineGrows: a large body has the time that it needs at MinRate.
func TestDeadlineGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		bare.SetHook(func(ctx context.Context, op, _ string) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(60 * time.Second):
				return nil
			}
		})
		s := objstore.WithDeadline(bare, objstore.DeadlineOptions{})
		body := objstore.BytesBody(make([]byte, 32<<20))
		if err := s.Put(t.Context(), "k", body, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), "k", objstore.BytesBody(nil), objstore.PutOptions{}); !errors.Is(err, objstore.ErrTransient) {
			t.Fatal(err)
		}
	})
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	bare := sim.New(sim.Options{})
	s := objstore.Decorate(bare, objstore.Options{Metrics: metrics.New(reg).Store, Retry: objstore.RetryOptions{Base: 1}})
	bare.SetHook(failing("put", 2, objstore.ErrTransient))
	for _, op := range []string{"put", "get", "head", "list", "delete", "head"} {
		if err := call(t.Context(), s, op); err != nil && op != "head" {
			t.Fatal(err)
		}
	}
	got := gather(t, reg)
	for series, want := range map[string]float64{
		"tierfs_store_requests_total put ok": 1, "tierfs_store_requests_total put retry": 2, "tierfs_store_requests_total get ok": 1,
		"tierfs_store_requests_total head ok": 1, "tierfs_store_requests_total head not_found": 1, "tierfs_store_requests_total list ok": 1,
		"tierfs_store_requests_total delete ok": 1, "tierfs_store_bytes_total put": 10, "tierfs_store_bytes_total get": 10,
		"tierfs_store_retries_total put": 2,
	} {
		if got[series] != want {
			t.Errorf("%s = %v, want %v", series, got[series], want)
		}
	}
}

func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			out[strings.Join(name, " ")] = m.GetCounter().GetValue()
		}
	}
	return out
}

func TestMetricsOfABody(t *testing.T) {
	bare := sim.New(sim.Options{})
	put(t, bare, "k", []byte("0123456789"))
	reg := prometheus.NewRegistry()
	s := objstore.WithMetrics(bare, metrics.New(reg).Store)
	bare.SetHook(failing("read", 1, objstore.ErrShort))
	r, err := s.GetRange(t.Context(), "k", 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); !errors.Is(err, objstore.ErrShort) {
		t.Fatal(err)
	}
	r.Close()
	r.Close()
	if got := gather(t, reg); got["tierfs_store_requests_total get retry"] != 1 {
		t.Fatalf("%v", got)
	}
	if err := call(t.Context(), objstore.WithMetrics(bare, nil), "get"); err != nil {
		t.Fatal(err)
	}
}

func TestClass(t *testing.T) {
	for err, want := range map[error]string{
		nil: "ok", objstore.ErrNotFound: "not_found", objstore.ErrExists: "fail", objstore.ErrAuth: "auth", objstore.ErrConfig: "fail",
		objstore.ErrThrottled: "retry", objstore.ErrTransient: "retry", objstore.ErrUnsupported: "unsupported", objstore.ErrShort: "retry",
		objstore.ErrRange: "fail", objstore.ErrInvalid: "fail", objstore.ErrChecksum: "fail", objstore.ErrTooLarge: "fail", context.Canceled: "canceled",
		context.DeadlineExceeded: "retry", errors.New("x"): "fail",
	} {
		t.Run(fmt.Sprint(err), func(t *testing.T) {
			if got := objstore.Class(err); got != want {
				t.Errorf("bare: %q, want %q", got, want)
			}
			if err == nil {
				return
			}
			if got := objstore.Class(fmt.Errorf("put k: %w: %w", err, io.ErrUnexpectedEOF)); got != want {
				t.Errorf("wrapped: %q, want %q", got, want)
			}
		})
	}
}

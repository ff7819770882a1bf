package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
)

func TestObserve(t *testing.T) {
	a := &access{}
	if a.reachable() == nil {
		t.Error("reachable before it was asked")
	}
	for _, step := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{fmt.Errorf("put: %w", objstore.ErrTransient), false},
		{context.Canceled, false}, // says nothing
		{fmt.Errorf("head: %w", objstore.ErrNotFound), true},
		{objstore.ErrAuth, false},
		{objstore.ErrExists, true},
		{objstore.ErrThrottled, false},
		{objstore.ErrRange, true},
		{context.DeadlineExceeded, false},
		{nil, true},
	} {
		a.observe(step.err)
		if got := a.reachable() == nil; got != step.want {
			t.Errorf("after %v: reachable is %v", step.err, got)
		}
	}
}

func fsStore(path string) *config.Config {
	c := config.Default()
	c.Store.Backend, c.Store.FS.Path = "fs", path
	return c
}

func TestOpenAccess(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	t.Run("first mount", func(t *testing.T) {
		a, err := openAccess(t.Context(), fsStore(dir), false, false, metrics.New(nil), log)
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		if !a.known().EnforcesChecksum || a.reachable() != nil || a.location != "fs:"+dir {
			t.Errorf("got %+v", a.known())
		}
	})
	t.Run("first mount, no store", func(t *testing.T) {
		if _, err := openAccess(t.Context(), fsStore(dir+"/none"), false, false, metrics.New(nil), log); err == nil {
			t.Error("opened")
		}
	})
	t.Run("later mount, the store comes later", func(t *testing.T) {
		path := filepath.Join(dir, "late")
		a, err := openAccess(t.Context(), fsStore(path), true, false, metrics.New(nil), log)
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		if err := a.probe(t.Context()); !errors.Is(err, objstore.ErrTransient) || a.reachable() == nil {
			t.Errorf("got %v", err)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		a.probeUntil(t.Context())
		if a.reachable() != nil || !a.known().EnforcesChecksum {
			t.Errorf("got %v, %+v", a.reachable(), a.known())
		}
	})
	t.Run("takeover, a file of the settings is gone", func(t *testing.T) {
		c := fsStore(dir)
		c.Store.Backend, c.Store.S3.Bucket, c.Store.S3.Region = "s3", "bucket", "us-east-1"
		c.Store.CAFile = dir + "/gone.pem"
		if _, err := openAccess(t.Context(), c, true, false, metrics.New(nil), log); err == nil || !strings.Contains(err.Error(), "gone.pem") {
			t.Errorf("a mount: %v", err)
		}
		a, err := openAccess(t.Context(), c, true, true, metrics.New(nil), log)
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		if err := a.probe(t.Context()); err == nil || !strings.Contains(a.reachable().Error(), "gone.pem") {
			t.Errorf("got %v, %v", err, a.reachable())
		}
	})
	t.Run("probing ends with its context", func(t *testing.T) {
		a, err := openAccess(t.Context(), fsStore(dir+"/none"), true, false, metrics.New(nil), log)
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a.probeUntil(ctx)
	})
}

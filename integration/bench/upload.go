package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/backend"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// uploaded is how many sealed segments a round uploads, one after the other: they belong to one partition.
const uploaded = 8

// target is one store: for tierfs, and for PUTs by hand of the same files through the same client code.
type target struct {
	store rig.Store
	raw   objstore.Store
}

// uploadRows compares how fast tierfs brings a backlog of segments into a store, from the mount until all are verified and marked,
// with bare PUTs of the same files.
func uploadRows(ctx context.Context, b bench) (rows []row, err error) {
	source, err := backlog(ctx, b)
	if err != nil {
		return nil, err
	}
	served := filepath.Join(b.root, "served")
	if err := os.Mkdir(served, 0o755); err != nil {
		return nil, err
	}
	server, err := s3test.Run(served, "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, server.Stop()) }()
	for _, kind := range []struct {
		what string
		make func(context.Context) (target, error)
	}{
		{"upload, `fs` store", func(ctx context.Context) (target, error) { return b.fsTarget(ctx) }},
		{"upload, S3 (versitygw)", func(ctx context.Context) (target, error) { return s3Target(ctx, server, served) }},
	} {
		tierfs := side{name: "tierfs", run: func(ctx context.Context) (float64, error) { return uploadOnce(ctx, b, source, kind.make) }}
		raw := side{name: "raw PUT", run: func(ctx context.Context) (float64, error) { return putOnce(ctx, source, kind.make) }}
		r, err := compare(ctx, b.rounds, kind.what, "MiB/s", "0.8", tierfs, raw)
		if err != nil {
			return rows, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// backlog has a broker fill a partition natively and returns its data directory.
func backlog(ctx context.Context, b bench) (string, error) {
	r, err := brokerRig(ctx, b.install, filepath.Join(b.root, "backlog"), "", rig.Store{}, "")
	if err != nil {
		return "", err
	}
	if _, err = r.Do(ctx, "create", "topic=up", "min=8192", "max=8192"); err == nil {
		_, err = r.Do(ctx, "produce", "topic=up", fmt.Sprint("records=", (uploaded*segmentBytes+segmentBytes/2)/8192), "batch=262144")
	}
	return r.Source, joined(err, r.Close())
}

func (b bench) fsTarget(ctx context.Context) (target, error) {
	dir, err := b.bucket()
	if err != nil {
		return target{}, err
	}
	raw, _, err := backend.Open(ctx, backend.Config{Backend: "fs", FS: backend.FS{Path: dir}}, slog.New(slog.DiscardHandler))
	return target{store: rig.FS(dir), raw: raw}, err
}

func s3Target(ctx context.Context, server *s3test.Server, root string) (target, error) {
	bucket, err := server.MakeBucket(ctx)
	if err != nil {
		return target{}, err
	}
	raw, _, err := backend.Open(ctx, backend.Config{Backend: "s3", ConnectionIdleTimeout: 5 * time.Second, S3: backend.S3{
		Bucket: bucket, Region: s3test.Region, Endpoint: server.Endpoint, URLStyle: "path", CredentialsSource: "static",
		AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
	}}, slog.New(slog.DiscardHandler))
	return target{store: rig.S3(server.Endpoint, s3test.Region, bucket, s3test.AccessKey, s3test.SecretKey, root), raw: raw}, err
}

// sealedLogs are the segments of the backlog that a round uploads.
func sealedLogs(source string) (paths []string, size int64, err error) {
	paths, err = filepath.Glob(filepath.Join(source, "up-0", "*.log"))
	if err != nil || len(paths) <= uploaded {
		return nil, 0, fmt.Errorf("%d segments in %s (%w)", len(paths), source, err)
	}
	paths = paths[:len(paths)-1]
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, 0, err
		}
		size += info.Size()
	}
	return paths, size, nil
}

// putOnce stores each segment by one PUT.
func putOnce(ctx context.Context, source string, fresh func(context.Context) (target, error)) (rate float64, err error) {
	t, err := fresh(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = joined(err, os.RemoveAll(t.store.Root)) }()
	paths, size, err := sealedLogs(source)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for _, path := range paths {
		if err := put(ctx, t.raw, path); err != nil {
			return 0, err
		}
	}
	return float64(size) / (1 << 20) / time.Since(start).Seconds(), nil
}

func put(ctx context.Context, store objstore.Store, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	body, err := objstore.NewBody(f, info.Size())
	if err != nil {
		return err
	}
	return store.Put(ctx, filepath.Base(path), body, objstore.PutOptions{IfAbsent: true})
}

// uploadOnce mounts over the backlog with an empty store and waits until tierfs counts all of it as uploaded.
func uploadOnce(ctx context.Context, b bench, source string, fresh func(context.Context) (target, error)) (rate float64, err error) {
	t, err := fresh(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = joined(err, os.RemoveAll(t.store.Root)) }()
	paths, size, err := sealedLogs(source)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(b.root, "upload-")
	if err != nil {
		return 0, err
	}
	d, err := daemon.New(daemon.Options{Binary: b.binary, Dir: dir, Source: source, Settings: t.store.Settings, Env: t.store.Env})
	if err != nil {
		return 0, err
	}
	defer func() { err = joined(err, errors.Join(d.Close(), forget(source))) }()
	if err := d.Start(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	err = until(ctx, 20*time.Millisecond, func() (bool, error) {
		done, err := d.Metric(ctx, "tierfs_uploads_total", "result", "ok")
		return int(done) >= len(paths), err
	})
	if err != nil {
		return 0, err
	}
	return float64(size) / (1 << 20) / time.Since(start).Seconds(), nil
}

// forget takes tierfs' own state out of an unmounted source, whose segments are all local.
func forget(source string) error {
	return filepath.Walk(source, func(path string, info os.FileInfo, err error) error {
		if os.IsNotExist(err) {
			return nil
		} else if err != nil {
			return err
		}
		name := info.Name()
		if strings.HasSuffix(name, ".remote") {
			return fmt.Errorf("%s was evicted", path)
		}
		if strings.HasPrefix(name, ".tierfs") || strings.HasSuffix(name, ".uploaded") {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			if info.IsDir() {
				return filepath.SkipDir
			}
		}
		return nil
	})
}

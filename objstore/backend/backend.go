// Package backend opens the object store that the settings name.
//
// It knows every backend and nothing else does: the rest of tierfs sees an
// objstore.Store. It contacts no store; whether one answers is found out by
// objstore.Probe. It keeps nothing on disk.
package backend

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/dirstore"
	"github.com/tierfs/tierfs/objstore/s3"
	"github.com/tierfs/tierfs/objstore/sim"
)

// Config is the part of the section [store] of the settings that says which store
// it is and how to reach it. Field by field as there.
type Config struct {
	Backend               string // fs, s3, sim
	Prefix                string // of all keys; Open does not use it, ParseURL sets it
	ConnectionIdleTimeout time.Duration
	CAFile                string
	Proxy                 string
	FS                    FS
	S3                    S3
}

// FS is [store.fs].
type FS struct {
	Path string
}

// S3 is [store.s3], but for storage_class: whoever stores a segment says that.
type S3 struct {
	Bucket, Region, Endpoint, URLStyle      string
	AccessKey, SecretKey, CredentialsSource string
	SSE, SSEKMSKey                          string
}

// Open returns the bare store (without decorators, see objstore.Decorate) and one
// line for people that says which it is, without secrets. A store that has
// something to close implements io.Closer. ctx bounds the opening only.
func Open(ctx context.Context, c Config, log *slog.Logger) (objstore.Store, string, error) {
	switch c.Backend {
	case "fs":
		if c.FS.Path == "" {
			return nil, "", fmt.Errorf("store.fs.path is not set")
		}
		s, err := dirstore.Open(c.FS.Path)
		if err != nil {
			return nil, "", fmt.Errorf("store.fs.path: %w", err)
		}
		return s, "fs:" + c.FS.Path, nil
	case "s3":
		return openS3(ctx, c, log)
	case "sim":
		return sim.New(sim.Options{}), "sim: in memory, gone when tierfs ends", nil
	case "gcs", "azure":
		return nil, "", fmt.Errorf("store.backend: %q is not supported by this build; it has fs, s3 and sim", c.Backend)
	case "":
		return nil, "", fmt.Errorf("store.backend is not set (fs, s3 or sim), and no --store is given")
	}
	return nil, "", fmt.Errorf("store.backend: unknown backend %q; there are fs, s3 and sim", c.Backend)
}

func openS3(ctx context.Context, c Config, log *slog.Logger) (objstore.Store, string, error) {
	s, err := s3.New(ctx, s3.Config{
		Bucket: c.S3.Bucket, Region: c.S3.Region, Endpoint: c.S3.Endpoint, URLStyle: c.S3.URLStyle,
		AccessKey: c.S3.AccessKey, SecretKey: c.S3.SecretKey, CredentialsSource: c.S3.CredentialsSource,
		SSE: c.S3.SSE, SSEKMSKey: c.S3.SSEKMSKey,
		IdleTimeout: c.ConnectionIdleTimeout, CAFile: c.CAFile, Proxy: c.Proxy, Log: log,
	})
	if err != nil {
		return nil, "", err
	}
	return s, s.String(), nil
}

// ParseURL reads what `--store` takes: fs:/dir, s3://bucket/prefix,
// gs://bucket/prefix, az://account/container/prefix, sim:. Only the fields that
// the URL speaks of are set in the result; Prefix is "" when it names none.
func ParseURL(raw string) (Config, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok {
		return Config{}, fmt.Errorf("store %q: not of the form fs:/dir or s3://bucket/prefix", redact(raw))
	}
	switch scheme {
	case "fs":
		return parseFS(raw, rest)
	case "sim":
		return Config{Backend: "sim"}, nil
	case "s3", "gs", "az":
		return parseBucket(raw, scheme, rest)
	}
	return Config{}, fmt.Errorf("store %q: unknown scheme; there are fs, s3, gs, az and sim", redact(raw))
}

func parseFS(raw, rest string) (Config, error) {
	dir := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		dir = after
	}
	if !path.IsAbs(dir) {
		return Config{}, fmt.Errorf("store %q: the directory must be absolute, as in fs:/dir", redact(raw))
	}
	return Config{Backend: "fs", FS: FS{Path: path.Clean(dir)}}, nil
}

func parseBucket(raw, scheme, rest string) (Config, error) {
	u, err := url.Parse(raw)
	if err != nil || !strings.HasPrefix(rest, "//") || u.Host == "" {
		return Config{}, fmt.Errorf("store %q: no bucket; give it as %s://bucket/prefix", redact(raw), scheme)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Port() != "" {
		return Config{}, fmt.Errorf("store %q: only a bucket and a prefix belong here; credentials and endpoint are settings", redact(raw))
	}
	c := Config{Prefix: strings.Trim(u.Path, "/")}
	switch scheme {
	case "s3":
		c.Backend, c.S3.Bucket = "s3", u.Host
	case "gs":
		c.Backend = "gcs"
	case "az":
		c.Backend = "azure"
	}
	if c.Prefix != "" {
		if err := objstore.CheckKey(c.Prefix); err != nil {
			return Config{}, fmt.Errorf("store %q: %w", redact(raw), err)
		}
	}
	return c, nil
}

// redact hides what stands before an @: somebody may have put credentials there.
func redact(raw string) string {
	i := strings.LastIndex(raw, "@")
	if i < 0 {
		return raw
	}
	if scheme, _, ok := strings.Cut(raw[:i], "://"); ok && !strings.Contains(scheme, ":") {
		return scheme + "://***" + raw[i:]
	}
	return "***" + raw[i:]
}

package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/tierfs/tierfs/mountinfo"
)

// topics checks the entries of retention.topic.
func (v *validator) topics() {
	for i := range v.cfg.Retention.Topic {
		t := &v.cfg.Retention.Topic[i]
		prefix := fmt.Sprintf("%s.%d.", topicPath, i)
		for _, k := range fields(prefix, reflect.ValueOf(t).Elem()) {
			v.keys[k.path] = k
		}
		v.must(t.Name != "", prefix+"name", "is missing", `name the topics, such as name = "orders-*"`)
		v.must(!strings.ContainsAny(t.Name, `[]{}\`), prefix+"name", "is no pattern", "use * for any characters and ? for one")
		v.duration(prefix+"local_retention_age", t.LocalRetentionAge, 0, 100*year, Unlimited)
	}
}

// CheckStore says what is missing to open the store.
func (c *Config) CheckStore() error {
	missing := func(path, remedy string) error {
		return &Error{Where: c.Origin("store.backend").Where, Key: path, Problem: "is missing", Remedy: remedy}
	}
	switch {
	case c.Store.Backend == "":
		return missing("store.backend", "name a store, such as --store fs:/dir or --store s3://bucket/prefix")
	case c.Store.Backend == "fs" && c.Store.FS.Path == "":
		return missing("store.fs.path", "name the store's directory, or use --store fs:/dir")
	case c.Store.Backend == "fs" && !filepath.IsAbs(c.Store.FS.Path):
		return &Error{
			Where: c.Origin("store.fs.path").Where, Key: "store.fs.path", Value: c.Store.FS.Path,
			Problem: "is not absolute", Remedy: "start it with /",
		}
	case c.Store.Backend == "s3" && c.Store.S3.Bucket == "":
		return missing("store.s3.bucket", "name the bucket, or use --store s3://bucket/prefix")
	}
	return nil
}

// Resolve makes the paths of a mount absolute, the source and the mount point free
// of symbolic links, fills in those that follow from others, and checks that none
// lies where the mount would cover it or show it. It looks at the file system and
// changes nothing there.
func (c *Config) Resolve() error {
	m := &c.Mount
	if m.Source == "" {
		return &Error{Key: "mount.source", Problem: "is missing", Remedy: "name the directory: tierfs mount SOURCE --store fs:/dir"}
	}
	if m.Mountpoint == "" {
		m.Mountpoint = m.Source
	}
	for _, p := range []*string{&m.Source, &m.Mountpoint} {
		clean, err := mountinfo.Clean(*p)
		if err != nil {
			return err
		}
		*p = clean
	}
	if m.Mountpoint != m.Source && within(m.Mountpoint, m.Source) {
		return &Error{
			Where: c.Origin("mount.mountpoint").Where, Key: "mount.mountpoint", Value: m.Mountpoint,
			Problem: "lies inside the source", Remedy: "leave it out to mount over the source, or choose a directory outside of it",
		}
	}
	own := filepath.Join(m.Source, ".tierfs")
	if m.StateDir == "" {
		m.StateDir = own
	}
	if c.Cache.Path == "" {
		c.Cache.Path = filepath.Join(m.StateDir, "cache")
	}
	for _, p := range []struct{ path, value string }{
		{"mount.state_dir", m.StateDir}, {"cache.path", c.Cache.Path}, {"store.fs.path", c.Store.FS.Path},
	} {
		if p.value == "" {
			continue
		}
		if err := c.outside(p.path, p.value, own); err != nil {
			return err
		}
	}
	return nil
}

// outside checks that a path lies neither in the source nor in the mount
// point, but for tierfs' own directory.
func (c *Config) outside(path, value, own string) error {
	wrong := func(problem, remedy string) error {
		return &Error{Where: c.Origin(path).Where, Key: path, Value: value, Problem: problem, Remedy: remedy}
	}
	if !filepath.IsAbs(value) {
		return wrong("is not absolute", "start it with /")
	}
	if path != "store.fs.path" && (within(value, own) || within(real(value), own)) {
		return nil
	}
	for _, dir := range []string{c.Mount.Source, c.Mount.Mountpoint} {
		if within(value, dir) || within(real(value), real(dir)) {
			return wrong("lies inside "+dir, "choose a directory outside of the mount")
		}
	}
	return nil
}

// within says whether path is dir or lies below it, by the names alone.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// real resolves symbolic links in as much of path as there is.
func real(path string) string {
	rest := ""
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); err == nil || at == "/" {
			resolved, err := filepath.EvalSymlinks(at)
			if err != nil {
				return filepath.Clean(path)
			}
			return filepath.Join(resolved, rest)
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

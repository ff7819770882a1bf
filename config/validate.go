package config

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// Validate checks every value on its own and against the others, without
// looking at any file. The error is an *Error about the first that is wrong.
// What only a mount needs, CheckStore and Resolve check.
func (c *Config) Validate() error {
	v := &validator{cfg: c, keys: make(map[string]key)}
	for _, k := range c.keys() {
		v.keys[k.path] = k
	}
	v.mount()
	v.store()
	v.transfers()
	v.cache()
	v.retention()
	v.topics()
	v.housekeeping()
	if c.Admin.Listen != "" {
		_, port, err := net.SplitHostPort(c.Admin.Listen)
		v.must(err == nil && port != "", "admin.listen", "is no address", `write it like "127.0.0.1:9464", or "" for none`)
	}
	if v.err == nil {
		return nil
	}
	return v.err
}

// validator keeps the first error.
type validator struct {
	cfg  *Config
	keys map[string]key
	err  *Error
}

// must notes an error about a key unless ok.
func (v *validator) must(ok bool, path, problem, remedy string) {
	if ok || v.err != nil {
		return
	}
	k := v.keys[path]
	value := k.quoted()
	v.err = &Error{Where: v.cfg.Origin(path).Where, Key: path, Value: k.shown(value), Problem: problem, Remedy: remedy}
}

func (v *validator) oneOf(path, value string, allowed ...string) {
	for _, a := range allowed {
		if value == a {
			return
		}
	}
	v.must(false, path, "is not known", fmt.Sprintf("use one of %q", allowed))
}

func (v *validator) between(path string, n, low, high int) {
	v.must(n >= low && n <= high, path, "is out of range", fmt.Sprintf("use %d to %d", low, high))
}

func (v *validator) size(path string, n, low, high Bytes) {
	v.must(n >= low && n <= high, path, "is out of range", fmt.Sprintf("use %s to %s", low, high))
}

// duration allows low to high, and the words.
func (v *validator) duration(path string, d, low, high Duration, words ...Duration) {
	allowed := fmt.Sprintf("use %s to %s", low, high)
	for _, w := range words {
		if d == w {
			return
		}
		allowed += fmt.Sprintf(" or %q", w)
	}
	v.must(d >= low && d <= high, path, "is out of range", allowed)
}

// rate allows no limit, or one that lets a chunk through in reasonable time.
func (v *validator) rate(path string, r Rate) {
	low := Rate(64 * KiB)
	v.must(r >= low, path, "is too low", fmt.Sprintf("use %s or more, or %q", low, UnlimitedRate))
}

const year = Duration(365 * 24 * time.Hour)

func (v *validator) mount() {
	m := &v.cfg.Mount
	v.oneOf("mount.layout", m.Layout, "auto", "kafka", "iggy", "generic")
	v.oneOf("mount.writes", m.Writes, "auto", "through", "writeback")
	v.size("mount.read_ahead", m.ReadAhead, 4*KiB, 16*MiB)
	v.duration("mount.generic_quiet_time", m.GenericQuietTime, 0, year)
}

func (v *validator) store() {
	s := &v.cfg.Store
	v.must(s.Volume == "" || tier.ValidName(s.Volume), "store.volume", "is no name",
		"use up to 63 letters, digits, dots, dashes and underlines, a letter or digit first")
	v.must(s.Prefix == "" || objstore.CheckKey(s.Prefix) == nil, "store.prefix", "cannot start a key",
		`use names joined by "/", without one at either end`)
	v.oneOf("store.verify_uploads", s.VerifyUploads, "auto", "always")
	v.duration("store.connection_idle_timeout", s.ConnectionIdleTimeout, Duration(100*time.Millisecond), Duration(time.Hour))
	v.size("store.part_size", s.PartSize, 5*MiB, 5*GiB)
	v.must(s.Proxy == "" || isURL(s.Proxy), "store.proxy", "is no URL", `write it like "http://proxy:3128"`)
	switch s.Backend {
	case "", "fs", "s3", "sim":
	case "gcs", "azure":
		v.must(false, "store.backend", "is not in this version", `use "fs" or "s3"`)
	default:
		v.oneOf("store.backend", s.Backend, "fs", "s3", "sim")
	}
	v.s3()
}

func (v *validator) s3() {
	s := &v.cfg.Store.S3
	v.must(s.Endpoint == "" || isURL(s.Endpoint), "store.s3.endpoint", "is no URL", `write it like "https://host:9000"`)
	v.oneOf("store.s3.url_style", s.URLStyle, "auto", "path", "virtual")
	v.oneOf("store.s3.credentials_source", s.CredentialsSource, "auto", "static")
	v.oneOf("store.s3.sse", s.SSE, "", "AES256", "aws:kms")
	v.must(s.SSEKMSKey == "" || s.SSE == "aws:kms", "store.s3.sse_kms_key", "has no use", `set store.s3.sse = "aws:kms", or take it out`)
	v.must(s.AccessKey != "" || s.SecretKey == "", "store.s3.access_key", "is missing", "set it beside store.s3.secret_key")
	v.must(s.SecretKey != "" || s.AccessKey == "", "store.s3.secret_key", "is missing", "set it beside store.s3.access_key")
	v.must(s.CredentialsSource != "static" || s.AccessKey != "", "store.s3.credentials_source", "needs keys",
		`set store.s3.access_key and store.s3.secret_key, or use "auto"`)
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func (v *validator) transfers() {
	u, f := &v.cfg.Upload, &v.cfg.Fetch
	second := Duration(time.Second)
	v.between("upload.concurrency", u.Concurrency, 1, 256)
	v.duration("upload.loop_backoff_max", u.LoopBackoffMax, Duration(100*time.Millisecond), Duration(time.Hour))
	v.duration("upload.segment_timeout", u.SegmentTimeout, second, Duration(24*time.Hour))
	v.rate("upload.bandwidth", u.Bandwidth)
	v.between("fetch.concurrency", f.Concurrency, 1, 4096)
	v.duration("fetch.timeout", f.Timeout, second, Duration(time.Hour), Auto, Block)
	v.must(f.MaxBlocked == CountAuto || f.MaxBlocked >= 1, "fetch.max_blocked", "is out of range", `use 1 or more, or "auto"`)
	v.duration("fetch.busy_timeout", f.BusyTimeout, Duration(time.Millisecond), Duration(time.Hour))
	v.rate("fetch.bandwidth", f.Bandwidth)
	for _, name := range f.Deny {
		v.must(strings.TrimSpace(name) != "", "fetch.deny", "holds an empty name", "list names of processes")
	}
}

func (v *validator) cache() {
	c := &v.cfg.Cache
	v.size("cache.chunk_size", c.ChunkSize, 1*MiB, 64*MiB)
	v.must(c.ChunkSize%4096 == 0, "cache.chunk_size", "is not a multiple of 4096", "use whole MiB")
	v.must(c.Size >= 2*c.ChunkSize, "cache.size", "is too small", fmt.Sprintf("use at least two chunks, %s, or \"unlimited\"", 2*c.ChunkSize))
	v.between("cache.size_percent", c.SizePercent, 1, 100)
	v.between("cache.max_objects", c.MaxObjects, 1, 1<<30)
	v.between("cache.readahead_max", c.ReadaheadMax, 0, 64)
	v.between("cache.low_watermark_percent", c.LowWatermarkPercent, 1, 100)
	v.duration("cache.trim_min_interval", c.TrimMinInterval, 0, Duration(time.Hour))
	v.size("cache.memory", c.Memory, 1*MiB, 1<<40)
}

func (v *validator) retention() {
	r := &v.cfg.Retention
	v.duration("retention.default_local_retention_age", r.DefaultLocalRetentionAge, 0, 100*year, Unlimited)
	v.between("retention.disk_high_percent", r.DiskHighPercent, 1, 100)
	v.between("retention.disk_low_percent", r.DiskLowPercent, 1, 100)
	v.must(r.DiskLowPercent < r.DiskHighPercent, "retention.disk_low_percent", "is not below disk_high_percent",
		fmt.Sprintf("use less than %d", r.DiskHighPercent))
	v.duration("retention.delete_grace", r.DeleteGrace, 0, year)
	v.between("retention.delete_batch_per_pass", r.DeleteBatchPerPass, 1, 1<<20)
	v.between("retention.delete_pending_per_partition", r.DeletePendingPerPartition, 1, 1<<30)
}

func (v *validator) housekeeping() {
	h := &v.cfg.Housekeeping
	second, day := Duration(time.Second), Duration(24*time.Hour)
	v.duration("housekeeping.interval", h.Interval, second, day)
	v.duration("housekeeping.idle_timeout", h.IdleTimeout, 0, day)
	v.between("housekeeping.idle_threshold_rps", h.IdleThresholdRPS, 0, 1<<30)
	v.between("housekeeping.request_quota", h.RequestQuota, 1, 1<<30)
	v.duration("housekeeping.orphan_sweep_interval", h.OrphanSweepInterval, Duration(time.Minute), year)
	v.duration("housekeeping.orphan_min_age", h.OrphanMinAge, Duration(time.Hour), year)
	v.duration("housekeeping.manifest_upload_interval", h.ManifestUploadInterval, second, day)
	v.duration("housekeeping.verify_interval", h.VerifyInterval, Duration(time.Minute), year)
}

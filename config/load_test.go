package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tierfs.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, text string, env []string, flags ...Setting) *Config {
	t.Helper()
	c, err := Load(Input{File: writeFile(t, text), Env: env, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// documented is the file that operators are shown, with every default.
const documented = `
[mount]
source = ""
mountpoint = ""
layout = "auto"
writes = "auto"
read_ahead = "1 MiB"
state_dir = ""
generic_quiet_time = "60 s"
[store]
backend = ""
volume = ""
take_ownership = false
prefix = "tierfs"
conditional_writes = true
verify_uploads = "auto"
connection_idle_timeout = "5 s"
part_size = "64 MiB"
ca_file = ""
proxy = ""
[store.fs]
path = ""
[store.s3]
bucket = ""
region = ""
endpoint = ""
url_style = "auto"
access_key = ""
secret_key = ""
credentials_source = "auto"
storage_class = ""
sse = ""
sse_kms_key = ""
[store.gcs]
bucket = ""
endpoint = ""
credentials_file = ""
[store.azure]
account = ""
container = ""
endpoint = ""
account_key = ""
[upload]
concurrency = 4
loop_backoff_max = "10 s"
segment_timeout = "90 s"
bandwidth = "unlimited"
[fetch]
concurrency = 16
timeout = "auto"
max_blocked = "auto"
busy_timeout = "300 ms"
bandwidth = "unlimited"
deny = []
[cache]
path = ""
size = "4 GiB"
size_percent = 20
max_objects = 100000
chunk_size = "8 MiB"
readahead_max = 4
low_watermark_percent = 80
trim_min_interval = "5 s"
memory = "64 MiB"
[retention]
tiered_storage = true
default_local_retention_age = "1 d"
default_local_retention_size = "unlimited"
disk_high_percent = 90
disk_low_percent = 80
delete_grace = "1 h"
delete_batch_per_pass = 300
delete_pending_per_partition = 5000
[housekeeping]
interval = "5 m"
idle_timeout = "10 s"
idle_threshold_rps = 10
request_quota = 5000
orphan_sweep_interval = "1 d"
orphan_min_age = "1 d"
manifest_upload_interval = "60 s"
verify_interval = "1 d"
[admin]
listen = ""
`

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	got := load(t, documented, nil)
	if diff := cmp.Diff(Default(), got, cmpopts.IgnoreUnexported(Config{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("defaults differ from the documented file (-default +documented):\n%s", diff)
	}
	for _, k := range Keys() {
		if o := got.Origin(k.Path); o.Source != FromFile {
			t.Errorf("%s is not documented", k.Path)
		}
	}
}

func TestPrecedence(t *testing.T) {
	file := "[cache]\nsize = \"1 GiB\"\n"
	env := []string{"TIERFS_CACHE_SIZE=2 GiB", "PATH=/bin"}
	flag := Setting{"cache.size", "3 GiB", "--cache-size"}
	for name, tc := range map[string]struct {
		cfg    *Config
		want   Bytes
		source string
		where  string
	}{
		"default":     {load(t, "", nil), 4 * GiB, FromDefault, ""},
		"file":        {load(t, file, nil), GiB, FromFile, "tierfs.toml:2"},
		"environment": {load(t, file, env), 2 * GiB, FromEnv, "TIERFS_CACHE_SIZE"},
		"flag":        {load(t, file, env, flag), 3 * GiB, FromFlag, "--cache-size"},
		"last flag":   {load(t, file, env, Setting{"cache.size", "5 GiB", "--x"}, flag), 3 * GiB, FromFlag, "--cache-size"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.cfg.Cache.Size != tc.want {
				t.Errorf("cache.size is %s, want %s", tc.cfg.Cache.Size, tc.want)
			}
			o := tc.cfg.Origin("cache.size")
			if o.Source != tc.source || !strings.HasSuffix(o.Where, tc.where) {
				t.Errorf("origin %v, want %s %s", o, tc.source, tc.where)
			}
		})
	}
}

func TestEveryKeyByEnvironment(t *testing.T) {
	for _, k := range Keys() {
		t.Run(k.Env, func(t *testing.T) {
			value := k.Default
			c := load(t, "", []string{k.Env + "=" + value})
			if o := c.Origin(k.Path); o.Source != FromEnv || o.Where != k.Env {
				t.Errorf("origin is %v", o)
			}
			if diff := cmp.Diff(Default(), c, cmpopts.IgnoreUnexported(Config{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the default written as %q is read as another value:\n%s", value, diff)
			}
		})
	}
}

func TestEnvironmentTypes(t *testing.T) {
	c := load(t, "", []string{
		"TIERFS_FETCH_DENY=updatedb, locate",
		"TIERFS_STORE_S3_SECRET_KEY=hush", "TIERFS_STORE_S3_ACCESS_KEY=me",
		"TIERFS_FETCH_TIMEOUT=block", "TIERFS_FETCH_MAX_BLOCKED=9",
		"TIERFS_RETENTION_TIERED_STORAGE=false",
		`TIERFS_RETENTION_TOPIC=[{name = "a*", local_retention_size = "1 GiB"}]`,
		"TIERFS_SERVICE_HOST=10.0.0.1", "TIERFS_PORT=tcp://10.0.0.1:80", "TIERFS_ADMIN_PORT_80_TCP_ADDR=10.0.0.1",
		"TIERFS_CONFIG=/elsewhere", "TIERFS_SOMEBODY_ELSES=1",
	})
	if !reflect.DeepEqual(c.Fetch.Deny, []string{"updatedb", "locate"}) {
		t.Errorf("fetch.deny is %q", c.Fetch.Deny)
	}
	if c.Store.S3.SecretKey != "hush" || c.Fetch.Timeout != Block || c.Fetch.MaxBlocked != 9 || c.Retention.TieredStorage {
		t.Errorf("not all variables were taken: %+v", c)
	}
	want := []Topic{{Name: "a*", LocalRetentionAge: Duration(24 * time.Hour), LocalRetentionSize: GiB}}
	if diff := cmp.Diff(want, c.Retention.Topic); diff != "" {
		t.Error(diff)
	}
}

func TestTopics(t *testing.T) {
	c := load(t, `
[retention]
default_local_retention_age = "2 d"
[[retention.topic]]
name = "orders-eu"
tiered_storage = false
[[retention.topic]]
name = "orders-*"
local_retention_age = "6 h"
local_retention_size = "50 GiB"
[[retention.topic]]
name = "*/clicks?"
local_retention_size = "0"
`, nil, Setting{"retention.default_local_retention_size", "9 GiB", "--x"})
	day, hour := Duration(24*time.Hour), Duration(time.Hour)
	for topic, want := range map[string]Topic{
		"orders-eu":   {"orders-eu", false, 2 * day, 9 * GiB},
		"orders-us":   {"orders-*", true, 6 * hour, 50 * GiB},
		"web/clicks":  {"*", true, 2 * day, 9 * GiB},
		"web/click":   {"*", true, 2 * day, 9 * GiB},
		"a/b/clicks1": {"*/clicks?", true, 2 * day, 0},
		"other":       {"*", true, 2 * day, 9 * GiB},
	} {
		if diff := cmp.Diff(want, c.Retention.For(topic)); diff != "" {
			t.Errorf("%s:\n%s", topic, diff)
		}
	}
	if o := c.Origin("retention.topic.1.local_retention_age"); !strings.HasSuffix(o.Where, "tierfs.toml:9") {
		t.Errorf("origin is %v", o)
	}
}

func TestMatch(t *testing.T) {
	for _, tc := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "", true}, {"*", "a/b", true}, {"a", "a", true}, {"a", "ab", false}, {"a*", "a", true},
		{"*a", "bba", true}, {"*a", "ab", false}, {"a*b*c", "aXbYbZc", true}, {"a*b*c", "acb", false},
		{"?", "", false}, {"?", "x", true}, {"a?c", "abc", true}, {"", "", true}, {"", "x", false}, {"**", "x", true},
	} {
		if got := Match(tc.pattern, tc.name); got != tc.want {
			t.Errorf("Match(%q, %q) is %v", tc.pattern, tc.name, got)
		}
	}
}

func TestStoreURL(t *testing.T) {
	for url, check := range map[string]func(*Config) bool{
		"fs:/srv/store": func(c *Config) bool {
			return c.Store.Backend == "fs" && c.Store.FS.Path == "/srv/store" && c.Store.Prefix == "tierfs"
		},
		"s3://logs/kafka-1": func(c *Config) bool {
			return c.Store.Backend == "s3" && c.Store.S3.Bucket == "logs" && c.Store.Prefix == "kafka-1"
		},
		"s3://logs": func(c *Config) bool { return c.Store.Backend == "s3" && c.Store.Prefix == "tierfs" },
	} {
		list, err := StoreURL(url, "--store")
		if err != nil {
			t.Fatal(err)
		}
		if c := load(t, "", nil, list...); !check(c) || c.Origin("store.backend").Where != "--store" {
			t.Errorf("%s: got %+v", url, c.Store)
		}
	}
	for _, url := range []string{"", "bucket", "fs:relative", "s3:bucket", "s3://", "ftp://host/dir"} {
		if _, err := StoreURL(url, "--store"); err == nil {
			t.Errorf("%q was accepted", url)
		}
	}
}

func TestLines(t *testing.T) {
	c := load(t, "[store.s3]\naccess_key = \"me\"\nsecret_key = \"hush\"\n[[retention.topic]]\nname = \"a\"\n",
		[]string{"TIERFS_STORE_AZURE_ACCOUNT_KEY=hush"}, Setting{"fetch.deny", "x,y", "--fetch-deny"})
	got := make(map[string]Line)
	for _, l := range c.Lines() {
		if strings.Contains(l.Value, "hush") {
			t.Errorf("%s shows a secret", l.Path)
		}
		got[l.Path] = l
	}
	for path, want := range map[string]string{
		"store.s3.secret_key":     "***",
		"store.azure.account_key": "***",
		"store.s3.access_key":     `"me"`,
		"fetch.deny":              `["x", "y"]`,
		"fetch.timeout":           `"auto"`,
		"cache.size":              `"4 GiB"`,
		"cache.size_percent":      "20",
		"retention.topic.0.name":  `"a"`,
		"store.take_ownership":    "false",
	} {
		if got[path].Value != want {
			t.Errorf("%s is shown as %s, want %s", path, got[path].Value, want)
		}
	}
	for value, want := range map[string]string{
		"http://proxy:3128": `"http://proxy:3128"`, "http://me:hush@proxy:3128": "***", "": `""`,
	} {
		c := load(t, "", []string{"TIERFS_STORE_PROXY=" + value})
		for _, l := range c.Lines() {
			if l.Path == "store.proxy" && l.Value != want {
				t.Errorf("the proxy is shown as %s, want %s", l.Value, want)
			}
		}
	}
	if v := load(t, "", nil).Lines(); v[0].Path != "mount.source" || v[0].Origin.String() != "default" {
		t.Errorf("the first line is %v", v[0])
	}
}

func TestIdle(t *testing.T) {
	c := load(t, "[housekeeping]\ninterval = \"9 m\"\n[store]\npart_size = \"32 MiB\"\n[cache]\nsize = \"1 GiB\"\n", nil)
	var got []string
	for _, l := range c.Idle() {
		got = append(got, l.Path)
	}
	if want := []string{"store.part_size", "housekeeping.interval"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, p := range idle { // each stands for a setting that is there
		if !slices.ContainsFunc(c.Lines(), func(l Line) bool { return strings.HasPrefix(l.Path, p) }) {
			t.Errorf("%s stands for nothing", p)
		}
	}
}

func TestFileMissing(t *testing.T) {
	_, err := Load(Input{File: "/nonexistent/tierfs.toml"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(documented)
	f.Add("[[retention.topic]]\nname = \"a\"\n")
	f.Add("retention = {topic = [{name = \"a\"}]}\n")
	f.Add("store.s3.bucket = 5\n[cache\n")
	f.Add("[store]\ns3 = {bucket = \"b\", endpoint = \"\"\"\n[cache]\n\"\"\"}")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "fuzz.toml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Input{File: path})
		if err == nil {
			err = c.Validate()
			c.Lines()
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("%v is no *Error", err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q is more than one line", err)
		}
	})
}

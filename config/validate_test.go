package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wrongSetting is one way to be wrong.
type wrongSetting struct {
	file string
	env  string
	flag Setting
	want string // the whole of the one line that says so
}

// TestWrong has a row for each way to be wrong: in the file, the environment or a flag.
func TestWrong(t *testing.T) {
	for name, tc := range wrongs() {
		t.Run(name, func(t *testing.T) {
			in := Input{File: writeFile(t, tc.file), Env: []string{tc.env}}
			if tc.flag.Path != "" {
				in.Flags = []Setting{tc.flag}
			}
			c, err := Load(in)
			if err == nil {
				err = c.Validate()
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if got := strings.ReplaceAll(err.Error(), in.File, "FILE"); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func wrongs() map[string]wrongSetting {
	all := map[string]wrongSetting{}
	for _, some := range []map[string]wrongSetting{wrongForms(), wrongKeys(), wrongPlaces(), wrongSizes(), wrongValues()} {
		maps.Copy(all, some)
	}
	return all
}

// wrongForms are values and files that cannot be read.
func wrongForms() map[string]wrongSetting {
	return map[string]wrongSetting{
		"unit": {
			file: "[fetch]\n\nbusy_timeout = \"300 msec\"\n",
			want: `FILE:3: fetch.busy_timeout = 300 msec has the unknown unit "msec": write it like "300 ms", "5 s", "10 m" or "1 d"`,
		},
		"no unit": {
			file: "[fetch]\nbusy_timeout = 300\n",
			want: `FILE:2: fetch.busy_timeout = 300 is not a string in quotes: write it like "300 ms", "5 s", "10 m" or "1 d"`,
		},
		"size": {
			file: "[cache]\nsize = \"4 gigs\"\n",
			want: `FILE:2: cache.size = 4 gigs has the unknown unit "gigs": write it like "64 KiB", "8 MiB" or "4 GiB"`,
		},
		"string for a number": {
			file: "[upload]\nconcurrency = \"4\"\n",
			want: `FILE:2: upload.concurrency = 4 is not a whole number: write a whole number, such as 4`,
		},
		"fraction": {
			file: "[upload]\nconcurrency = 4.5\n",
			want: `FILE:2: upload.concurrency = 4.5 is not a whole number: write a whole number, such as 4`,
		},
		"first in the file": {
			file: "[upload]\nconcurrency = \"x\"\n[cache]\nsize = \"x\"\n",
			want: `FILE:2: upload.concurrency = x is not a whole number: write a whole number, such as 4`,
		},
		"no TOML": {
			file: "[cache]\nsize = 4 GiB\n",
			want: `FILE:2: not TOML: expected a top-level item to end with a newline, comment, or EOF, but got 'G' instead: correct this line`,
		},
		"secret": {
			file: "[store.s3]\nsecret_key = 12345\n",
			want: `FILE:2: store.s3.secret_key = *** is not a string in quotes: write it in quotes`,
		},
	}
}

// wrongKeys are names that no setting has, and tables that are none.
func wrongKeys() map[string]wrongSetting {
	return map[string]wrongSetting{
		"unknown key": {
			file: "[cache]\nsize = \"1 GiB\"\nchunksize = \"8 MiB\"\n",
			want: `FILE:3: cache.chunksize is no setting: did you mean cache.chunk_size?`,
		},
		"unknown table": {
			file: "# x\n[cahce]\nsize = \"1 GiB\"\n",
			want: `FILE:2: cahce is no setting: did you mean cache?`,
		},
		"far from any": {
			file: "zookeeper = \"z\"\n",
			want: "FILE:1: zookeeper is no setting: take it out; `tierfs config` lists all settings",
		},
		"unknown key of a topic": {
			file: "[[retention.topic]]\nname = \"a\"\n[[retention.topic]]\nname = \"b\"\ncompacted = true\n",
			want: "FILE:5: retention.topic.1.compacted is no setting: take it out; `tierfs config` lists all settings",
		},
		"value for a table": {
			file: "store = \"s3\"\n",
			want: `FILE:1: store = s3 is a table, not a value: start a line with [store]`,
		},
		"table for a list": {
			file: "[retention.topic]\nname = \"a\"\n",
			want: `FILE:1: retention.topic is not a list of tables: start each entry with [[retention.topic]]`,
		},
		"topic without a name": {
			file: "[[retention.topic]]\nlocal_retention_age = \"1 d\"\n",
			want: `retention.topic.0.name = "" is missing: name the topics, such as name = "orders-*"`,
		},
		"topic with brackets": {
			file: "[[retention.topic]]\nname = \"a[0-9]\"\n",
			want: `FILE:2: retention.topic.0.name = "a[0-9]" is no pattern: use * for any characters and ? for one`,
		},
	}
}

// wrongPlaces are settings that are wrong in a variable or a flag.
func wrongPlaces() map[string]wrongSetting {
	return map[string]wrongSetting{
		"variable": {
			env:  "TIERFS_CACHE_SIZE=big",
			want: `TIERFS_CACHE_SIZE: cache.size = big is not a number and a unit: write it like "64 KiB", "8 MiB" or "4 GiB"`,
		},
		"empty variable": {
			env:  "TIERFS_CACHE_SIZE=",
			want: `TIERFS_CACHE_SIZE: cache.size = "" is not a number and a unit: write it like "64 KiB", "8 MiB" or "4 GiB"`,
		},
		"unknown variable": {
			env:  "TIERFS_CACHE_SIZ=1 GiB",
			want: `TIERFS_CACHE_SIZ: names no setting: did you mean TIERFS_CACHE_SIZE?`,
		},
		"unknown variable of a table": {
			env:  "TIERFS_CACHE_ENTIRELY_DIFFERENT=1",
			want: "TIERFS_CACHE_ENTIRELY_DIFFERENT: names no setting: take it out; `tierfs config` lists all settings",
		},
		"slip in the table": {
			env:  "TIERFS_CAHCE_SIZE=1 GiB",
			want: `TIERFS_CAHCE_SIZE: names no setting: did you mean TIERFS_CACHE_SIZE?`,
		},
		"flag": {
			flag: Setting{"retention.tiered_storage", "yes", "--retention-tiered-storage"},
			want: `--retention-tiered-storage: retention.tiered_storage = yes is neither true nor false: write true or false`,
		},
	}
}

// wrongSizes are numbers that make no sense, alone or beside others.
func wrongSizes() map[string]wrongSetting {
	return map[string]wrongSetting{
		"chunk size not a multiple": {
			file: "[cache]\nchunk_size = \"5 MB\"\n",
			want: `FILE:2: cache.chunk_size = "5 MB" is not a multiple of 4096: use whole MiB`,
		},
		"chunk size too large": {
			file: "[cache]\nchunk_size = \"128 MiB\"\n",
			want: `FILE:2: cache.chunk_size = "128 MiB" is out of range: use 1 MiB to 64 MiB`,
		},
		"cache smaller than two chunks": {
			file: "[cache]\nsize = \"8 MiB\"\n",
			want: `FILE:2: cache.size = "8 MiB" is too small: use at least two chunks, 16 MiB, or "unlimited"`,
		},
		"percentage": {
			file: "[cache]\nsize_percent = 101\n",
			want: `FILE:2: cache.size_percent = 101 is out of range: use 1 to 100`,
		},
		"low above high": {
			file: "[retention]\ndisk_low_percent = 95\n",
			want: `FILE:2: retention.disk_low_percent = 95 is not below disk_high_percent: use less than 90`,
		},
		"word where it has no meaning": {
			file: "[upload]\nloop_backoff_max = \"block\"\n",
			want: `FILE:2: upload.loop_backoff_max = "block" is out of range: use 100 ms to 1 h`,
		},
		"unlimited cache memory": {
			file: "[cache]\nmemory = \"unlimited\"\n",
			want: `FILE:2: cache.memory = "unlimited" is out of range: use 1 MiB to 1 TiB`,
		},
		"rate": {
			file: "[upload]\nbandwidth = \"10 B/s\"\n",
			want: `FILE:2: upload.bandwidth = "10 B/s" is too low: use 64 KiB/s or more, or "unlimited"`,
		},
		"blocked": {
			file: "[fetch]\nmax_blocked = 0\n",
			want: `FILE:2: fetch.max_blocked = 0 is out of range: use 1 or more, or "auto"`,
		},
	}
}

// wrongValues are words that make no sense.
func wrongValues() map[string]wrongSetting {
	return map[string]wrongSetting{
		"layout": {
			file: "[mount]\nlayout = \"redpanda\"\n",
			want: `FILE:2: mount.layout = "redpanda" is not known: use one of ["auto" "kafka" "iggy" "generic"]`,
		},
		"backend of later": {
			file: "[store]\nbackend = \"gcs\"\n",
			want: `FILE:2: store.backend = "gcs" is not in this version: use "fs" or "s3"`,
		},
		"half a pair of keys": {
			file: "[store.s3]\nsecret_key = \"hush\"\n",
			want: `store.s3.access_key = "" is missing: set it beside store.s3.secret_key`,
		},
		"endpoint": {
			file: "[store.s3]\nendpoint = \"minio:9000\"\n",
			want: `FILE:2: store.s3.endpoint = "minio:9000" is no URL: write it like "https://host:9000"`,
		},
		"prefix": {
			file: "[store]\nprefix = \"/kafka/\"\n",
			want: `FILE:2: store.prefix = "/kafka/" cannot start a key: use names joined by "/", without one at either end`,
		},
		"volume": {
			file: "[store]\nvolume = \"../x\"\n",
			want: `FILE:2: store.volume = "../x" is no name: use up to 63 letters, digits, dots, dashes and underlines, a letter or digit first`,
		},
		"listen": {
			file: "[admin]\nlisten = \"9464\"\n",
			want: `FILE:2: admin.listen = "9464" is no address: write it like "127.0.0.1:9464", or "" for none`,
		},
	}
}

func TestCheckStore(t *testing.T) {
	for file, want := range map[string]string{
		"":                            "store.backend is missing: name a store, such as --store fs:/dir or --store s3://bucket/prefix",
		"[store]\nbackend = \"fs\"\n": "FILE:2: store.fs.path is missing: name the store's directory, or use --store fs:/dir",
		"[store]\nbackend = \"fs\"\n[store.fs]\npath = \"rel\"\n":  "FILE:4: store.fs.path = rel is not absolute: start it with /",
		"[store]\nbackend = \"s3\"\n":                              "FILE:2: store.s3.bucket is missing: name the bucket, or use --store s3://bucket/prefix",
		"[store]\nbackend = \"fs\"\n[store.fs]\npath = \"/abs\"\n": "",
		"[store]\nbackend = \"sim\"\n":                             "",
	} {
		path := writeFile(t, file)
		c, err := Load(Input{File: path})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := c.CheckStore(); err != nil {
			got = strings.ReplaceAll(err.Error(), path, "FILE")
		}
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// mountAt is a source, a directory elsewhere, and a way to resolve the paths of a mount of the source.
func mountAt(t *testing.T) (source, elsewhere string, resolve func(change func(c *Config)) (*Config, error)) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	source, elsewhere = filepath.Join(dir, "source"), filepath.Join(dir, "elsewhere")
	for _, d := range []string{source, elsewhere} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return source, elsewhere, func(change func(c *Config)) (*Config, error) {
		c := Default()
		c.Mount.Source = source
		change(c)
		return c, c.Resolve()
	}
}

func TestResolve(t *testing.T) {
	source, elsewhere, resolve := mountAt(t)
	t.Run("defaults", func(t *testing.T) {
		c, err := resolve(func(*Config) {})
		if err != nil {
			t.Fatal(err)
		}
		if c.Mount.Mountpoint != source || c.Mount.StateDir != source+"/.tierfs" || c.Cache.Path != source+"/.tierfs/cache" {
			t.Errorf("got %+v, cache in %s", c.Mount, c.Cache.Path)
		}
	})
	t.Run("by a link", func(t *testing.T) {
		link := filepath.Join(elsewhere, "link")
		if err := os.Symlink(source, link); err != nil {
			t.Fatal(err)
		}
		c, err := resolve(func(c *Config) { c.Mount.Source, c.Cache.Path = link, link+"/.tierfs/chunks" })
		if err != nil {
			t.Fatal(err)
		}
		if c.Mount.Source != source || c.Mount.Mountpoint != source || c.Mount.StateDir != source+"/.tierfs" {
			t.Errorf("got %+v", c.Mount)
		}
	})
	t.Run("no source", func(t *testing.T) {
		if _, err := resolve(func(c *Config) { c.Mount.Source = "" }); err == nil {
			t.Error("accepted")
		}
	})
	for name, change := range map[string]func(*Config){
		"cache elsewhere":          func(c *Config) { c.Cache.Path = elsewhere },
		"cache beside":             func(c *Config) { c.Cache.Path = source + "-cache" },
		"cache in the state":       func(c *Config) { c.Cache.Path = source + "/.tierfs/chunks" },
		"store elsewhere":          func(c *Config) { c.Store.FS.Path = elsewhere + "/store" },
		"mount point is elsewhere": func(c *Config) { c.Mount.Mountpoint = elsewhere },
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := resolve(change); err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

func TestResolveRefuses(t *testing.T) {
	source, elsewhere, resolve := mountAt(t)
	link := filepath.Join(elsewhere, "link")
	if err := os.Symlink(source, link); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"mount point in the source":   func(c *Config) { c.Mount.Mountpoint = source + "/sub" },
		"cache in the source":         func(c *Config) { c.Cache.Path = source + "/cache" },
		"cache in the mount point":    func(c *Config) { c.Mount.Mountpoint = elsewhere; c.Cache.Path = elsewhere + "/c" },
		"cache by a link":             func(c *Config) { c.Cache.Path = link + "/not/there" },
		"cache is the source":         func(c *Config) { c.Cache.Path = source },
		"cache is relative":           func(c *Config) { c.Cache.Path = "cache" },
		"store in the source":         func(c *Config) { c.Store.FS.Path = source + "/store" },
		"store in the state":          func(c *Config) { c.Store.FS.Path = source + "/.tierfs/store" },
		"state in the source":         func(c *Config) { c.Mount.StateDir = source + "/state" },
		"state dir in the mountpoint": func(c *Config) { c.Mount.Mountpoint = elsewhere; c.Mount.StateDir = elsewhere + "/s" },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := resolve(change)
			var e *Error
			if !errors.As(err, &e) || e.Remedy == "" {
				t.Errorf("got %v, want an *Error with a remedy", err)
			}
		})
	}
}

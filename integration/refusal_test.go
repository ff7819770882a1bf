package integration

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// TestRefusedMounts shows that a mount that cannot work says why in one line, and leaves source and store as they were.
func TestRefusedMounts(t *testing.T) {
	good, endpoint := s3Store(t)
	unused := "http://127.0.0.1:1"
	s3 := func(replace ...string) rig.Store {
		return rig.Store{Settings: strings.NewReplacer(replace...).Replace(good.Settings), Env: good.Env}
	}
	bucket := filepath.Base(good.Root)
	cases := []struct {
		name   string
		store  rig.Store
		source string   // "" = the right one
		says   []string // in any case of letters
	}{
		{name: "unknown key", store: s3("bucket =", "bukcet ="), says: []string{"bukcet", "tierfs.toml:"}},
		{name: "value that does not parse", store: rig.Store{Settings: good.Settings + "[cache]\nsize = \"4 parsecs\"\n"}, says: []string{"size", "parsecs"}},
		{name: "no store", says: []string{"store"}},
		{name: "unknown backend", store: rig.Store{Settings: "[store]\nbackend = \"tape\"\n"}, says: []string{"tape"}},
		{name: "missing bucket", store: s3(bucket, "no-such-bucket"), says: []string{"no-such-bucket"}},
		{name: "wrong access key", store: s3(s3test.AccessKey, "nobody"), says: []string{"key"}},
		{name: "wrong secret", store: rig.Store{Settings: good.Settings, Env: []string{"TIERFS_STORE_S3_SECRET_KEY=wrong"}}, says: []string{"secret"}},
		{name: "wrong region", store: s3(s3test.Region, "eu-north-7"), says: []string{"region"}},
		{name: "nobody at the endpoint", store: s3(endpoint, unused), says: []string{"127.0.0.1:1"}},
		{name: "missing source", store: s3(), source: "nowhere", says: []string{"nowhere"}},
		{name: "source that is a file", store: s3(), source: "data/meta.properties", says: []string{"meta.properties"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d, root := bareDaemon(t, c.store)
			source := filepath.Join(root, "data")
			before := everything(t, root)
			if c.source != "" {
				source = filepath.Join(root, c.source)
			}
			refuses(t, d, []string{"mount", "--config", d.Config(), source}, c.says...)
			unchanged(t, before, everything(t, root))
			if left, err := good.Objects("tierfs/", ""); err != nil || len(left) > 0 {
				t.Errorf("the bucket holds %v (%v)", left, err)
			}
		})
	}
}

// TestRefusedSource shows the same for a source that somebody uses, and for one that is mounted already.
func TestRefusedSource(t *testing.T) {
	d, root := bareDaemon(t, fsStore(t))
	source := filepath.Join(root, "data")
	mount := []string{"mount", "--config", d.Config(), source}
	before := everything(t, root)
	t.Run("a regular file is open", func(t *testing.T) {
		file, err := os.Open(filepath.Join(source, "t-0", "00000000000000000000.log"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		refuses(t, d, mount, fmt.Sprint(os.Getpid()), "integration")
		unchanged(t, before, everything(t, root))
	})
	t.Run("it is mounted", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := d.Start(ctx); err != nil {
			t.Fatal(err)
		}
		r, err := d.Run(ctx, mount...)
		if err != nil || r.Code != 1 || strings.Count(r.Stderr, "\n") != 1 ||
			!strings.Contains(r.Stderr, "`tierfs upgrade "+source+"`") || !strings.Contains(r.Stderr, "`tierfs unmount "+source+"`") {
			t.Errorf("a second mount: %+v, %v", r, err)
		}
		if _, err := os.Stat(filepath.Join(source, "meta.properties")); err != nil || !d.Process().Running() {
			t.Errorf("the first mount suffered: %v", err)
		}
	})
	t.Run("somebody is in it at the unmount", func(t *testing.T) { busyUnmount(t, d, source) })
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{{"mount"}, {"mount", "--no-such-flag", source}, {"nonsense"}} {
			r, err := d.Run(t.Context(), args...)
			if err != nil || r.Code != 2 || strings.TrimSpace(r.Stderr) == "" {
				t.Errorf("tierfs %v: %+v, %v", args, r, err)
			}
		}
	})
}

func busyUnmount(t *testing.T, d *daemon.Daemon, source string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	file, err := os.Open(filepath.Join(source, "meta.properties"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Run(ctx, "unmount", source)
	if err != nil || r.Code != 1 || !strings.Contains(r.Stderr, fmt.Sprint(os.Getpid())) {
		t.Errorf("unmount of a busy mount: %+v, %v", r, err)
	}
	if _, err := file.Stat(); err != nil || !d.Process().Running() {
		t.Errorf("the mount went away: %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := d.Run(ctx, "unmount", source); err != nil || r.Code != 0 {
		t.Errorf("unmount: %+v, %v", r, err)
	}
	if mounted, err := daemon.Mounted(source); err != nil || mounted {
		t.Errorf("still mounted after unmount: %v", err)
	}
}

// bareDaemon is a daemon without a broker, over a small directory that looks like one of Kafka's.
func bareDaemon(t *testing.T, store rig.Store) (*daemon.Daemon, string) {
	t.Helper()
	root := t.TempDir()
	source := filepath.Join(root, "data")
	if err := os.MkdirAll(filepath.Join(source, "t-0"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"meta.properties": "version=1\nnode.id=1\n", "t-0/00000000000000000000.log": "", "t-0/partition.metadata": "version: 0\n"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := daemon.New(daemon.Options{Binary: checked, Dir: t.TempDir(), Source: source, Settings: store.Settings, Env: store.Env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("tierfs:\n%s", d.Log().Tail(40))
		}
	})
	return d, root
}

// refuses runs a command that must fail with one line on stderr that says all of these words.
func refuses(t *testing.T, d *daemon.Daemon, args []string, says ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := d.Run(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimRight(r.Stderr, "\n")
	t.Logf("exit status %d: %s", r.Code, line)
	if (r.Code != 1 && r.Code != 2) || line == "" || strings.Contains(line, "\n") {
		t.Errorf("exit status %d and %d lines on stderr", r.Code, strings.Count(line, "\n")+1)
	}
	for _, word := range says {
		if !strings.Contains(strings.ToLower(line), strings.ToLower(word)) {
			t.Errorf("the line does not say %q", word)
		}
	}
	if strings.Contains(line, s3test.SecretKey) {
		t.Error("the line shows the secret key")
	}
	if mounted, err := daemon.Mounted(d.Mountpoint()); err != nil || mounted {
		t.Errorf("something is mounted after the refusal (%v)", err)
	}
}

// everything is the type, size, time and mode of all that is below dir.
func everything(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			all[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// unchanged compares two views of a directory and names what differs.
func unchanged[V comparable](t *testing.T, before, after map[string]V) {
	t.Helper()
	for path, value := range before {
		if now, ok := after[path]; !ok {
			t.Errorf("%s is gone", path)
		} else if now != value {
			t.Errorf("%s was %v and is %v", path, value, now)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("%s is new", path)
		}
	}
}

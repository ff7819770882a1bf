package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/tier"
)

// checked is a source with one remote and one uploaded segment, as tierfs
// leaves it, and its store.
type checked struct {
	t         *testing.T
	path      string
	partition string
	store     *sim.Store
	inc       marker.Incarnation
	remote    marker.Record
}

func newChecked(t *testing.T) *checked {
	t.Helper()
	c := &checked{t: t, path: t.TempDir(), store: sim.New(sim.Options{}), inc: marker.NewIncarnation()}
	c.partition = filepath.Join(c.path, "orders-0")
	for _, dir := range []string{c.partition, filepath.Join(c.path, ".tierfs", "partitions")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c.write(".tierfs/partitions/"+c.inc.String(), fmt.Sprintf(`{"prefix":%q}`, c.prefix()))
	c.write(".tierfs/volume", `{"id":"0123456789abcdef0123456789abcdef","name":"v"}`)
	c.remote = c.segment(0, ".remote")
	c.segment(10, ".uploaded")
	c.write("orders-0/00000000000000000010.log", strings.Repeat("x", 100))
	c.write("orders-0/00000000000000000020.log", "active")
	c.write(".tierfs/partitions/"+durable.TempPrefix+"1", `{"pre`) // being written, or left by a crash
	for _, start := range []string{"00", "10", "20"} {
		c.write("orders-0/000000000000000000"+start+".index", "")
	}
	return c
}

func (c *checked) prefix() string { return "p/v/orders-0/" + c.inc.String() }

func (c *checked) write(name, content string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.path, name), []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// segment writes the record of a segment of 100 bytes, and its objects.
func (c *checked) segment(start uint64, suffix string) marker.Record {
	c.t.Helper()
	rec := marker.Record{Start: start, End: start + 9, Size: 100, IndexSize: 8, Incarnation: c.inc, UploadID: marker.NewUploadID()}
	c.record(fmt.Sprintf("%020d%s", start, suffix), rec)
	c.put(c.key(rec)+".log", 100)
	c.put(c.key(rec)+".index", 8)
	return rec
}

func (c *checked) do(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *checked) mkdir(name string) {
	c.t.Helper()
	c.do(os.Mkdir(filepath.Join(c.path, name), 0o700))
}

func (c *checked) record(name string, rec marker.Record) {
	c.t.Helper()
	fd, err := unix.Open(c.partition, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := marker.Write(fd, name, rec); err != nil {
		c.t.Fatal(err)
	}
}

func (c *checked) key(rec marker.Record) string {
	return fmt.Sprintf("%s/%020d-%s", c.prefix(), rec.Start, rec.UploadID)
}

func (c *checked) put(key string, size int) {
	c.t.Helper()
	if err := c.store.Put(c.t.Context(), key, objstore.BytesBody(make([]byte, size)), objstore.PutOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *checked) delete(key string) {
	c.t.Helper()
	if err := c.store.Delete(c.t.Context(), key); err != nil {
		c.t.Fatal(err)
	}
}

func (c *checked) check() (admin.CheckResult, []string, error) {
	c.t.Helper()
	return c.run(func(*checker) {})
}

func (c *checked) run(change func(*checker)) (admin.CheckResult, []string, error) {
	c.t.Helper()
	root, err := unix.Open(c.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	defer unix.Close(root)
	var found []string
	rules, err := tier.LayoutOf(root, "", 0)
	if err != nil {
		c.t.Fatal(err)
	}
	check := &checker{
		root: root, store: c.store, rules: rules, progress: func(admin.Progress) {},
		report: func(f admin.Finding) {
			if f.Remedy == "" {
				c.t.Errorf("%s: no remedy", f.Path)
			}
			found = append(found, f.Path+": "+f.Problem)
		},
	}
	change(check)
	result, err := check.run(c.t.Context())
	if int(result.Findings) != len(found) {
		c.t.Errorf("%d findings are counted, %d reported", result.Findings, len(found))
	}
	return result, found, err
}

func TestCheckFindsNothing(t *testing.T) {
	c := newChecked(t)
	// States between two steps of an eviction are no findings.
	c.record("00000000000000000010.uploaded", c.segment(10, ".uploaded"))
	c.write("orders-0/00000000000000000030.remote", "not yet a record")
	c.segment(30, ".uploaded")
	c.write("orders-0/00000000000000000030.index", "")
	result, found, err := c.check()
	if err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
	}
	if result.Partitions != 1 || result.Records != 4 || result.Objects != 6 {
		t.Errorf("got %+v", result)
	}
}

// damage is what can happen to a source or its store, and what a check says of it.
type damage struct {
	damage func(c *checked)
	want   string
}

func damages() map[string]damage {
	const remote = "orders-0/00000000000000000000.remote"
	return map[string]damage{
		"a damaged marker": {
			func(c *checked) { c.write(remote, strings.Repeat("x", marker.Size)) },
			remote + ": is no valid marker: ",
		},
		"a damaged marker of an uploaded segment": {
			func(c *checked) { c.write("orders-0/00000000000000000010.uploaded", "") },
			"orders-0/00000000000000000010.uploaded: is no valid marker: ",
		},
		"a marker of another segment": {
			func(c *checked) { c.record("00000000000000000000.remote", c.segment(5, ".tmp.uploaded")) },
			remote + ": is the marker of segment 5",
		},
		"an unknown incarnation": {
			func(c *checked) {
				rec := c.remote
				rec.Incarnation = marker.NewIncarnation()
				c.record("00000000000000000000.remote", rec)
			},
			remote + ": names incarnation ",
		},
		"a damaged registry": {
			func(c *checked) { c.write(".tierfs/partitions/"+c.inc.String(), "{") },
			".tierfs/partitions/",
		},
		"a hole": {
			func(c *checked) { c.write("orders-0/00000000000000000007.index", "") },
			"orders-0/00000000000000000007.index: is an index without its log",
		},
		"a local file of another size": {
			func(c *checked) { c.write("orders-0/00000000000000000010.log", "short") },
			"orders-0/00000000000000000010.uploaded: says that 00000000000000000010.log has 100 bytes; it has 5",
		},
		"a missing object": {
			func(c *checked) { c.delete(c.key(c.remote) + ".log") },
			remote + ": its object p/v/orders-0/",
		},
		"a missing index": {
			func(c *checked) { c.delete(c.key(c.remote) + ".index") },
			remote + ": its object p/v/orders-0/",
		},
		"an object of another size": {
			func(c *checked) { c.put(c.key(c.remote)+".log", 99) },
			".log has 99 bytes; it should have 100",
		},
	}
}

// misplaced are damages of names, and of tierfs' own directory.
func misplaced() map[string]damage {
	return map[string]damage{
		"a directory for a marker": {
			func(c *checked) { c.mkdir("orders-0/00000000000000000030.remote") },
			"orders-0/00000000000000000030.remote: is a directory where a file should be",
		},
		"a partition's file that cannot be read": {
			func(c *checked) { c.write("orders-0/.tierfs-partition", "{") },
			"orders-0/.tierfs-partition: cannot be read: ",
		},
		"a segment that is there twice": {
			func(c *checked) { c.write("orders-0/00000000000000000000.log", "x") },
			"orders-0/00000000000000000000.remote: is there although 00000000000000000000.log is",
		},
		"a marker that was set aside": {
			func(c *checked) { c.write("orders-0/.tierfs-twin-00000000000000000000.remote", "x") },
			"orders-0/.tierfs-twin-00000000000000000000.remote: was set aside",
		},
		"no identity": {
			func(c *checked) { c.do(os.Remove(filepath.Join(c.path, ".tierfs/volume"))) },
			".tierfs/volume: is missing",
		},
		"an epoch that cannot be read": {func(c *checked) { c.write(".tierfs/epoch", "") }, ".tierfs/epoch: cannot be read: "},
		"a stranger among the tombstones": {
			func(c *checked) { c.mkdir(".tierfs/tombstones"); c.write(".tierfs/tombstones/x", "") },
			".tierfs/tombstones/x: is no file of tierfs'",
		},
		"a damaged intent": {
			func(c *checked) {
				c.mkdir(".tierfs/intents")
				c.write(".tierfs/intents/"+c.inc.String()+"-00000000000000000040-0123456789abcdef", "")
			},
			"0123456789abcdef: is no valid record: ",
		},
		"a registry entry without a prefix": {func(c *checked) { c.write(".tierfs/partitions/"+c.inc.String(), "{}") }, "cannot be read: it has the prefix"},
	}
}

func TestCheckFinds(t *testing.T) {
	all := damages()
	maps.Copy(all, misplaced())
	for name, tc := range all {
		t.Run(name, func(t *testing.T) {
			c := newChecked(t)
			tc.damage(c)
			_, found, err := c.check()
			if err != nil || len(found) == 0 || !strings.Contains(found[0], tc.want) {
				t.Errorf("found %q, %v; want %q", found, err, tc.want)
			}
		})
	}
}

func TestCheckWithoutState(t *testing.T) {
	c := newChecked(t)
	if err := os.RemoveAll(filepath.Join(c.path, ".tierfs")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.check(); err == nil || !strings.Contains(err.Error(), "never been mounted") {
		t.Errorf("got %v", err)
	}
}

func TestCheckCostsListings(t *testing.T) {
	c := newChecked(t)
	if _, _, err := c.check(); err != nil || c.store.Count("list") != 1 || c.store.Count("head") != 0 {
		t.Errorf("%d listings, %d HEADs, %v", c.store.Count("list"), c.store.Count("head"), err)
	}
}

func TestCheckWhileTheStoreFails(t *testing.T) {
	for _, failing := range []string{"list", "head"} {
		t.Run(failing, func(t *testing.T) {
			c := newChecked(t)
			c.delete(c.key(c.remote) + ".log")
			c.store.SetHook(func(_ context.Context, op, _ string) error {
				if op == failing {
					return objstore.ErrTransient
				}
				return nil
			})
			if _, found, err := c.check(); !errors.Is(err, objstore.ErrTransient) || len(found) > 0 {
				t.Errorf("found %q, %v", found, err)
			}
		})
	}
}

// TestCheckOfWhatGoes: a segment is deleted after its record was read.
func TestCheckOfWhatGoes(t *testing.T) {
	c := newChecked(t)
	c.delete(c.key(c.remote) + ".log")
	c.store.SetHook(func(_ context.Context, op, _ string) error {
		if op == "head" {
			return os.Remove(filepath.Join(c.partition, "00000000000000000000.remote"))
		}
		return nil
	})
	if _, found, err := c.check(); err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
	}
}

// TestCheckKnowsWhatBrokersLeave: what Kafka leaves between two steps of a deletion is no hole.
func TestCheckKnowsWhatBrokersLeave(t *testing.T) {
	c := newChecked(t)
	c.write("meta.properties", "")
	c.write("orders-0/00000000000000000007.index", "")
	c.write("orders-0/00000000000000000007.log.deleted", "")
	c.write("orders-0/00000000000000000008.index.deleted", "")
	c.write("orders-0/00000000000000000009.snapshot", "")
	if err := os.Mkdir(filepath.Join(c.path, "orders-1.ab12-delete"), 0o700); err != nil {
		t.Fatal(err)
	}
	c.write("orders-1.ab12-delete/00000000000000000000.index", "")
	if _, found, err := c.check(); err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
	"github.com/tierfs/tierfs/tier"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// deepChecked is newChecked with real bytes: segment 0 is remote, the next one is
// uploaded, one more is local, and the last one is being written.
type deepChecked struct {
	*checked
	starts  []uint64
	logs    [][]byte
	indexes [][]byte
	records []marker.Record // of the first two
	done    []admin.Progress
}

func newDeepChecked(t *testing.T) *deepChecked {
	t.Helper()
	d := &deepChecked{checked: newChecked(t)}
	d.do(os.RemoveAll(d.partition))
	d.do(os.Mkdir(d.partition, 0o700))
	d.write("meta.properties", "")
	start := uint64(0)
	for range 4 {
		log, index, next := segmenttest.Kafka(start, 40, 2, 500)
		d.starts, d.logs, d.indexes = append(d.starts, start), append(d.logs, log), append(d.indexes, index)
		d.write(d.name(len(d.starts)-1, ".log"), string(log))
		d.write(d.name(len(d.starts)-1, ".index"), string(index))
		start = next
	}
	for i, suffix := range []string{".remote", ".uploaded"} {
		rec := marker.Record{
			Start: d.starts[i], End: d.starts[i+1] - 1, Size: int64(len(d.logs[i])), IndexSize: int64(len(d.indexes[i])),
			Incarnation: d.inc, UploadID: marker.NewUploadID(), LogHash: xxh3.Hash128(d.logs[i]).Bytes(),
		}
		d.records = append(d.records, rec)
		d.record(segment.Stem(rec.Start)+suffix, rec)
		d.putBytes(d.key(rec)+".log", d.logs[i])
		d.putBytes(d.key(rec)+".index", d.indexes[i])
	}
	d.do(os.Remove(filepath.Join(d.path, d.name(0, ".log"))))
	return d
}

// name is a file of segment number i, below the source.
func (d *deepChecked) name(i int, suffix string) string {
	return "orders-0/" + segment.Stem(d.starts[i]) + suffix
}

func (d *deepChecked) open(dir string) int {
	d.t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	d.do(err)
	d.t.Cleanup(func() { _ = unix.Close(fd) }) // read only
	return fd
}

func (d *deepChecked) rules() layout.Rules {
	d.t.Helper()
	rules, err := tier.LayoutOf(d.open(d.path), "", 0)
	d.do(err)
	return rules
}

func (d *deepChecked) putBytes(key string, b []byte) {
	d.t.Helper()
	d.do(d.store.Put(d.t.Context(), key, objstore.BytesBody(b), objstore.PutOptions{}))
}

func (d *deepChecked) check() ([]string, error) {
	d.t.Helper()
	_, found, err := d.run(func(c *checker) {
		c.deep = true
		c.progress = func(p admin.Progress) { d.done = append(d.done, p) }
	})
	return found, err
}

// deepDamage is what only a deep check finds, and what it says of it; nil: nothing is wrong.
type deepDamage struct {
	damage func(d *deepChecked)
	want   func(d *deepChecked) string
}

func deepDamages() map[string]deepDamage {
	flip := func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2] ^= 1; return b }
	moved := func(index []byte) []byte { // the last entry points into a batch
		index = bytes.Clone(index)
		at := index[len(index)-4:]
		binary.BigEndian.PutUint32(at, binary.BigEndian.Uint32(at)+1)
		return index
	}
	return map[string]deepDamage{
		"nothing": {func(*deepChecked) {}, nil},
		"a local segment": {
			func(d *deepChecked) { d.write(d.name(2, ".log"), string(flip(d.logs[2]))) },
			func(d *deepChecked) string { return d.name(2, ".log") + ": does not verify" },
		},
		"an empty one": {
			func(d *deepChecked) { d.write(d.name(2, ".log"), ""); d.write(d.name(2, ".index"), "") },
			func(d *deepChecked) string { return d.name(2, ".log") + ": does not verify" },
		},
		"an empty one that compaction left": {
			func(d *deepChecked) {
				d.write(d.name(2, ".log"), "")
				d.write(d.name(2, ".index"), "")
				d.write("orders-0/.tierfs-partition", `{"never":"compaction"}`)
			}, nil,
		},
		"an uploaded one": {
			func(d *deepChecked) { d.write(d.name(1, ".log"), string(flip(d.logs[1]))) },
			func(d *deepChecked) string { return d.name(1, ".log") + ": has other bytes than its record" },
		},
		"an index beside a local segment": {
			func(d *deepChecked) { d.write(d.name(2, ".index"), string(moved(d.indexes[2]))) },
			func(d *deepChecked) string { return d.name(2, ".index") + ": does not fit its segment" },
		},
		"an index beside a remote one": {
			func(d *deepChecked) { d.write(d.name(0, ".index"), string(moved(d.indexes[0]))) },
			func(d *deepChecked) string { return d.name(0, ".index") + ": does not fit its segment" },
		},
		"an index that its broker made anew": { // with entries elsewhere, all of them right
			func(d *deepChecked) { d.write(d.name(0, ".index"), string(d.indexes[0][8:])) }, nil,
		},
		"an object": {
			func(d *deepChecked) { d.putBytes(d.key(d.records[0])+".log", flip(d.logs[0])) },
			func(d *deepChecked) string { return d.name(0, ".remote") + ": its object " },
		},
		"an index's object": {
			func(d *deepChecked) { d.putBytes(d.key(d.records[0])+".index", moved(d.indexes[0])) },
			func(d *deepChecked) string { return "does not fit the segment" },
		},
	}
}

func TestDeepCheckFinds(t *testing.T) {
	for name, tc := range deepDamages() {
		t.Run(name, func(t *testing.T) {
			d := newDeepChecked(t)
			tc.damage(d)
			found, err := d.check()
			switch {
			case err != nil:
				t.Fatal(err)
			case tc.want == nil && len(found) > 0, tc.want != nil && (len(found) != 1 || !strings.Contains(found[0], tc.want(d))):
				t.Errorf("found %q", found)
			}
		})
	}
}

// TestDeepCheckOfWhatGoes: the objects of a deleted segment go between the listing
// and the reading, with the segment or, which is a loss, without it.
func TestDeepCheckOfWhatGoes(t *testing.T) {
	for name, deleted := range map[string]bool{"deleted": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			d := newDeepChecked(t)
			d.store.SetHook(func(_ context.Context, op, key string) error {
				if op != "get" || !strings.HasPrefix(key, d.key(d.records[0])) {
					return nil
				}
				if deleted {
					_ = os.Remove(filepath.Join(d.path, d.name(0, ".remote")))
				}
				return objstore.ErrNotFound
			})
			found, err := d.check()
			if err != nil {
				t.Fatal(err)
			}
			lost := slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, ".log is not in the store") })
			if lost == deleted || deleted && len(found) > 0 {
				t.Errorf("found %q", found)
			}
		})
	}
}

// TestDeepCheckWhileTheStoreFails: bytes that cannot be read are no bad bytes.
func TestDeepCheckWhileTheStoreFails(t *testing.T) {
	for _, failure := range []error{objstore.ErrTransient, objstore.ErrAuth} {
		d := newDeepChecked(t)
		d.store.SetHook(func(_ context.Context, op, _ string) error {
			if op == "get" {
				return failure
			}
			return nil
		})
		if found, err := d.check(); !errors.Is(err, failure) || len(found) > 0 {
			t.Errorf("%v: found %q, %v", failure, found, err)
		}
	}
}

// breaking is a store whose bodies break in the middle.
type breaking struct {
	objstore.Store
	err error
}

func (b breaking) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if !strings.HasSuffix(key, ".log") {
		return b.Store.GetRange(ctx, key, off, n)
	}
	body, err := b.Store.GetRange(ctx, key, off, n/2)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(body, iotest.ErrReader(b.err)), body}, nil
}

func TestDeepCheckWhileBodiesBreak(t *testing.T) {
	for _, failure := range []error{objstore.ErrTransient, objstore.ErrAuth} {
		d := newDeepChecked(t)
		_, found, err := d.run(func(c *checker) { c.deep, c.store = true, breaking{d.store, failure} })
		if !errors.Is(err, failure) || len(found) > 0 {
			t.Errorf("%v: found %q, %v", failure, found, err)
		}
	}
}

// slowly is a store whose first body breaks after minutes.
type slowly struct {
	objstore.Store
	broken bool
}

type lateBody struct {
	io.Reader
	io.Closer
}

func (s *slowly) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	body, err := s.Store.GetRange(ctx, key, off, n)
	if err != nil || s.broken || !strings.HasSuffix(key, ".log") {
		return body, err
	}
	s.broken = true
	return lateBody{readerFunc(func([]byte) (int, error) {
		time.Sleep(3 * time.Minute)
		return 0, objstore.ErrTransient
	}), body}, nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestDeepCheckOfLargeObjects: a connection that breaks after minutes, as one may in
// the middle of a large object, is replaced.
func TestDeepCheckOfLargeObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeepChecked(t)
		s := &slowly{Store: d.store}
		_, found, err := d.run(func(c *checker) { c.deep, c.store = true, brief(s, nil) })
		if err != nil || len(found) > 0 || !s.broken {
			t.Errorf("found %q, %v", found, err)
		}
	})
}

// TestDeepCheckShowsProgress: the objects of one partition may take hours.
func TestDeepCheckShowsProgress(t *testing.T) {
	d := newDeepChecked(t)
	if _, err := d.check(); err != nil {
		t.Fatal(err)
	}
	if len(d.done) != 4 || d.done[3] != (admin.Progress{Done: 4, Total: 4}) {
		t.Errorf("progress %v", d.done)
	}
}

// TestDeepCheckOfWhatChanges: a segment that was changed while it was read is left
// out, also if it has its size and its time again as after an eviction and back.
func TestDeepCheckOfWhatChanges(t *testing.T) {
	d := newDeepChecked(t)
	path := filepath.Join(d.path, d.name(1, ".log"))
	info, err := os.Stat(path)
	d.do(err)
	d.write(d.name(1, ".log"), strings.Repeat("x", len(d.logs[1])))
	d.do(os.Chtimes(path, time.Time{}, info.ModTime()))
	dir := d.open(d.partition)
	for _, meanwhile := range []bool{false, true} {
		found := 0
		c := &checker{deep: true, rules: d.rules(), report: func(admin.Finding) { found++ }}
		ctx := &beforeErr{t.Context(), func() {}}
		if meanwhile {
			ctx.do = func() { d.do(os.Chtimes(path, time.Time{}, info.ModTime())) }
		}
		d.do(c.deepLocal(ctx, dir, "orders-0", d.starts[1]))
		if want := map[bool]int{true: 0, false: 1}[meanwhile]; found != want {
			t.Errorf("changed meanwhile %v: %d findings", meanwhile, found)
		}
	}
}

// beforeErr does something whenever a context is asked whether it goes on, as it is before each read.
type beforeErr struct {
	context.Context
	do func()
}

func (c *beforeErr) Err() error { c.do(); return c.Context.Err() }

// TestDeepCheckLeavesNoPages: what a check reads does not stay in memory.
func TestDeepCheckLeavesNoPages(t *testing.T) {
	d := newDeepChecked(t)
	disk := tiertest.SmallDisk(t, 0)
	path := filepath.Join(disk, segment.Stem(d.starts[2])+".log")
	d.do(os.WriteFile(path, d.logs[2], 0o600))
	f, err := os.Open(path)
	d.do(err)
	defer f.Close()
	d.do(f.Sync())
	fd := int(f.Fd())
	d.do(unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
	dir, err := unix.Open(disk, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	d.do(err)
	defer unix.Close(dir)
	c := &checker{deep: true, rules: d.rules(), report: func(f admin.Finding) { t.Errorf("found %+v", f) }}
	d.do(c.deepLocal(t.Context(), dir, "orders-0", d.starts[2]))
	var st unix.Cachestat_t
	d.do(unix.Cachestat(uint(fd), &unix.CachestatRange{}, &st, 0))
	if st.Cache != 0 {
		t.Errorf("%d pages stay in memory", st.Cache)
	}
}

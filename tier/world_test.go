package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// world is a source directory as a broker left it, a store, and the volume on top.
type world struct {
	t     *testing.T
	path  string
	root  int
	store *sim.Store
	v     *Volume
	step  func(string)
	grace time.Duration
	take  bool
	tune  func(*Options) // what else the volume is opened with

	starts []uint64
	logs   map[uint64][]byte
}

func newWorld(t *testing.T, segments int) *world {
	t.Helper()
	w := &world{t: t, path: t.TempDir(), store: sim.New(sim.Options{}), logs: map[uint64][]byte{}, root: -1}
	w.mkdir("t-0")
	w.write("meta.properties", []byte("node.id=1\n"))
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		w.write(name, []byte("0\n1\nt 0 1000000\n"))
	}
	next := uint64(0)
	for range segments {
		w.addSegment("t-0", &next)
	}
	w.open()
	t.Cleanup(w.close)
	return w
}

func (w *world) addSegment(dir string, next *uint64) {
	start := *next
	log, index, end := segmenttest.Kafka(start, 8, 5, 200)
	w.starts = append(w.starts, start)
	w.logs[start] = log
	w.write(fmt.Sprintf("%s/%020d.log", dir, start), log)
	w.write(fmt.Sprintf("%s/%020d.index", dir, start), index)
	*next = end
}

func (w *world) mkdir(name string) {
	w.t.Helper()
	w.do(os.Mkdir(filepath.Join(w.path, name), 0o755))
}

func (w *world) write(name string, b []byte) {
	w.t.Helper()
	w.do(os.WriteFile(filepath.Join(w.path, name), b, 0o644))
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) open() {
	w.t.Helper()
	w.do(w.tryOpen())
}

func (w *world) tryOpen() (err error) {
	if w.root < 0 {
		w.root, err = unix.Open(w.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		w.do(err)
	}
	opt := Options{
		Root: w.root, Store: w.store, Prefix: "p", DeleteGrace: w.grace, TakeOwnership: w.take,
		Step: func(name string) {
			if w.step != nil {
				w.step(name)
			}
		},
	}
	if w.tune != nil {
		w.tune(&opt)
	}
	w.v, err = Open(w.t.Context(), opt)
	return err
}

func (w *world) close() {
	if w.v != nil {
		_ = w.v.Close()
		w.v = nil
	}
	if w.root >= 0 {
		_ = unix.Close(w.root)
		w.root = -1
	}
}

func (w *world) reopen() {
	w.t.Helper()
	w.step = nil
	w.close()
	w.open()
}

func (w *world) dir(path string) Dir {
	w.t.Helper()
	fd, err := unix.Openat(w.root, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.do(err)
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	h, err := handle.At(fd, "")
	w.do(err)
	return Dir{fd, h}
}

func (w *world) partition(path string) *Partition {
	w.t.Helper()
	p, ok := w.v.PartitionOf(path)
	if !ok {
		w.t.Fatalf("no partition %s", path)
	}
	return p
}

func (w *world) segment(path string, start uint64) Segment {
	w.t.Helper()
	for _, s := range w.partition(path).Segments() {
		if s.Start == start {
			return s
		}
	}
	w.t.Fatalf("no segment %d in %s", start, path)
	return Segment{}
}

// upload takes one segment to the store as the uploader does.
func (w *world) upload(path string, start uint64) error {
	w.t.Helper()
	return w.uploadSegment(w.partition(path), w.segment(path, start))
}

func (w *world) uploadSegment(p *Partition, s Segment) error {
	u, err := w.v.Prepare(w.t.Context(), p, s)
	if err != nil {
		return err
	}
	defer u.Close()
	for _, o := range u.Objects {
		if err := w.store.Put(w.t.Context(), o.Key, o.Body, objstore.PutOptions{IfAbsent: true, Metadata: o.Metadata}); err != nil {
			return errors.Join(err, u.Abort())
		}
	}
	return u.Commit()
}

func (w *world) evict(path string, start uint64) error {
	w.t.Helper()
	return w.v.Evict(w.t.Context(), w.partition(path), w.segment(path, start))
}

// remote brings a segment to the remote state.
func (w *world) remote(start uint64) {
	w.t.Helper()
	w.do(w.upload("t-0", start))
	w.do(w.evict("t-0", start))
}

// content reads a file as the broker would, whole.
func (w *world) content(d Dir, name string) ([]byte, error) {
	e, err := w.v.Lookup(d, name)
	if err != nil {
		return nil, err
	}
	defer e.File.Release()
	b, err := w.bytesOf(e.File)
	if err == nil && int64(len(b)) != e.Stat.Size {
		err = fmt.Errorf("%s: size %d, but %d bytes", name, e.Stat.Size, len(b))
	}
	return b, err
}

func (w *world) bytesOf(f *File) ([]byte, error) {
	src := f.Source()
	defer src.Release()
	if src.err != nil {
		return nil, src.err
	}
	if !src.Local() {
		key, err := w.v.key(src.rec, ".log")
		if err != nil {
			return nil, err
		}
		b, ok := w.store.Bytes(key)
		if !ok {
			return nil, fmt.Errorf("object %s is missing", key)
		}
		return b, nil
	}
	fd, err := f.open(unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	b := make([]byte, st.Size)
	_, err = fdReader(fd).ReadAt(b, 0)
	return b, err
}

func (w *world) wantContent(d Dir, name string, want []byte) {
	w.t.Helper()
	b, err := w.content(d, name)
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	if !bytes.Equal(b, want) {
		w.t.Fatalf("%s: %d bytes differ from the %d expected", name, len(b), len(want))
	}
}

func (w *world) wantState(path string, start uint64, want State) {
	w.t.Helper()
	if got := w.segment(path, start).State; got != want {
		w.t.Fatalf("segment %d is %v, want %v", start, got, want)
	}
}

func (w *world) wantRefused(err error, want layout.Reason) {
	w.t.Helper()
	var r *Refused
	if !errors.As(err, &r) || r.Reason != want {
		w.t.Fatalf("got %v, want a refusal: %s", err, want)
	}
}

// below lists a directory below, hidden names included.
func (w *world) below(path string) []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.path, path))
	w.do(err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// empty unlinks all that the broker sees in a directory.
func (w *world) empty(path string) {
	w.t.Helper()
	d := w.dir(path)
	for _, n := range w.below(path) {
		if vis, ok := Visible(n); ok {
			w.do(w.v.Unlink(d, vis))
		}
	}
}

// retireAll ends every grace and deletes what may go.
func (w *world) retireAll() {
	w.t.Helper()
	w.do(w.retireDue())
}

func (w *world) retireDue() error {
	due, _ := w.v.Due(time.Now().Add(24*time.Hour), 1000)
	_, err := w.v.Retire(w.t.Context(), due)
	return err
}

// link gives a file of the partition a second name there.
func (w *world) link(from, to string) error {
	d := w.dir("t-0")
	e, err := w.v.Lookup(d, from)
	if err != nil {
		return err
	}
	defer e.File.Release()
	l, err := w.v.Link(e.File, d, to)
	if err == nil {
		l.File.Release()
	}
	return err
}

// logObjects are the keys of segments in the store.
func (w *world) logObjects() []string {
	var out []string
	for _, k := range w.store.Keys() {
		if strings.HasSuffix(k, ".log") {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// liveObjects are the keys that segments and other files name.
func (w *world) liveObjects() []string {
	var out []string
	w.v.mu.RLock()
	files := make([]*File, 0)
	for _, f := range w.v.files {
		files = append(files, f)
	}
	w.v.mu.RUnlock()
	for _, f := range files {
		if rec, ok := f.Record(); ok {
			key, err := w.v.key(rec, ".log")
			w.do(err)
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// mutate does what fs does for a change of bytes.
func (w *world) mutate(d Dir, name string, m Mutation, change func(fd int) error) error {
	e, err := w.v.Lookup(d, name)
	if err != nil {
		return err
	}
	defer e.File.Release()
	fd, err := e.File.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	e.File.Opened(true)
	defer e.File.Closed(true)
	done, err := e.File.Mutate(context.Background(), m)
	if err != nil {
		return err
	}
	defer done()
	return change(fd)
}

func overwrite(at int64, b []byte) func(int) error {
	return func(fd int) error {
		_, err := unix.Pwrite(fd, b, at)
		return err
	}
}

func truncate(size int64) func(int) error {
	return func(fd int) error { return unix.Ftruncate(fd, size) }
}

func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

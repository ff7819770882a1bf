package chunkcache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tierfs/tierfs/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// get is one GetRange that a fakeStore served.
type get struct {
	key    string
	off, n int64
}

// fakeStore serves byte slices, remembers what it was asked for, and does what its hooks say.
type fakeStore struct {
	objstore.Store // only GetRange is ever called

	mu      sync.Mutex
	objects map[string][]byte
	gets    []get
	// before is called before a range is served; it may wait, or fail the call.
	before func(ctx context.Context, g get) error
	// mangle may change the bytes that are served.
	mangle func(g get, b []byte) []byte
	// gate is called before each piece of a body; it may wait.
	gate func(ctx context.Context, g get, pos int64) error
}

func newFakeStore() *fakeStore { return &fakeStore{objects: map[string][]byte{}} }

func (s *fakeStore) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	g := get{key, off, n}
	s.mu.Lock()
	data, ok := s.objects[key]
	s.gets = append(s.gets, g)
	before, mangle, gate := s.before, s.mangle, s.gate
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, g); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !ok {
		return nil, fmt.Errorf("get %s: %w", key, objstore.ErrNotFound)
	}
	if off < 0 || n <= 0 || off+n > int64(len(data)) {
		return nil, fmt.Errorf("get %s: %w", key, objstore.ErrRange)
	}
	b := data[off : off+n]
	if mangle != nil {
		b = mangle(g, bytes.Clone(b))
	}
	return &body{ctx: ctx, g: g, b: b, gate: gate}, nil
}

type body struct {
	ctx  context.Context
	g    get
	b    []byte
	pos  int64
	gate func(ctx context.Context, g get, pos int64) error
}

func (b *body) Read(p []byte) (int, error) {
	if b.gate != nil {
		if err := b.gate(b.ctx, b.g, b.pos); err != nil {
			return 0, err
		}
	}
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	if b.pos == int64(len(b.b)) {
		if b.pos < b.g.n {
			return 0, fmt.Errorf("%w: %w", objstore.ErrShort, io.ErrUnexpectedEOF)
		}
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 16<<10)], b.b[b.pos:])
	b.pos += int64(n)
	return n, nil
}

func (b *body) Close() error { return nil }

// count returns how many GETs there were; bytes how many bytes they asked for; overlap whether any was asked for twice.
func (s *fakeStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.gets)
}

func (s *fakeStore) reset() []get {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.gets
	s.gets = nil
	return out
}

func (s *fakeStore) set(change func(*fakeStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// twice returns a range that is in two of the GETs, if there is one.
func twice(gets []get) (get, bool) {
	gets = slices.Clone(gets)
	slices.SortFunc(gets, func(a, b get) int { return int(a.off - b.off) })
	for i := 1; i < len(gets); i++ {
		if gets[i-1].off+gets[i-1].n > gets[i].off {
			return gets[i], true
		}
	}
	return get{}, false
}

// The test's batches: length u32, XXH3-64 u64 of what follows, payload. length counts all of it.
const batchHeader = 12

func makeBatch(r *rand.Rand, size int) []byte {
	b := make([]byte, size)
	for i := batchHeader; i < size; i += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], r.Uint64())
		copy(b[i:], w[:])
	}
	binary.LittleEndian.PutUint32(b, uint32(size))
	binary.LittleEndian.PutUint64(b[4:], xxh3.Hash(b[batchHeader:]))
	return b
}

func checkBatches(data []byte) (covered int64, err error) {
	for len(data) >= batchHeader {
		n := binary.LittleEndian.Uint32(data)
		if n < batchHeader {
			return covered, errors.New("not a batch")
		}
		if int(n) > len(data) {
			break
		}
		if xxh3.Hash(data[batchHeader:n]) != binary.LittleEndian.Uint64(data[4:]) {
			return covered, errors.New("batch checksum")
		}
		covered, data = covered+int64(n), data[n:]
	}
	return covered, nil
}

// object makes an object of at least size bytes in s. Batches have up to maxBatch bytes; the index names one of every few.
func (s *fakeStore) object(key string, size, maxBatch int) (Object, []byte) {
	o, data, _ := s.indexed(key, size, maxBatch)
	return o, data
}

// indexed is object, and returns the index too.
func (s *fakeStore) indexed(key string, size, maxBatch int) (Object, []byte, []int64) {
	r := rand.New(rand.NewPCG(uint64(size), xxh3.HashString(key)))
	var data []byte
	index := []int64{0}
	for len(data) < size {
		if at := int64(len(data)); at-index[len(index)-1] >= 4096 && r.IntN(3) > 0 {
			index = append(index, at)
		}
		data = append(data, makeBatch(r, batchHeader+r.IntN(maxBatch))...)
	}
	s.mu.Lock()
	s.objects[key] = data
	s.mu.Unlock()
	return Object{
		Key: key, Size: int64(len(data)), Label: "topic",
		Index: func(context.Context) ([]int64, error) { return slices.Clone(index), nil },
		Check: checkBatches,
	}, data, index
}

// tb is what *testing.T, *testing.B and *rapid.T have in common.
type tb interface {
	rapid.TB
	Cleanup(func())
	Context() context.Context
	Output() io.Writer
}

// fixture is a cache on a directory that outlives it.
type fixture struct {
	t     tb
	dir   string
	opts  Options
	store *fakeStore
	*Cache
}

func newFixture(t tb, change func(*Options)) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "chunkcache")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return newFixtureAt(t, dir, change)
}

func newFixtureAt(t tb, dir string, change func(*Options)) *fixture {
	t.Helper()
	s := newFakeStore()
	f := &fixture{t: t, dir: dir, store: s, opts: Options{
		Store: s, ChunkSize: 256 << 10, Size: 64 << 20, SizePercent: 100, FirstFetch: 32 << 10, MaxObjects: 1000, ReadaheadMax: 4, TrimMinInterval: time.Hour,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	if change != nil {
		change(&f.opts)
	}
	fd, err := unix.Open(f.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.opts.Dir = fd
	t.Cleanup(func() {
		if f.Cache != nil {
			f.stop()
		}
		unix.Close(fd)
	})
	f.start()
	return f
}

func (f *fixture) start() {
	f.t.Helper()
	c, err := New(f.opts)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Cache = c
}

func (f *fixture) stop() {
	f.t.Helper()
	if err := f.Cache.Close(); err != nil {
		f.t.Error(err)
	}
	if lent := f.buffers.lent.Load(); lent != 0 {
		f.t.Errorf("%d bytes of buffers were not given back", lent)
	}
	f.Cache = nil
}

func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

// read reads and compares. It may be called from any goroutine.
func (f *fixture) read(o Object, data []byte, off, n int64) {
	f.t.Helper()
	if err := f.tryRead(o, data, off, n); err != nil {
		f.t.Errorf("%s [%d, +%d): %v", o.Key, off, n, err)
	}
}

func (f *fixture) tryRead(o Object, data []byte, off, n int64) error {
	f.t.Helper()
	p := make([]byte, n)
	if err := f.ReadAt(context.Background(), o, p, off); err != nil {
		return err
	}
	if !bytes.Equal(p, data[off:off+n]) {
		f.t.Errorf("%s: wrong bytes in [%d, +%d)", o.Key, off, n)
	}
	return nil
}

// settleDown waits until nothing is queued, fetched or written, and the walk is over.
func (f *fixture) settleDown() {
	f.t.Helper()
	<-f.walkDone
	f.until("idle", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for k := range f.queues {
			if f.queues[k].Len() > 0 {
				return false
			}
		}
		for _, o := range f.objects {
			if o.index != nil {
				return false
			}
			for _, e := range o.extents {
				if e.state < stored {
					return false
				}
			}
		}
		return f.busy == 0 && f.writing == 0 && f.space.dying == 0
	})
}

func (f *fixture) until(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("not %s after 20 s", what)
		}
	}
}

// files returns the paths of all chunk files.
func (f *fixture) files() []string {
	f.t.Helper()
	names, err := filepath.Glob(filepath.Join(f.dir, chunksDir, "*", "*"))
	if err != nil {
		f.t.Fatal(err)
	}
	return names
}

// onDisk is what the chunk files take, in bytes, but for what others appended to them.
func (f *fixture) onDisk() (n int64) {
	f.t.Helper()
	for _, name := range f.files() {
		_, length, _, ok := parseFileName(filepath.Base(name))
		if st, err := os.Stat(name); err == nil && ok {
			n += min(st.Size(), fileSize(length))
		}
	}
	return n
}

// consistent compares the accounting of an idle cache with what it accounts for.
func (f *fixture) consistent() {
	f.t.Helper()
	f.settleDown()
	f.mu.Lock()
	defer f.mu.Unlock()
	var used, heldBytes, aheadBytes int64
	var files, open int
	for h, o := range f.objects {
		if o.hash != h || o.users != 0 || o.loads != 0 || o.key != "" && f.byKey[o.key] != o || len(o.extents) == 0 {
			f.t.Fatalf("object %+v", o)
		}
		end := int64(-1)
		for _, e := range o.extents {
			if e.start < end || e.pins != 0 || e.list == nil || (e.load == nil) != (e.state == stored) {
				f.t.Fatalf("extent %+v after %d", e, end)
			}
			end = e.end
			used += e.size
			if e.state == stored {
				files++
			} else {
				heldBytes += e.length()
			}
			if e.ahead {
				aheadBytes += e.length()
			}
			if e.file != nil {
				open++
				if f.open[e.slot-1] != e {
					f.t.Fatalf("extent %+v is not open at its slot", e)
				}
			}
		}
	}
	if s := f.space; used != s.used || files != s.files || heldBytes != f.heldBytes || aheadBytes != f.aheadBytes || open != len(f.open) {
		f.t.Fatalf("used %d %d, files %d %d, held %d %d, ahead %d %d, open %d %d", used, s.used, files, s.files, heldBytes, f.heldBytes,
			aheadBytes, f.aheadBytes, open, len(f.open))
	}
}

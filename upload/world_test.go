package upload

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/segment/segmenttest"
	"github.com/tierfs/tierfs/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each test segment has perSegment records.
const perSegment = 10

// segmentSize is its size in bytes.
var segmentSize = func() int64 {
	log, _, _ := segmenttest.Kafka(0, 2, perSegment/2, 1000)
	return int64(len(log))
}()

// world is a source directory as Kafka left it, a store, and the background of the
// volume on top. Everything runs in a bubble with a fake clock, which stands a
// year behind the records of segmenttest.
type world struct {
	t     *testing.T
	path  string
	root  int
	store *sim.Store
	puts  *recorder
	v     *tier.Volume
	b     *Background
	logs  syncBuffer

	opt   Options
	tier  tier.Options
	stop  context.CancelFunc
	ended chan struct{}
	dirs  []int
}

// bubble runs a test with its own clock. Nothing is left running.
func bubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(segmenttest.Epoch.Add(time.Hour)))
		w := &world{t: t, path: t.TempDir(), store: sim.New(sim.Options{})}
		w.puts = &recorder{Store: w.store}
		w.tier = tier.Options{Store: w.store, Prefix: "p", DeleteGrace: time.Hour}
		w.opt = Options{
			Store:             w.puts,
			Features:          func() objstore.Features { return objstore.Features{EnforcesChecksum: true, ConditionalPut: true} },
			ConditionalWrites: true,
			Retention:         keepAll(),
			Disk:              func() (Disk, error) { return Disk{Used: 1, Total: 100}, nil },
		}
		w.write("meta.properties", []byte("node.id=1\n"))
		defer w.close()
		test(w)
	})
}

// keepAll uploads everything and evicts nothing.
func keepAll() Retention {
	return Retention{For: func(string) Rule { return Rule{Tiered: true, Age: time.Duration(Unlimited), Size: Unlimited} }}
}

func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name string, b []byte) {
	w.t.Helper()
	w.do(os.WriteFile(filepath.Join(w.path, name), b, 0o644))
}

// checkpoint writes both of Kafka's checkpoints: nothing below the offset is needed.
func (w *world) checkpoint(offsets map[string]uint64) {
	w.t.Helper()
	var lines []string
	for partition, offset := range offsets {
		dash := strings.LastIndexByte(partition, '-')
		lines = append(lines, fmt.Sprintf("%s %s %d\n", partition[:dash], partition[dash+1:], offset))
	}
	text := []byte(fmt.Sprintf("0\n%d\n%s", len(lines), strings.Join(lines, "")))
	w.write("recovery-point-offset-checkpoint", text)
	w.write("replication-offset-checkpoint", text)
}

// fill lays a partition with sealed segments and an empty active one, before the
// volume is opened. It returns the starts of the sealed ones.
func (w *world) fill(dir string, sealed int) []uint64 {
	w.t.Helper()
	w.do(os.Mkdir(filepath.Join(w.path, dir), 0o755))
	starts := make([]uint64, sealed)
	for i := range sealed {
		starts[i] = uint64(i * perSegment)
		log, index, _ := segmenttest.Kafka(starts[i], 2, perSegment/2, 1000)
		w.write(logName(dir, starts[i]), log)
		w.write(strings.TrimSuffix(logName(dir, starts[i]), ".log")+".index", index)
	}
	w.write(logName(dir, uint64(sealed*perSegment)), nil)
	return starts
}

func logName(dir string, start uint64) string { return fmt.Sprintf("%s/%020d.log", dir, start) }

// open opens the volume and runs the background.
func (w *world) open() {
	w.t.Helper()
	w.openVolume()
	w.run()
}

func (w *world) openVolume() {
	w.t.Helper()
	var err error
	w.root, err = unix.Open(w.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.do(err)
	w.tier.Root = w.root
	w.v, err = tier.Open(w.t.Context(), w.tier)
	w.do(err)
}

func (w *world) run() {
	w.opt.Volume = w.v
	w.opt.Log = slog.New(slog.NewTextHandler(&w.logs, nil))
	w.b = New(w.opt)
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.ended = cancel, make(chan struct{})
	go func() {
		defer close(w.ended)
		_ = w.b.Run(ctx)
	}()
}

func (w *world) halt() {
	if w.stop != nil {
		w.stop()
		<-w.ended
		w.stop = nil
	}
}

func (w *world) close() {
	w.halt()
	if w.v != nil {
		_ = w.v.Close()
		for _, fd := range append(w.dirs, w.root) {
			_ = unix.Close(fd)
		}
		w.v, w.dirs = nil, nil
	}
}

// after lets time pass and every loop settle.
func (w *world) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) dir(path string) tier.Dir {
	w.t.Helper()
	fd, err := unix.Openat(w.root, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.do(err)
	w.dirs = append(w.dirs, fd)
	h, err := handle.At(fd, "")
	w.do(err)
	return tier.Dir{FD: fd, Handle: h}
}

func (w *world) partition(path string) *tier.Partition {
	w.t.Helper()
	p, ok := w.v.PartitionOf(path)
	if !ok {
		w.t.Fatalf("no partition %s", path)
	}
	return p
}

// states are the states of a partition's segments in order, one letter each:
// l(ocal), u(ploaded), r(emote), q(uarantined).
func (w *world) states(path string) string {
	w.t.Helper()
	out := ""
	for _, s := range w.partition(path).Segments() {
		out += s.State.String()[:1]
	}
	return out
}

func (w *world) want(path, states string) {
	w.t.Helper()
	if got := w.states(path); got != states {
		w.t.Fatalf("%s at %v: segments are %s, want %s\n%s", path, time.Now(), got, states, w.logs.String())
	}
}

// create makes a file through the volume, as the broker does, and leaves it open.
func (w *world) create(dir, name string, b []byte) *openFile {
	w.t.Helper()
	fd, e, err := w.v.Create(w.dir(dir), name, unix.O_RDWR, 0o644)
	w.do(err)
	e.File.Opened(true)
	f := &openFile{w, fd, e.File}
	f.write(0, b)
	return f
}

// edit opens a file through the volume.
func (w *world) edit(dir, name string) *openFile {
	w.t.Helper()
	d := w.dir(dir)
	e, err := w.v.Lookup(d, name)
	w.do(err)
	fd, err := unix.Openat(d.FD, name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	w.do(err)
	e.File.Opened(true)
	return &openFile{w, fd, e.File}
}

type openFile struct {
	w    *world
	fd   int
	file *tier.File
}

func (f *openFile) write(off int64, b []byte) {
	f.w.t.Helper()
	if len(b) == 0 {
		return
	}
	done, err := f.file.Mutate(f.w.t.Context(), tier.Mutation{Kind: tier.Write})
	f.w.do(err)
	_, err = unix.Pwrite(f.fd, b, off)
	done()
	f.w.do(err)
}

func (f *openFile) sync() { f.file.Synced() }

func (f *openFile) close() {
	_ = unix.Close(f.fd)
	f.file.Closed(true)
	f.file.Release()
}

// recorder keeps what was put, in order, with the options.
type recorder struct {
	objstore.Store
	mu   sync.Mutex
	keys []string
	opts map[string]objstore.PutOptions
	at   []time.Time
}

func (r *recorder) Put(ctx context.Context, key string, body objstore.Body, opts objstore.PutOptions) error {
	r.mu.Lock()
	r.keys = append(r.keys, key)
	r.at = append(r.at, time.Now())
	if r.opts == nil {
		r.opts = map[string]objstore.PutOptions{}
	}
	r.opts[key] = opts
	r.mu.Unlock()
	return r.Store.Put(ctx, key, body, opts)
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.keys)
}

// times are those of all puts.
func (r *recorder) times() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.at)
}

// logs are the puts of segments: partition directory and start of each.
func (r *recorder) logs() []string {
	var out []string
	for _, k := range r.all() {
		if strings.HasSuffix(k, ".log") {
			out = append(out, short(k))
		}
	}
	return out
}

// short turns p/VOLUME/t-0/INCARNATION/START-UPLOAD.log into t-0/START.
func short(key string) string {
	parts := strings.Split(key, "/")
	if len(parts) != 5 {
		return key
	}
	return parts[2] + "/" + strings.TrimLeft(parts[4][:19], "0") + parts[4][19:20]
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// stayed is a Result's reasons with their numbers of segments.
func stayed(r Result) map[layout.Reason]int64 {
	out := map[layout.Reason]int64{}
	for why, a := range r.Stayed {
		out[why] = a.Segments
	}
	return out
}

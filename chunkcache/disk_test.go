package chunkcache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDamage(t *testing.T) {
	for _, how := range damages {
		for _, open := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, open %v", how, open), func(t *testing.T) {
				f := newFixture(t, nil)
				o, data := f.store.object("k", 300<<10, 3000)
				f.read(o, data, 0, o.Size)
				f.settleDown()
				if !open {
					f.restart()
				}
				for _, name := range f.files() {
					damage(t, name, how, 0.5)
				}
				f.read(o, data, 0, o.Size)
				f.read(o, data, 0, o.Size)
				f.consistent()
			})
		}
	}
}

// TestMovedFile: the same name in the directory of another object; all but the object in its header is right.
func TestMovedFile(t *testing.T) {
	f := newFixture(t, nil)
	a, aData := f.store.object("a", 20<<10, 3000)
	b, bData := f.store.object("b", 20<<10, 3000)
	f.read(a, aData, 0, 10<<10)
	f.settleDown()
	from := f.files()[0]
	f.read(b, bData, 0, 10<<10)
	f.settleDown()
	f.stop()
	for _, name := range f.files() {
		if name == from {
			continue
		}
		if err := errors.Join(os.Remove(name), os.Rename(from, filepath.Join(filepath.Dir(name), filepath.Base(from)))); err != nil {
			t.Fatal(err)
		}
	}
	f.start()
	f.read(a, aData, 0, 10<<10)
	f.read(b, bData, 0, 10<<10)
	f.consistent()
}

func TestWalk(t *testing.T) {
	f := newFixture(t, nil)
	o, data := f.store.object("topic-1/00.log", 1<<20, 3000)
	f.read(o, data, 0, o.Size)
	f.settleDown()
	object := filepath.Dir(f.files()[0])
	var whole string
	for _, name := range f.files() {
		if whole == "" || strings.Contains(name, "00000000000000000000-") {
			whole = name
		}
	}
	f.stop()

	write := func(name string) {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(chunksDir, filepath.Base(object), name) }
	gone := []string{
		in("00000000000000000000-100-0123456789abcdef.part"), in("something"), filepath.Join(chunksDir, "stranger"),
		in("00000000000000000001-100-0123456789abcdef"), // overlaps
	}
	for _, name := range gone {
		write(name)
	}
	empty := filepath.Join(chunksDir, strings.Repeat("0", 32)+"-empty")
	if err := errors.Join(os.Mkdir(filepath.Join(f.dir, empty), 0o700), os.Symlink("x", filepath.Join(f.dir, in("link")))); err != nil {
		t.Fatal(err)
	}
	gone = append(gone, empty, in("link"))
	write("not ours")

	f.start()
	f.consistent()
	for _, name := range gone {
		if _, err := os.Lstat(filepath.Join(f.dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	for _, name := range []string{"not ours", tagFile} {
		if _, err := os.Lstat(filepath.Join(f.dir, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(whole); err != nil {
		t.Error(err)
	}
	f.store.reset()
	f.read(o, data, 0, o.Size)
	if n := f.store.count(); n > 0 {
		t.Errorf("%d GETs", n)
	}
}

// TestReadBeforeWalk: reads find what is on the disk before the directory has been looked through, and are served from the
// store and memory where it is not; nothing is written until then.
func TestReadBeforeWalk(t *testing.T) {
	f := newFixture(t, nil)
	o, data := f.store.object("a", 100<<10, 3000)
	f.read(o, data, 0, o.Size)
	f.settleDown()
	f.stop()
	f.start()
	<-f.walkDone
	f.mu.Lock() // as if the walk had only begun
	f.walked, f.walkDone, f.scanned = false, make(chan struct{}), map[hash]string{}
	f.objects, f.byKey, f.lru, f.open, f.space.used, f.space.files = map[hash]*object{}, map[string]*object{}, lru{}, nil, 0, 0
	f.mu.Unlock()
	f.store.reset()
	f.read(o, data, 0, o.Size)
	if n := f.store.count(); n > 0 {
		t.Errorf("%d GETs of what is on the disk", n)
	}
	other, otherData := f.store.object("b", 100<<10, 3000)
	f.read(other, otherData, 0, 1000)
	f.read(other, otherData, 0, 1000)
	if n := f.store.count(); n != 1 {
		t.Errorf("%d GETs", n)
	}
	if files := f.files(); len(files) != f.Stats().Chunks {
		t.Errorf("%d files, %+v", len(files), f.Stats())
	}
	f.walk()
	f.consistent()
	if n := len(f.files()); n < 2 {
		t.Errorf("%d files", n)
	}
}

func TestLeftovers(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.MaxObjects = 100 })
	f.stop()
	for i := range 3000 {
		dir := filepath.Join(f.dir, chunksDir, dirName(hashKey(fmt.Sprint(i%300)), fmt.Sprint(i%300)))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		e := extent{start: int64(i) * 100, end: int64(i)*100 + 100, nonce: uint64(i)}
		if err := os.WriteFile(filepath.Join(dir, fileName(&e)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.start()
	f.settleDown()
	f.until("within its limit", func() bool { return f.Stats().Chunks <= 100 })
	f.consistent()
	if n := len(f.files()); n > 100 {
		t.Errorf("%d files", n)
	}
}

// tmpfs mounts a file system of a few MiB, that of the test.
func tmpfs(t *testing.T, size string) string {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, "2m")
	if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFixtureAt(t, dir, nil)
	o, data := f.store.object("k", 4<<20, 3000)
	for off := int64(0); off < o.Size; off += 100_000 {
		f.read(o, data, off, min(100_000, o.Size-off))
	}
	f.settleDown()
	if st := f.Stats(); !st.Degraded || st.Bytes > 1<<20 {
		t.Errorf("%+v", st)
	}
	f.consistent()
	if err := os.Remove(filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.retryAt = time.Time{}
	f.mu.Unlock()
	f.refreshBudget()
	another, anotherData := f.store.object("another", 300<<10, 3000) // of the first one, much is in memory
	f.read(another, anotherData, 0, another.Size)
	f.consistent()
	if st := f.Stats(); st.Degraded || st.Budget != 2<<20 {
		t.Errorf("%+v", st)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := tmpfs(t, "8m")
	f := newFixtureAt(t, dir, nil)
	o, data := f.store.object("k", 1<<20, 3000)
	f.read(o, data, 0, 100_000)
	f.settleDown()
	for _, e := range f.open { // a file open for writing would keep the mount writable
		e.file.close()
		e.file, e.slot = nil, 0
	}
	f.open = nil
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	f.store.reset()
	f.read(o, data, 0, 100_000)
	if n := f.store.count(); n > 0 {
		t.Errorf("%d GETs of what is on the disk", n)
	}
	f.read(o, data, 0, o.Size)
	f.settleDown()
	if !f.Stats().Degraded {
		t.Errorf("%+v", f.Stats())
	}
	if err := f.Cache.Close(); !errors.Is(err, unix.EROFS) {
		t.Errorf("close: %v", err)
	}
	f.start() // a start on it works as well
	f.settleDown()
	f.read(o, data, 0, o.Size)
	if err := f.Cache.Close(); !errors.Is(err, unix.EROFS) {
		t.Errorf("close: %v", err)
	}
	f.Cache = nil
}

func TestDegradedReads(t *testing.T) {
	f := newFixture(t, nil)
	<-f.walkDone
	f.diskFailed("test", errors.New("sick"))
	o, data := f.store.object("k", 1<<20, 3000)
	for off := int64(0); off < 96<<10; off += 4096 {
		f.read(o, data, off, 4096)
	}
	// Each first fetch is kept in memory, so that reads of small steps do not cost a GET each; nothing is fetched behind.
	if n := f.store.count(); n > 3 {
		t.Errorf("%d GETs", n)
	}
	big, bigData := f.store.object("big", 40<<20, 100_000)
	f.read(big, bigData, 0, big.Size)
	f.consistent()
	if f.heldBytes > heldLimit {
		t.Errorf("%d bytes held", f.heldBytes)
	}
	f.Drop("big")
	f.consistent()
	if len(f.files()) > 0 {
		t.Error("written to a disk that fails")
	}
}

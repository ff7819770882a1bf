package tier

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/segment"
)

func name(start uint64) string { return segment.Stem(start) + ".log" }

func TestUploadAndEvict(t *testing.T) {
	w := newWorld(t, 4)
	d := w.dir("t-0")
	start := w.starts[0]
	var before unix.Stat_t
	w.do(unix.Fstatat(d.FD, name(start), &before, 0))

	w.wantRefused(w.evict("t-0", start), ReasonNotYet)
	w.do(w.upload("t-0", start))
	w.wantState("t-0", start, Uploaded)
	w.wantRefused(w.upload("t-0", start), ReasonUploaded)
	w.do(w.evict("t-0", start))
	w.wantState("t-0", start, Remote)
	w.wantContent(d, name(start), w.logs[start])

	e, err := w.v.Lookup(d, name(start))
	w.do(err)
	defer e.File.Release()
	if e.Stat.Ino != before.Ino || e.Stat.Mtim != before.Mtim || e.Stat.Mode != before.Mode || e.Stat.Size != before.Size {
		t.Errorf("attributes changed: %+v, before %+v", e.Stat, before)
	}
	if e.Stat.Blocks*512 > 4096 {
		t.Errorf("an evicted segment takes %d bytes of disk", e.Stat.Blocks*512)
	}
	if got := w.below("t-0"); slices.Contains(got, name(start)) || !slices.Contains(got, segment.Stem(start)+".remote") ||
		slices.Contains(got, segment.Stem(start)+".uploaded") {
		t.Errorf("below: %v", got)
	}
	w.wantRefused(w.evict("t-0", w.starts[2]), ReasonFloor)
	w.wantRefused(w.evict("t-0", w.starts[3]), ReasonActive)
	w.wantRefused(w.upload("t-0", w.starts[3]), ReasonActive)

	w.reopen()
	w.wantState("t-0", start, Remote)
	w.wantContent(w.dir("t-0"), name(start), w.logs[start])
}

func TestEvictionBounds(t *testing.T) {
	for _, file := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		t.Run(file, func(t *testing.T) {
			w := newWorld(t, 3)
			w.do(w.upload("t-0", w.starts[0]))
			w.write(file, []byte("0\n1\nt 0 3\n"))
			if err := w.evict("t-0", w.starts[0]); err == nil {
				t.Fatal("evicted a segment that the broker may still need")
			}
			w.wantState("t-0", w.starts[0], Uploaded)
			w.do(os.Remove(filepath.Join(w.path, file)))
			if err := w.evict("t-0", w.starts[0]); err == nil {
				t.Fatal("evicted without a checkpoint")
			}
		})
	}
}

func TestEvictionRefusesLinks(t *testing.T) {
	w := newWorld(t, 3)
	w.do(w.upload("t-0", w.starts[0]))
	w.do(os.Link(filepath.Join(w.path, "t-0", name(w.starts[0])), filepath.Join(w.path, "t-0", "other")))
	w.wantRefused(w.evict("t-0", w.starts[0]), ReasonLinked)
}

func TestWriteForgetsTheObject(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	start := w.starts[0]
	w.do(w.upload("t-0", start))
	old := w.logObjects()
	w.do(w.mutate(d, name(start), Mutation{Kind: Write}, overwrite(0, []byte("X"))))
	w.wantState("t-0", start, Local)
	if got := len(w.v.Tombstones()); got != 1 {
		t.Fatalf("%d tombstones, want 1", got)
	}
	w.wantRefused(w.evict("t-0", start), ReasonNotYet)
	w.do(w.mutate(d, name(start), Mutation{Kind: Write}, overwrite(0, w.logs[start][:1])))
	w.do(w.upload("t-0", start))
	if got := w.logObjects(); len(got) != 2 || slices.Equal(got, old) {
		t.Fatalf("objects %v, want a second one beside %v", got, old)
	}
	w.retireAll()
	if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
		t.Fatalf("objects %v, want %v", got, want)
	}
}

func TestChangeDuringUpload(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	start := w.starts[0]
	u, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", start))
	w.do(err)
	defer u.Close()
	w.do(w.mutate(d, name(start), Mutation{Kind: Write}, overwrite(0, []byte("X"))))
	w.wantRefused(u.Commit(), ReasonChanged)
	w.wantState("t-0", start, Local)
	if len(w.v.Tombstones()) != 1 || len(w.below(".tierfs/intents")) != 0 {
		t.Fatalf("tombstones %v, intents %v", w.v.Tombstones(), w.below(".tierfs/intents"))
	}
}

func TestWriteIntoRemote(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	start := w.starts[0]
	w.remote(start)
	w.do(w.mutate(d, name(start), Mutation{Kind: Write}, overwrite(10, []byte("YZ"))))
	want := bytes.Clone(w.logs[start])
	copy(want[10:], "YZ")
	w.wantState("t-0", start, Local)
	w.wantContent(d, name(start), want)
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Fatalf("objects %v, want none", got)
	}
	w.reopen()
	w.wantContent(w.dir("t-0"), name(start), want)
}

func TestTruncateRemote(t *testing.T) {
	for _, size := range []int64{0, 100} {
		w := newWorld(t, 3)
		d := w.dir("t-0")
		start := w.starts[0]
		w.remote(start)
		gets := w.store.Count("get")
		w.do(w.mutate(d, name(start), Mutation{Kind: Truncate, Size: size}, truncate(size)))
		w.wantContent(d, name(start), w.logs[start][:size])
		w.wantState("t-0", start, Local)
		if size == 0 && w.store.Count("get") != gets {
			t.Error("a truncation to 0 asked the store")
		}
		w.retireAll()
		if got := w.logObjects(); len(got) != 0 {
			t.Errorf("objects %v, want none", got)
		}
	}
}

func TestUnlinkWhileOpen(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	start := w.starts[0]
	w.remote(start)
	e, err := w.v.Lookup(d, name(start))
	w.do(err)
	e.File.Opened(true)
	w.do(w.v.Unlink(d, name(start)))
	if _, err := w.content(d, name(start)); err == nil {
		t.Fatal("the name is still there")
	}
	w.retireAll()
	b, err := w.bytesOf(e.File)
	if err != nil || !bytes.Equal(b, w.logs[start]) {
		t.Fatalf("an open handle lost the bytes: %v", err)
	}
	e.File.Closed(true)
	e.File.Release()
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 || len(w.v.Tombstones()) != 0 || len(w.below(".tierfs/tombstones")) != 0 {
		t.Fatalf("objects %v, tombstones %v", got, w.v.Tombstones())
	}
}

// TestKafkaDeletesASegment and a topic: names move, handles stay, objects go.
func TestKafkaDeletes(t *testing.T) {
	w := newWorld(t, 4)
	d := w.dir("t-0")
	w.remote(w.starts[0])
	w.do(w.upload("t-0", w.starts[1]))
	for _, start := range w.starts[:2] {
		w.do(w.v.Rename(d, name(start), d, name(start)+".deleted", 0))
		w.wantContent(d, name(start)+".deleted", w.logs[start])
	}
	if got := len(w.partition("t-0").Segments()); got != 2 {
		t.Fatalf("%d segments, want 2", got)
	}
	w.reopen()
	root, d := w.dir("."), w.dir("t-0")
	for _, start := range w.starts[:2] {
		w.wantContent(d, name(start)+".deleted", w.logs[start])
		w.do(w.v.Unlink(d, name(start)+".deleted"))
	}
	w.do(w.v.Rename(root, "t-0", root, "t-0.0123456789abcdef0123456789abcdef-delete", 0))
	gone := "t-0.0123456789abcdef0123456789abcdef-delete"
	if w.partition(gone).Reason() == "" {
		t.Error("a deleted topic is still tiered")
	}
	for _, n := range w.below(gone) {
		if !Hidden(n) {
			w.do(w.v.Unlink(d, n))
		}
	}
	w.do(w.v.Rmdir(root, gone))
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Fatalf("objects %v, want none", got)
	}
	if got := w.below(".tierfs/partitions"); len(got) != 0 {
		t.Errorf("registry %v, want it empty", got)
	}
}

func TestLinkOfRemote(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	start := w.starts[0]
	w.remote(start)
	e, err := w.v.Lookup(d, name(start))
	w.do(err)
	e2, err := w.v.Link(e.File, d, "backup")
	w.do(err)
	e2.File.Release()
	e.File.Release()
	w.wantContent(d, "backup", w.logs[start])
	w.do(w.v.Unlink(d, name(start)))
	w.wantContent(d, "backup", w.logs[start])
	w.retireAll()
	w.reopen()
	d = w.dir("t-0")
	w.wantContent(d, "backup", w.logs[start])
	w.do(w.mutate(d, "backup", Mutation{Kind: Write}, overwrite(0, w.logs[start][:4])))
	w.wantContent(d, "backup", w.logs[start])
	w.do(w.v.Unlink(d, "backup"))
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Fatalf("objects %v, want none", got)
	}
}

func TestHidden(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	w.remote(w.starts[0])
	w.do(w.upload("t-0", w.starts[1]))
	for _, n := range []string{segment.Stem(w.starts[0]) + ".remote", segment.Stem(w.starts[1]) + ".uploaded", ".tierfs-partition"} {
		if _, err := w.v.Lookup(d, n); err != unix.ENOENT {
			t.Errorf("lookup of %s: %v", n, err)
		}
		if err := w.v.Unlink(d, n); err != unix.ENOENT {
			t.Errorf("unlink of %s: %v", n, err)
		}
		if _, _, err := w.v.Create(d, n, unix.O_RDWR, 0o644); err != unix.EPERM {
			t.Errorf("create of %s: %v", n, err)
		}
		if err := w.v.Rename(d, name(w.starts[2]), d, n, 0); err != unix.EPERM {
			t.Errorf("rename to %s: %v", n, err)
		}
	}
	list, err := w.v.List(d)
	w.do(err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	var want []string
	for _, s := range w.starts {
		want = append(want, segment.Stem(s)+".index", name(s))
	}
	if !slices.Equal(names, want) {
		t.Errorf("listing %v, want %v", names, want)
	}
}

func TestCompactionDisqualifies(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	fd, e, err := w.v.Create(d, name(0)+".cleaned", unix.O_RDWR, 0o644)
	w.do(err)
	_ = unix.Close(fd)
	e.File.Release()
	if w.partition("t-0").Reason() == "" {
		t.Fatal("still tiered")
	}
	w.reopen()
	w.do(w.v.Unlink(w.dir("t-0"), name(0)+".cleaned"))
	w.reopen()
	if w.partition("t-0").Reason() == "" {
		t.Fatal("tiered again after a restart")
	}
}

func TestLock(t *testing.T) {
	w := newWorld(t, 1)
	fd, err := unix.Open(w.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.do(err)
	defer unix.Close(fd)
	if _, err := Open(t.Context(), Options{Root: fd}); err != ErrLocked {
		t.Fatalf("got %v, want ErrLocked", err)
	}
}

func TestTornSegmentIsLeftAlone(t *testing.T) {
	w := newWorld(t, 3)
	path := filepath.Join(w.path, "t-0", name(w.starts[0]))
	w.do(os.Truncate(path, int64(len(w.logs[w.starts[0]])-1)))
	err := w.upload("t-0", w.starts[0])
	if _, ok := err.(*NotWhole); !ok {
		t.Fatalf("got %v, want NotWhole", err)
	}
	w.wantState("t-0", w.starts[0], Local)
	if len(w.store.Keys()) != 0 || len(w.below(".tierfs/intents")) != 0 {
		t.Error("something of it was kept")
	}
}

func TestDirtySideFileWaits(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	index := segment.Stem(w.starts[0]) + ".index"
	e, err := w.v.Lookup(d, index)
	w.do(err)
	defer e.File.Release()
	e.File.Opened(true)
	done, err := e.File.Mutate(t.Context(), Mutation{Kind: Write})
	w.do(err)
	done()
	w.wantRefused(w.upload("t-0", w.starts[0]), ReasonSideFile)
	watch := w.v.Watch()
	defer watch.Close()
	watch.Take()
	e.File.Synced()
	if got := watch.Take(); len(got) != 1 || got[0].Path() != "t-0" {
		t.Errorf("watch got %v", got)
	}
	w.do(w.upload("t-0", w.starts[0]))
}

func TestPairFoundAtBootIsCompared(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.do(w.upload("t-0", start))
	w.close()
	path := filepath.Join(w.path, "t-0", name(start))
	changed := bytes.Clone(w.logs[start])
	changed[len(changed)-1] ^= 1
	w.do(os.WriteFile(path, changed, 0o644))
	w.open()
	w.wantState("t-0", start, Uploaded)
	w.wantRefused(w.evict("t-0", start), ReasonChanged)
	w.wantState("t-0", start, Local)
	w.wantContent(w.dir("t-0"), name(start), changed)
}

func TestBadMarkers(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.remote(start)
	w.close()
	path := filepath.Join(w.path, "t-0", segment.Stem(start)+".remote")
	good, err := os.ReadFile(path)
	w.do(err)
	rec, err := marker.Parse(good)
	w.do(err)
	other := rec
	other.Incarnation = marker.NewIncarnation()
	shifted := rec
	shifted.Start, shifted.End = rec.Start+1, rec.End+1
	m1, m2 := other.Marshal(), shifted.Marshal()
	for what, bad := range map[string][]byte{
		"short": good[:100], "long": append(bytes.Clone(good), 0), "empty": {}, "checksum": append([]byte{good[0] ^ 1}, good[1:]...),
		"incarnation": m1[:], "start": m2[:],
	} {
		t.Run(what, func(t *testing.T) {
			w.do(os.WriteFile(path, bad, 0o644))
			w.open()
			w.wantState("t-0", start, Quarantined)
			if _, err := w.content(w.dir("t-0"), name(start)); err == nil {
				t.Error("reads of a quarantined segment succeed")
			}
			w.retireAll()
			if len(w.logObjects()) != 1 {
				t.Error("its object is gone")
			}
			w.close()
		})
	}
	w.do(os.WriteFile(path, good, 0o644))
	w.open()
	w.wantContent(w.dir("t-0"), name(start), w.logs[start])
}

func TestOwner(t *testing.T) {
	w := newWorld(t, 2)
	w.do(w.v.CheckOwner(t.Context()))
	w.do(w.v.CheckOwner(t.Context()))
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))

	copied := newWorld(t, 0)
	copied.close()
	copied.store = w.store
	for _, f := range []string{"volume", "epoch"} {
		b, err := os.ReadFile(filepath.Join(w.path, ".tierfs", f))
		w.do(err)
		copied.write(filepath.Join(".tierfs", f), b)
	}
	copied.open()
	if err := copied.v.CheckOwner(t.Context()); err == nil {
		t.Fatal("a copy owns the volume")
	}
	w.do(w.v.CheckOwner(t.Context()))
	copied.take = true
	copied.reopen()
	w.do(copied.v.CheckOwner(t.Context()))
	if err := w.v.CheckOwner(t.Context()); err == nil {
		t.Fatal("the original still owns the volume")
	}

	old := newWorld(t, 0)
	old.do(old.v.CheckOwner(t.Context()))
	epoch, err := os.ReadFile(filepath.Join(old.path, ".tierfs/epoch"))
	old.do(err)
	for range 2 {
		old.reopen()
		old.do(old.v.CheckOwner(t.Context()))
	}
	old.close()
	old.write(".tierfs/epoch", epoch)
	old.open()
	if err := old.v.CheckOwner(t.Context()); err == nil {
		t.Fatal("a rolled-back source owns the volume")
	}
}

// TestAnotherStoreIsNotClaimed: a known volume's store that is suddenly empty is a
// wrong one, or one that is not mounted. Its objects are not to be taken for missing.
func TestAnotherStoreIsNotClaimed(t *testing.T) {
	w := newWorld(t, 2)
	w.do(w.v.CheckOwner(t.Context()))
	right := w.store
	w.store = sim.New(sim.Options{})
	w.reopen()
	if err := w.v.CheckOwner(t.Context()); !errors.Is(err, ErrNotOwner) {
		t.Fatalf("got %v, want ErrNotOwner", err)
	}
	if len(w.store.Keys()) != 0 {
		t.Fatal("the empty store was claimed")
	}
	w.store = right
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))
	w.store, w.take = sim.New(sim.Options{}), true
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))
}

func TestGraceGoesOnAfterARestart(t *testing.T) {
	w := newWorld(t, 3)
	w.grace = time.Hour
	w.reopen()
	w.remote(w.starts[0])
	w.do(w.v.Unlink(w.dir("t-0"), name(w.starts[0])))
	w.reopen()
	due, next := w.v.Due(time.Now(), 10)
	if len(due) != 0 || time.Until(next) > time.Hour || time.Until(next) < 55*time.Minute {
		t.Fatalf("due %v, next in %v", due, time.Until(next))
	}
}

func TestRules(t *testing.T) {
	w := newWorld(t, 1)
	if got := w.v.Layout().Kind(); got != layout.Kafka {
		t.Fatalf("layout %s", got)
	}
}

func TestKeyPath(t *testing.T) {
	for path, want := range map[string]string{
		"t-0": "t-0", "a/b c/d": "a/b_c/d", "owner/x": "owner_/x", "x/owner": "x/owner", "\xff\n": "__",
		strings.Repeat("x", 250): strings.Repeat("x", 200),
	} {
		if got := keyPath(path); got != want {
			t.Errorf("%q: got %q, want %q", path, got, want)
		}
	}
}

package tier

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
)

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
	w.empty(gone)
	w.do(w.v.Rmdir(root, gone))
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Fatalf("objects %v, want none", got)
	}
	if got := w.below(".tierfs/partitions"); len(got) != 0 {
		t.Errorf("registry %v, want it empty", got)
	}
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

// A topic is deleted while an upload of it hangs: the registry keeps what the
// upload's tombstone will need.
func TestTopicDeletedDuringAnUpload(t *testing.T) {
	w := newWorld(t, 4)
	w.do(w.upload("t-0", w.starts[0]))
	u, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", w.starts[1]))
	w.do(err)
	defer u.Close()
	w.empty("t-0")
	w.do(w.v.Rmdir(w.dir("."), "t-0"))
	w.retireAll()
	for _, o := range u.Objects {
		w.do(w.store.Put(t.Context(), o.Key, o.Body, objstore.PutOptions{IfAbsent: true}))
	}
	w.wantRefused(u.Commit(), ReasonGone)
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Errorf("objects leak: %v, tombstones %v", got, w.v.Tombstones())
	}
}

// A segment that was unlinked while it was remote, and that a predecessor left
// open, is still the segment to its successor.
func TestUnlinkedAndOpenOverARestart(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.remote(start)
	f := w.segment("t-0", start).File
	fd, err := f.open(unix.O_RDWR) // held by who outlives the daemon
	w.do(err)
	defer unix.Close(fd)
	h := f.Handle()
	w.do(w.v.Unlink(w.dir("t-0"), name(start)))
	w.reopen()
	f = w.v.FileOf(h)
	f.Opened(true)
	wantBytes := func(want []byte) {
		t.Helper()
		b, err := w.bytesOf(f)
		if err != nil || !bytes.Equal(b, want) {
			t.Fatalf("%v: %d bytes, %v", f.State(), len(b), err)
		}
	}
	wantBytes(w.logs[start])
	var st unix.Stat_t
	w.do(f.Stat(fd, &st))
	if st.Nlink != 0 || st.Size != int64(len(w.logs[start])) {
		t.Errorf("stat gives %d links and %d bytes", st.Nlink, st.Size)
	}
	w.retireAll()
	if len(w.logObjects()) == 0 {
		t.Fatal("the object of an open file was deleted")
	}
	done, err := f.Mutate(t.Context(), Mutation{Kind: Write})
	w.do(err)
	w.do(overwrite(0, []byte("written"))(fd))
	done()
	wantBytes(append([]byte("written"), w.logs[start][7:]...))
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Errorf("objects leak: %v", got)
	}
	f.Closed(true)
	f.Release()
}

// Registry entries that nothing names go at the next start; those of partitions
// that lost all their segments stay, and so does everything while there is a
// record that cannot be read.
func TestRegistrySweep(t *testing.T) {
	prepare := func(t *testing.T) *world {
		w := newWorld(t, 3)
		w.mkdir("t-1")
		next := uint64(0)
		for range 2 {
			w.addSegment("t-1", &next)
		}
		w.reopen()
		w.do(w.upload("t-0", 0))
		w.do(w.upload("t-1", 0))
		return w
	}
	entries := func(w *world) int { return len(w.below(".tierfs/partitions")) }
	t.Run("without segments", func(t *testing.T) {
		w := prepare(t)
		w.empty("t-1")
		w.retireAll()
		w.reopen()
		if got := entries(w); got != 2 {
			t.Errorf("%d entries, want 2", got)
		}
	})
	t.Run("gone", func(t *testing.T) {
		w := prepare(t)
		w.empty("t-1")
		w.retireAll() // the last tombstone goes before the directory
		w.do(w.v.Rmdir(w.dir("."), "t-1"))
		w.reopen()
		if got := entries(w); got != 1 {
			t.Errorf("%d entries, want 1", got)
		}
		w.do(w.upload("t-0", w.starts[1]))
	})
	t.Run("moved segment", func(t *testing.T) {
		w := prepare(t)
		w.do(w.v.Rename(w.dir("t-1"), name(0), w.dir("."), "kept", 0))
		w.empty("t-1")
		w.do(w.v.Rmdir(w.dir("."), "t-1"))
		w.retireAll()
		w.reopen()
		if got := entries(w); got != 2 {
			t.Errorf("%d entries, want 2", got)
		}
	})
	t.Run("quarantine", func(t *testing.T) {
		w := prepare(t)
		w.empty("t-1")
		w.retireAll()
		w.do(w.v.Rmdir(w.dir("."), "t-1"))
		w.write("t-0/"+remoteName(name(7)), []byte("nonsense"))
		w.reopen()
		if got := entries(w); got != 2 {
			t.Errorf("%d entries, want 2", got)
		}
	})
}

// Where a partition cannot be told, its quarantined segment may be anybody's.
func TestQuarantineOutsideAPartition(t *testing.T) {
	w := newWorld(t, 3)
	w.remote(0)
	w.do(w.v.Unlink(w.dir("t-0"), name(0)))
	w.write("x.remote", []byte("nonsense"))
	w.reopen()
	w.retireAll()
	if len(w.logObjects()) != 1 {
		t.Error("an object was deleted that a quarantined segment may name")
	}
	w.do(w.v.Unlink(w.dir("."), "x"))
	w.retireAll()
	if len(w.logObjects()) != 0 {
		t.Error("its object is left")
	}
}

// The incarnation of a directory that is removed when its last object is long gone
// goes with the next object, without a restart.
func TestVacantIncarnation(t *testing.T) {
	w := newWorld(t, 2)
	w.mkdir("u-0")
	next := uint64(0)
	w.addSegment("u-0", &next)
	w.addSegment("u-0", &next)
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))
	for _, dir := range []string{"t-0", "u-0"} {
		w.do(w.upload(dir, 0))
	}
	w.do(w.v.Unlink(w.dir("t-0"), name(0)))
	w.retireAll()
	w.empty("t-0")
	w.do(w.v.Rmdir(w.dir("."), "t-0"))
	if n := len(w.below(".tierfs/partitions")); n != 2 {
		t.Fatalf("%d incarnations before the retirement", n)
	}
	w.do(w.v.Unlink(w.dir("u-0"), name(0)))
	w.retireAll()
	if n := len(w.below(".tierfs/partitions")); n != 1 { // that of u-0, which is there
		t.Errorf("%d incarnations after it", n)
	}
}

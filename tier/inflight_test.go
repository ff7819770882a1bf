package tier

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEvictGoesOnAfterAFailure(t *testing.T) {
	w := newWorld(t, 2)
	w.do(w.upload("t-0", 0))
	w.crashIn("evict:dirsync", func() { _ = w.evict("t-0", 0) })
	w.wantState("t-0", 0, Leaving)
	w.do(w.evict("t-0", 0))
	w.wantState("t-0", 0, Remote)
	w.wantContent(w.dir("t-0"), segmentName(0), w.logs[0])
}

// A mutation whose bytes are still to come may fall on either side of a look.
func TestNoLookDuringAMutation(t *testing.T) {
	w := newWorld(t, 2)
	s := w.segment("t-0", 0)
	before, err := s.File.Usage()
	w.do(err)
	done, err := s.File.Mutate(context.Background(), Mutation{Kind: Write})
	w.do(err)
	w.wantRefused(w.upload("t-0", 0), ReasonWriting)
	use, err := s.File.Usage()
	w.do(err)
	if use.Size != before.Size {
		t.Fatalf("size %d, want %d", use.Size, before.Size)
	}
	fd, err := s.File.open(unix.O_RDWR)
	w.do(err)
	defer unix.Close(fd)
	w.do(overwrite(before.Size, w.logs[w.starts[1]])(fd))
	done()
	if use, err = s.File.Usage(); err != nil || use.Size != before.Size+int64(len(w.logs[w.starts[1]])) {
		t.Fatalf("size %d after the write, %v", use.Size, err)
	}
}

// An eviction was taken back, but the fsync behind the rename failed: going on
// with the eviction must not empty a file that has its own name.
func TestEvictionTakenBackHalfWay(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	d := w.dir("t-0")
	w.do(w.upload("t-0", start))
	w.crashIn("evict:empty", func() { _ = w.evict("t-0", start) })
	w.wantState("t-0", start, Leaving)
	w.step = func(s string) {
		if s == "evict:back" {
			w.do(os.Rename(filepath.Join(w.path, "t-0", remoteName(name(start))), filepath.Join(w.path, "t-0", name(start))))
		}
	}
	write := func() error {
		return w.mutate(d, name(start), Mutation{Kind: Write}, overwrite(0, w.logs[start][:4]))
	}
	_ = write()
	w.step = nil
	w.do(write())
	_ = w.evict("t-0", start)
	w.reopen()
	w.wantContent(w.dir("t-0"), name(start), w.logs[start])
}

// The record became a tombstone, but the fsync behind the rename failed: the next
// try finds it done.
func TestTombstoneThatIsThereAlready(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	d := w.dir("t-0")
	w.do(w.upload("t-0", start))
	rec := w.segment("t-0", start).Record
	w.do(os.Rename(filepath.Join(w.path, "t-0", uploadedName(name(start))), filepath.Join(w.path, ".tierfs/tombstones", uploadFile(rec))))
	w.do(w.mutate(d, name(start), Mutation{Kind: Write}, overwrite(0, w.logs[start][:4])))
	w.do(w.v.Unlink(d, name(start)))
}

func TestRenameOfAFillingSegmentOverAnUploadedOne(t *testing.T) {
	w := newWorld(t, 4)
	d := w.dir("t-0")
	a, b := w.starts[0], w.starts[1]
	w.remote(a)
	w.do(w.upload("t-0", b))
	w.do(w.v.Rename(d, name(b), d, "x", 0)) // the record goes with it
	w.step = func(s string) {
		if s == "rehydrate:fill" {
			w.do(w.v.Rename(d, name(a), d, "x", 0))
		}
	}
	w.do(w.v.Rehydrate(t.Context(), w.segment("t-0", a).File))
	w.step = nil
	w.wantContent(d, "x", w.logs[a])
	w.do(w.mutate(d, "x", Mutation{Kind: Write}, overwrite(0, w.logs[a][:4])))
}

// A rename that fails behind the removal of its target leaves no ghost of it.
func TestRenameFailsBehindItsTarget(t *testing.T) {
	w := newWorld(t, 4)
	d := w.dir("t-0")
	a, b := w.starts[0], w.starts[1]
	w.remote(a)
	w.step = func(s string) {
		if s == "rename:name" {
			w.do(os.Rename(filepath.Join(w.path, "t-0", remoteName(name(a))), filepath.Join(w.path, "t-0", "away")))
		}
	}
	if err := w.v.Rename(d, name(a), d, name(b), 0); err == nil {
		t.Fatal("the rename succeeded")
	}
	_, err := w.v.Lookup(d, name(b))
	for _, s := range w.partition("t-0").Segments() {
		if s.Start == b && err != nil {
			t.Errorf("the catalog has segment %d, a lookup gives %v", b, err)
		}
	}
}

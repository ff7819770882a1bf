package tier

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
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

// Whatever the catalog believes: what has the broker's own name is not emptied.
func TestOwnNameIsNeverEmptied(t *testing.T) {
	w := newWorld(t, 2)
	w.do(w.upload("t-0", 0))
	w.crashIn("evict:empty", func() { _ = w.evict("t-0", 0) })
	own := filepath.Join(w.path, "t-0", name(0))
	w.do(os.Rename(filepath.Join(w.path, "t-0", remoteName(name(0))), own))
	if err := w.evict("t-0", 0); err == nil {
		t.Error("it was evicted")
	}
	if b, err := os.ReadFile(own); err != nil || !bytes.Equal(b, w.logs[0]) {
		t.Errorf("it has %d bytes, %v", len(b), err)
	}
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

// While an eviction waits for a reader, the broker cuts off the segments behind:
// the one that is to go has become the active one.
func TestEvictionOfWhatBecameActive(t *testing.T) {
	w := newWorld(t, 2)
	start := w.starts[0]
	w.do(w.upload("t-0", start))
	src := w.segment("t-0", start).File.Source()
	p, s := w.partition("t-0"), w.segment("t-0", start)
	evicted, waits := make(chan error, 1), make(chan struct{})
	w.step = func(name string) {
		if name == "evict:times:done" {
			close(waits)
		}
	}
	go func() { evicted <- w.v.Evict(t.Context(), p, s) }()
	<-waits
	w.do(w.v.Unlink(w.dir("t-0"), name(w.starts[1])))
	src.Release()
	w.wantRefused(<-evicted, ReasonActive)
}

// A truncation to 0 needs no bytes: it ends a rehydration that waits for the store.
func TestTruncationEndsARehydration(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	d := w.dir("t-0")
	w.remote(start)
	waits := make(chan struct{})
	w.store.SetHook(func(ctx context.Context, op, _ string) error {
		if op != "get" {
			return nil
		}
		close(waits)
		<-ctx.Done()
		return ctx.Err()
	})
	filled := make(chan error, 1)
	f := w.segment("t-0", start).File
	go func() { filled <- w.v.Rehydrate(context.Background(), f) }()
	<-waits
	f.mu.RLock()
	fill := f.fill
	f.mu.RUnlock()
	fd, err := f.open(unix.O_RDWR)
	w.do(err)
	defer unix.Close(fd)
	w.do(w.mutate(d, name(start), Mutation{Kind: Truncate}, truncate(0)))
	w.do(<-filled)
	fill.fd = fd // a store that is slow to notice must not write either
	if _, err := fill.Write([]byte("late")); err != errOvertaken {
		t.Errorf("a late write: %v", err)
	}
	w.wantState("t-0", start, Local)
	w.wantContent(d, name(start), nil)
	w.store.SetHook(nil)
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Errorf("objects leak: %v", got)
	}
}

// A disk that fails while a segment is emptied leaves it with neither bytes nor a
// marker; the next pass finishes that.
func TestHalfEmptiedIsFinished(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.remote(start)
	f := w.segment("t-0", start).File
	w.do(func() error {
		fd, err := f.open(unix.O_RDWR)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		f.mu.Lock()
		defer f.mu.Unlock()
		if err := w.v.unmark("rehydrate:record", f, fd); err != nil {
			return err
		}
		return unix.Ftruncate(fd, 0)
	}())
	w.wantState("t-0", start, Filling)
	w.wantContent(w.dir("t-0"), name(start), w.logs[start])
	w.do(w.evict("t-0", start))
	w.wantState("t-0", start, Remote)
	w.reopen()
	w.wantContent(w.dir("t-0"), name(start), w.logs[start])
}

// A segment that is shorter than a marker comes back as long as it was.
func TestRehydrateAShortSegment(t *testing.T) {
	w := newWorld(t, 2)
	log, _, _ := segmenttest.Kafka(0, 1, 1, 1)
	if len(log) >= marker.Size {
		t.Fatalf("%d bytes are not short", len(log))
	}
	w.do(os.Remove(filepath.Join(w.path, "t-0", segment.Stem(0)+".index")))
	w.write("t-0/"+name(0), log)
	w.remote(0)
	w.do(w.v.Rehydrate(t.Context(), w.segment("t-0", 0).File))
	w.wantContent(w.dir("t-0"), name(0), log)
}

// Errors about files that tierfs keeps must not look like answers about the name
// that the broker gave.
func TestErrorsOfHiddenFiles(t *testing.T) {
	for what, do := range map[string]func(w *world, d Dir) error{
		"write": func(w *world, d Dir) error {
			return w.mutate(d, name(0), Mutation{Kind: Write}, overwrite(0, w.logs[0][:4]))
		},
		"unlink": func(w *world, d Dir) error { return w.v.Unlink(d, name(0)) },
		"rename": func(w *world, d Dir) error {
			w.write("t-0/swap", nil)
			return w.v.Rename(d, "swap", d, name(0), 0)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 2)
			w.do(w.upload("t-0", 0))
			w.do(os.Remove(filepath.Join(w.path, "t-0", uploadedName(name(0)))))
			if err := do(w, w.dir("t-0")); !errors.Is(err, unix.EIO) || isNotExist(err) {
				t.Errorf("got %v, want EIO", err)
			}
			w.wantContent(w.dir("t-0"), name(0), w.logs[0])
		})
	}
}

// A directory goes although an upload writes tierfs' own file into it just then.
func TestRmdirDuringTheFirstUpload(t *testing.T) {
	w := newWorld(t, 1)
	w.empty("t-0")
	w.write("t-0/.tierfs-partition", []byte("{}"))
	times := 0
	w.step = func(s string) {
		if s == "rmdir" && times < 3 {
			times++
			w.write("t-0/.tierfs-partition", []byte("{}"))
		}
	}
	w.do(w.v.Rmdir(w.dir("."), "t-0"))
}

// An upload whose record cannot be written leaves a tombstone, and a segment that
// can be uploaded later.
func TestCommitFails(t *testing.T) {
	w := newWorld(t, 2)
	w.step = func(s string) {
		if s == "upload:record" { // earlier it would not be put at all
			w.mkdir("t-0/" + uploadedName(name(0)))
		}
	}
	if err := w.upload("t-0", 0); err == nil {
		t.Fatal("the upload succeeded")
	}
	w.step = nil
	w.wantState("t-0", 0, Local)
	if len(w.v.Tombstones()) != 1 || len(w.below(".tierfs/intents")) != 0 {
		t.Errorf("tombstones %v, intents %v", w.v.Tombstones(), w.below(".tierfs/intents"))
	}
	w.do(os.Remove(filepath.Join(w.path, "t-0", uploadedName(name(0)))))
	w.remote(0)
	w.retireAll()
	w.wantContent(w.dir("t-0"), name(0), w.logs[0])
}

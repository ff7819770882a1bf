package tier

import (
	"bytes"
	"testing"
	"time"

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

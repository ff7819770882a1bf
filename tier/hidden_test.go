package tier

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/segment"
)

// A partition whose hidden file cannot be read is seen, served and left alone, until
// the file is put back.
func TestHiddenFileCannotBeRead(t *testing.T) {
	logged := &bytes.Buffer{}
	w := newWorld(t, 5)
	w.remote(w.starts[0])
	w.do(w.upload("t-0", w.starts[1]))
	w.close()
	hidden := filepath.Join(w.path, "t-0", partitionFile)
	kept, err := os.ReadFile(hidden)
	w.do(err)
	w.write("t-0/"+partitionFile, kept[:len(kept)/2])
	w.tune = func(o *Options) { o.Log = slog.New(slog.NewTextHandler(logged, nil)) }
	w.open()
	p := w.partition("t-0")
	if p.Reason() != ReasonHiddenFile || len(p.Segments()) != 5 {
		t.Errorf("%d segments, reason %q", len(p.Segments()), p.Reason())
	}
	if n := strings.Count(logged.String(), "level=ERROR"); n != 1 || !strings.Contains(logged.String(), "t-0") {
		t.Errorf("the log has %d errors: %s", n, logged)
	}
	for _, start := range w.starts {
		w.wantContent(w.dir("t-0"), name(start), w.logs[start])
	}
	w.wantRefused(w.evict("t-0", w.starts[1]), ReasonHiddenFile)
	w.wantRefused(w.upload("t-0", w.starts[2]), ReasonHiddenFile)

	w.do(w.create("t-0", segment.Stem(1<<40)+".log.cleaned")) // would be noted in the file
	if now, err := os.ReadFile(hidden); err != nil || !bytes.Equal(now, kept[:len(kept)/2]) {
		t.Errorf("the file was written: %q, %v", now, err)
	}
	if p.Reason() == "" {
		t.Error("tiered")
	}
	w.do(w.v.Unlink(w.dir("t-0"), segment.Stem(1<<40)+".log.cleaned"))

	w.reopen()
	w.write("t-0/"+partitionFile, kept)
	w.do(w.create("t-0", segment.Stem(1<<40)+".log"))
	if p = w.partition("t-0"); p.Reason() != "" {
		t.Fatalf("put back, and still %q", p.Reason())
	}
	w.remote(w.starts[2])
	for _, start := range []uint64{w.starts[0], w.starts[2]} {
		rec, _ := w.segment("t-0", start).File.Record()
		if rec.Incarnation.String() != p.state.Incarnation {
			t.Errorf("segment %d is of incarnation %s, the partition of %s", start, rec.Incarnation, p.state.Incarnation)
		}
	}
}

// What is lost in such a partition may be any object.
func TestHiddenFileOfADamagedPartition(t *testing.T) {
	for what, damage := range map[string]func(w *world){
		"hole": func(w *world) { w.do(os.Remove(filepath.Join(w.path, "t-0", remoteName(name(w.starts[0]))))) },
		"hole at run time": func(w *world) {
			w.open()
			w.do(os.Remove(filepath.Join(w.path, "t-0", remoteName(name(w.starts[0])))))
		},
		"quarantine": func(w *world) { w.write("t-0/"+remoteName(name(w.starts[0])), []byte("x")) },
		"quarantine, and it is not there": func(w *world) {
			w.do(os.Remove(filepath.Join(w.path, "t-0", partitionFile)))
			w.write("t-0/"+remoteName(name(w.starts[0])), []byte("x"))
		},
		"nothing": func(*world) {},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 4)
			w.remote(w.starts[0])
			w.do(w.upload("t-0", w.starts[1]))
			w.do(w.v.Unlink(w.dir("t-0"), name(w.starts[1])))
			w.do(w.v.Unlink(w.dir("t-0"), segment.Stem(w.starts[1])+".index"))
			w.close()
			w.write("t-0/"+partitionFile, []byte("{"))
			damage(w)
			if w.v == nil {
				w.open()
			}
			w.retireAll()
			want := 2
			if what == "nothing" {
				want = 1
			}
			if got := w.logObjects(); len(got) != want {
				t.Errorf("the store has %v", got)
			}
		})
	}
}

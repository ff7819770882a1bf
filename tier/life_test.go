package tier

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

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

// What every READ, WRITE and stat of local data passes through allocates nothing.
func TestHotPathsAllocateNothing(t *testing.T) {
	w := newWorld(t, 2)
	f := w.segment("t-0", 0).File
	fd, err := f.open(unix.O_RDONLY)
	w.do(err)
	defer unix.Close(fd)
	ctx := WithCaller(t.Context(), 1)
	var st unix.Stat_t
	for what, do := range map[string]func(){
		"mutate": func() {
			done, _ := f.Mutate(ctx, Mutation{Kind: Write})
			done()
		},
		"chmod": func() {
			done, _ := f.Mutate(ctx, Mutation{Kind: Attr})
			done()
		},
		"source": func() {
			s := f.Source()
			s.Release()
		},
		"stat": func() { _ = f.Stat(fd, &st) },
	} {
		if n := testing.AllocsPerRun(100, do); n > 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

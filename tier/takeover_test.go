package tier

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
)

// takeOver lets a successor open the volume of a process that died: the lock was
// kept, and so were the inodes that the broker has open.
func (w *world) takeOver(tune func(*Options)) {
	w.t.Helper()
	w.step = nil
	lock, err := unix.FcntlInt(uintptr(w.v.LockFD()), unix.F_DUPFD_CLOEXEC, 0)
	w.do(err)
	w.do(w.v.Close())
	before := w.tune
	w.tune = func(o *Options) {
		if before != nil {
			before(o)
		}
		if tune != nil {
			tune(o)
		}
		o.Takeover, o.Lock = true, lock
	}
	err = w.tryOpen()
	w.tune = before
	w.do(errors.Join(err, unix.Close(lock)))
}

// opened is a handle of the broker: the kernel keeps it over the daemons.
type opened struct {
	w  *world
	h  handle.Handle
	fd int // keeps the inode
	f  *File
}

func (w *world) openHandle(name string) *opened {
	w.t.Helper()
	e, err := w.v.Lookup(w.dir("t-0"), name)
	w.do(err)
	fd, err := e.File.open(unix.O_RDWR)
	w.do(err)
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	e.File.Opened(true)
	return &opened{w, e.Handle, fd, e.File}
}

// rebuilt enters the handle into the successor's volume.
func (o *opened) rebuilt() {
	o.f = o.w.v.FileOf(o.h)
	o.f.Opened(true)
}

func (o *opened) want(one ...[]byte) {
	o.w.t.Helper()
	b, err := o.w.bytesOf(o.f)
	if err != nil || !slices.ContainsFunc(one, func(want []byte) bool { return bytes.Equal(want, b) }) {
		o.w.t.Fatalf("the handle of a file that is %v gives %d bytes, %v", o.f.State(), len(b), err)
	}
	var st unix.Stat_t
	o.w.do(o.f.Stat(o.fd, &st))
	if st.Size != int64(len(b)) {
		o.w.t.Fatalf("the handle of a file that is %v has size %d and %d bytes", o.f.State(), st.Size, len(b))
	}
}

func (o *opened) close() {
	o.f.Closed(true)
	o.f.Release()
}

func TestInheritedLock(t *testing.T) {
	w := newWorld(t, 1)
	kept, err := unix.FcntlInt(uintptr(w.v.LockFD()), unix.F_DUPFD_CLOEXEC, 0)
	w.do(err)
	defer unix.Close(kept)
	w.do(w.v.Close())
	if err := w.tryOpen(); !errors.Is(err, ErrLocked) {
		t.Fatalf("a stranger opens the volume: %v", err)
	}
	w.tune = func(o *Options) { o.Lock = w.root }
	if err := w.tryOpen(); err == nil || errors.Is(err, ErrLocked) {
		t.Fatalf("another file is taken for the lock: %v", err)
	}
	w.tune = func(o *Options) { o.Lock = kept }
	w.do(w.tryOpen())
	w.do(w.v.Close())
	w.tune = nil
	if err := w.tryOpen(); !errors.Is(err, ErrLocked) {
		t.Fatalf("the holder's lock went with the volume: %v", err)
	}
	w.v = nil
}

// resent is an operation whose request comes again after a takeover.
type resent struct {
	operation
	again func(w *world) error // nil: run
	want  func(w *world) outcome
	held  func(w *world) []byte // through the handle afterwards; nil: what there was
}

func resents() []resent {
	moved := func(w *world) { w.do(rename(first, deleted)(w)) }
	changed := func(w *world) outcome { return outcome{first(w): changedLog(w)} }
	gone := func(w *world) outcome { return outcome{first(w): nil} }
	renamed := func(w *world) outcome { return outcome{first(w): nil, deleted(w): firstLog(w)} }
	emptied := func(w *world) outcome { return outcome{first(w): {}} }
	replaced := func(w *world) outcome { return outcome{first(w): swapped} }
	cut := func(w *world) outcome { return outcome{first(w): firstLog(w)[:100]} }
	nothing := func(*world) []byte { return []byte{} }
	cutLog := func(w *world) []byte { return firstLog(w)[:100] }
	cutIt := mutation(Truncate, 100, truncate(100))
	var all []resent
	for _, at := range []struct {
		name    string
		prepare func(*world)
		around  func(func(*world) error) func(*world) error
	}{
		{"local", local, nil}, {"uploaded", uploaded, nil}, {"leaving", leaving, nil}, {"remote", remote, nil}, {"filling", remote, whileFilling},
	} {
		add := func(name string, prepare func(*world), run func(*world) error, want func(*world) outcome, held func(*world) []byte) {
			op := resent{operation{name: name + " " + at.name, prepare: prepare, run: run}, nil, want, held}
			if at.around != nil {
				op.run, op.again = at.around(run), run
			}
			all = append(all, op)
		}
		add("unlink", at.prepare, unlink, gone, nil)
		add("rename", at.prepare, rename(first, deleted), renamed, nil)
		add("replace", withSwap(at.prepare), replace, replaced, nil)
		add("empty", at.prepare, empty(first), emptied, nothing)
		if at.around == nil { // they would wait for the fill that they are in
			add("cut", at.prepare, cutIt, cut, cutLog)
			add("write", at.prepare, write, changed, changedLog)
		}
	}
	return append(all,
		resent{operation{name: "evict", prepare: uploaded, run: func(w *world) error { return w.evict("t-0", w.starts[0]) }},
			func(*world) error { return nil }, func(w *world) outcome { return outcome{first(w): firstLog(w)} }, nil},
		resent{operation{name: "upload", prepare: local, run: func(w *world) error { return w.upload("t-0", w.starts[0]) }},
			func(*world) error { return nil }, func(w *world) outcome { return outcome{first(w): firstLog(w)} }, nil},
		resent{operation{name: "rename remote over local", prepare: remote, run: rename(first, second)}, nil,
			func(w *world) outcome { return outcome{first(w): nil, second(w): firstLog(w)} }, nil},
		resent{operation{name: "empty deleted", prepare: both(remote, moved), run: empty(deleted)}, nil,
			func(w *world) outcome { return outcome{first(w): nil, deleted(w): {}} }, nothing},
	)
}

// repeat runs it again, and takes what fs takes for work that was done before.
func (op resent) repeat(w *world) {
	w.t.Helper()
	run := op.run
	if op.again != nil {
		run = op.again
	}
	if err := run(w); err != nil && !isNotExist(err) {
		w.t.Fatalf("the request that came again: %v", err)
	}
}

// TestTakeover ends each operation before and after each of its durable steps while
// the broker has the file open. A successor opens the volume, finds the bytes of the
// handle, and is asked the same again.
func TestTakeover(t *testing.T) {
	for _, quick := range []int64{0, 1} { // with a look at what stopped half way, and without
		for _, op := range resents() {
			if quick != 0 && (strings.HasSuffix(op.name, " local") || strings.HasSuffix(op.name, " uploaded")) {
				continue // nothing stops half way there
			}
			t.Run(fmt.Sprintf("%s/%d", op.name, quick), func(t *testing.T) {
				var steps []string
				w := newWorld(t, 3)
				op.prepare(w)
				w.step = func(s string) { steps = append(steps, s) }
				w.do(op.run(w))
				for i := range steps {
					t.Run(fmt.Sprintf("%d %s", i, steps[i]), func(t *testing.T) { op.takenOver(t, i, quick) })
				}
			})
		}
	}
}

func (op resent) takenOver(t *testing.T, step int, quick int64) {
	w := newWorld(t, 3)
	op.prepare(w)
	was := firstLog(w)
	at := first(w)
	if op.name == "empty deleted" {
		at = deleted(w)
	}
	o := w.openHandle(at)
	now := was
	if op.held != nil {
		now = op.held(w)
	}
	w.crashAt(step, func() { _ = op.run(w) })
	w.takeOver(func(o *Options) { o.quick = quick })
	o.rebuilt()
	o.want(was, now)
	op.repeat(w)
	o.want(now)
	wantOneOf(t, w, w.dir("t-0"), []outcome{op.want(w)})
	w.do(w.v.CheckOwner(t.Context()))
	w.retireAll()
	o.want(now)
	w.takeOver(nil) // and once more
	o.rebuilt()
	o.want(now)
	o.close()
	if strings.HasPrefix(op.name, "unlink") {
		indexGone(w)
	}
	w.do(w.v.CheckOwner(t.Context()))
	for _, s := range w.partition("t-0").Segments() {
		if s.State == Quarantined {
			t.Errorf("segment %d is quarantined", s.Start)
		}
		if s.State == Filling { // the evictor's work
			w.do(w.v.Evict(t.Context(), w.partition("t-0"), s))
		}
	}
	w.retireAll()
	if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
		t.Errorf("the store has %v, named are %v", got, want)
	}
	if _, err := os.Stat(filepath.Join(w.path, ".tierfs/unlinked")); err == nil && len(w.below(".tierfs/unlinked")) > 0 {
		t.Errorf("closed files are retained: %v", w.below(".tierfs/unlinked"))
	}
	wantOneOf(t, w, w.dir("t-0"), []outcome{op.want(w)})
}

// A write through a handle into a segment without a name, which the store gives
// slowly: the daemon dies in the middle, twice.
func TestTakeoverOfANamelessFill(t *testing.T) {
	for what, unname := range map[string]func(w *world) error{"unlink": unlink, "replace": replace} {
		for _, before := range []bool{false, true} { // unnamed before the write comes, or during
			t.Run(fmt.Sprintf("%s/%v", what, before), func(t *testing.T) {
				w := newWorld(t, 3)
				w.write("t-0/swap", swapped)
				w.remote(w.starts[0])
				o := w.openHandle(first(w))
				if before {
					w.do(unname(w))
				}
				for range 2 {
					w.step = func(s string) {
						if s == "rehydrate:fsync" {
							if !before {
								_ = unname(w)
							}
							w.do(unix.Ftruncate(o.fd, 1000)) // as a transfer that is not at its end leaves it
							panic(crash{s})
						}
					}
					if !runToCrash(func() { _, _ = o.f.Mutate(t.Context(), Mutation{Kind: Write}) }) {
						t.Fatal("no fill")
					}
					w.takeOver(func(o *Options) { o.quick = 1 })
					o.rebuilt()
					o.want(firstLog(w))
				}
				done, err := o.f.Mutate(t.Context(), Mutation{Kind: Write})
				w.do(err)
				w.do(overwrite(20, []byte("changed"))(o.fd))
				done()
				o.want(changedLog(w))
				if left := w.below(".tierfs/unlinked"); len(left) > 0 {
					t.Errorf("a file with bytes of its own is retained: %v", left)
				}
				w.takeOver(nil)
				o.rebuilt()
				o.want(changedLog(w))
				o.close()
			})
		}
	}
}

// A start without a broker keeps nothing for one; who closes a file ends it as well.
func TestRetainedGo(t *testing.T) {
	w := newWorld(t, 3)
	w.write("t-0/swap", swapped)
	w.remote(w.starts[0])
	o := w.openHandle(first(w))
	w.do(replace(w))
	if left := w.below(".tierfs/unlinked"); len(left) != 1 {
		t.Fatalf("retained: %v", left)
	}
	o.close()
	if left := w.below(".tierfs/unlinked"); len(left) != 0 {
		t.Errorf("retained: %v", left)
	}
	w.do(os.WriteFile(filepath.Join(w.path, ".tierfs/unlinked/x"), []byte("x"), 0o600))
	w.reopen()
	if left := w.below(".tierfs/unlinked"); len(left) != 0 {
		t.Errorf("after a start: %v", left)
	}
}

// What an eviction left whole is written without the store.
func TestTakeoverNeedsNoStoreForWholeBytes(t *testing.T) {
	w := newWorld(t, 3)
	w.do(w.upload("t-0", w.starts[0]))
	o := w.openHandle(first(w))
	w.crashIn("evict:empty", func() { _ = w.evict("t-0", w.starts[0]) })
	w.takeOver(func(o *Options) { o.quick, o.Store = 1, nil })
	o.rebuilt()
	if o.f.State() != Filling {
		t.Fatalf("it is %v", o.f.State())
	}
	w.do(write(w))
	w.wantContent(w.dir("t-0"), first(w), changedLog(w))
	o.want(changedLog(w))
}

// A broker that is about to delete an index leaves no hole.
func TestTakeoverDuringADeletion(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	w.do(w.v.Unlink(d, first(w))) // a local one: no tombstone tells of it
	w.takeOver(nil)
	p := w.partition("t-0")
	if got := p.Holes(); len(got) != 0 {
		t.Errorf("holes at once: %v", got)
	}
	w.do(w.v.Unlink(d, segment.Stem(w.starts[0])+".index"))
	if p.holed() {
		t.Error("a hole")
	}
}

// An upload that a predecessor began is not this one's.
func TestTakeoverOfAnUpload(t *testing.T) {
	w := newWorld(t, 3)
	u, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", 0))
	w.do(err)
	for _, o := range u.Objects {
		w.do(w.store.Put(t.Context(), o.Key, o.Body, objstore.PutOptions{IfAbsent: true}))
	}
	u.Close()
	w.takeOver(nil)
	w.do(w.v.CheckOwner(t.Context()))
	w.do(w.upload("t-0", 0))
	w.retireAll()
	if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
		t.Errorf("the store has %v, named are %v", got, want)
	}
}

// A segment with two names, stopped half way back, keeps both.
func TestTakeoverOfALinkedFill(t *testing.T) {
	w := newWorld(t, 3)
	w.remote(w.starts[0])
	w.do(w.link(first(w), "backup"))
	w.crashIn("rehydrate:fsync", func() { w.do(w.v.Rehydrate(t.Context(), w.segment("t-0", w.starts[0]).File)) })
	w.takeOver(func(o *Options) { o.quick = 1 })
	d := w.dir("t-0")
	w.wantContent(d, first(w), firstLog(w))
	w.wantContent(d, "backup", firstLog(w))
	w.do(write(w))
	w.wantContent(d, "backup", changedLog(w))
}

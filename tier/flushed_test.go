package tier

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// backWorld is a world whose kernel writes back. Its broker has made a segment, which it
// has open, and two behind it, the second of them active.
type backWorld struct {
	*world
	o     *opened
	unit  int // bytes of the segment that were sent, a whole number of batches
	asked []string
	flush func(ctx context.Context, path string, ino uint64) error
}

func newBackWorld(t *testing.T, back bool) *backWorld {
	b := &backWorld{world: newWorld(t, 0)}
	b.tune = func(o *Options) {
		o.Writeback = back
		o.Flush = func(ctx context.Context, path string, ino uint64) error {
			b.asked = append(b.asked, path)
			if b.flush == nil {
				return errors.New("no")
			}
			return b.flush(ctx, path, ino)
		}
	}
	b.reopen()
	next := uint64(0)
	for range 3 {
		log, index, end := segmenttest.Kafka(next, 8, 5, 200)
		b.starts, b.logs[next] = append(b.starts, next), log
		b.do(b.create("t-0", name(next)))
		b.do(b.create("t-0", segment.Stem(next)+".index"))
		b.write("t-0/"+segment.Stem(next)+".index", index)
		b.write("t-0/"+name(next), log)
		next = end
	}
	b.o = b.openHandle(first(b.world))
	log := firstLog(b.world)
	for at := 0; at < len(log)/2; at += 12 + int(log[at+10])<<8 + int(log[at+11]) {
		b.unit = at
	}
	b.do(os.Truncate(filepath.Join(b.path, "t-0", first(b.world)), int64(b.unit)))
	b.do(os.Remove(filepath.Join(b.path, "t-0", segment.Stem(0)+".index")))
	return b
}

// send is what the kernel does with what it held, and then with the fsync.
func (b *backWorld) send(sync bool) error {
	done, err := b.o.f.Mutate(b.t.Context(), Mutation{Kind: Write})
	if err != nil {
		return err
	}
	err = overwrite(int64(b.unit), firstLog(b.world)[b.unit:])(b.o.fd)
	done()
	if sync {
		b.o.f.Syncing().Done(err == nil)
	}
	return err
}

func (b *backWorld) wantWhole() {
	b.t.Helper()
	if got := b.logObjects(); len(got) != 1 {
		b.t.Fatalf("the store has %v", got)
	}
	object, _ := b.store.Bytes(b.logObjects()[0])
	if !bytes.Equal(object, firstLog(b.world)) {
		b.t.Errorf("the object has %d bytes of %d", len(object), len(firstLog(b.world)))
	}
}

// What ends at a batch is whole to whoever walks it.
func TestTailThatTheKernelHolds(t *testing.T) {
	b := newBackWorld(t, false)
	b.do(b.upload("t-0", 0))
	object, _ := b.store.Bytes(b.logObjects()[0])
	if len(object) != b.unit {
		t.Fatalf("a walk found %d bytes of %d", len(object), b.unit)
	}

	b = newBackWorld(t, true)
	b.wantRefused(b.upload("t-0", 0), ReasonUnsent)
	b.wantRefused(b.upload("t-0", 0), ReasonUnsent)
	if len(b.asked) != 1 {
		t.Errorf("the kernel was asked for %v at once", b.asked)
	}
	var ino unix.Stat_t
	b.do(unix.Fstat(b.o.fd, &ino))
	b.flush = func(ctx context.Context, path string, n uint64) error {
		until, limited := ctx.Deadline()
		if !limited || time.Until(until) > flushTimeout || path != "t-0/"+name(0) || n != ino.Ino {
			t.Errorf("asked for %s, inode %d, until %v", path, n, until)
		}
		return b.send(true)
	}
	b.o.f.flush.worked() // the pause is over
	b.do(b.upload("t-0", 0))
	b.wantWhole()
	b.do(b.evict("t-0", 0))
	b.o.want(firstLog(b.world))
}

// An answer that is no fsync is none.
func TestFlushThatComesToNothing(t *testing.T) {
	b := newBackWorld(t, true)
	b.flush = func(context.Context, string, uint64) error { return b.send(false) }
	b.wantRefused(b.upload("t-0", 0), ReasonUnsent)
	ctx, cancel := context.WithCancel(t.Context())
	b.flush = func(ctx context.Context, _ string, _ uint64) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	b.o.f.flush.worked()
	_, err := b.v.Prepare(ctx, b.partition("t-0"), b.segment("t-0", 0))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("an upload that was given up: %v", err)
	}
	b.tune = func(o *Options) { o.Writeback = true }
	b.takeOver(nil)
	b.o.rebuilt()
	b.wantRefused(b.upload("t-0", 0), ReasonUnsent)
}

func TestFlushPauses(t *testing.T) {
	var p flushPause
	now := time.Now()
	var got []time.Duration
	for range 8 {
		if p.pauses(now) {
			t.Fatal("a pause that is over")
		}
		d := p.failed(now)
		got = append(got, d)
		if !p.pauses(now.Add(d-1)) || p.pauses(now.Add(d)) {
			t.Fatalf("it does not pause for %v", d)
		}
		now = now.Add(d)
	}
	if got[0] != flushPauseMin || got[1] != 2*flushPauseMin || got[7] != flushPauseMax {
		t.Errorf("pauses %v", got)
	}
}

// What tells that all was sent.
func TestSent(t *testing.T) {
	for what, c := range map[string]struct {
		do   func(b *backWorld)
		sent bool
	}{
		"nothing":         {func(*backWorld) {}, false},
		"fsync":           {func(b *backWorld) { b.o.f.Syncing().Done(true) }, true},
		"fsync that fail": {func(b *backWorld) { b.o.f.Syncing().Done(false) }, false},
		"flush":           {func(b *backWorld) { b.o.f.Synced() }, false},
		"close":           {func(b *backWorld) { b.o.f.Closed(true) }, true},
		"another's close": {func(b *backWorld) { b.o.f.Opened(true); b.o.f.Closed(true) }, false},
		"fsync from before the sealing": {func(b *backWorld) {
			s := b.o.f.Syncing()
			b.do(b.v.Unlink(b.dir("t-0"), second(b.world)))
			b.do(b.create("t-0", second(b.world)))
			s.Done(true)
		}, false},
		"older fsync ends last": {func(b *backWorld) {
			s := b.o.f.Syncing()
			b.o.f.Syncing().Done(true)
			s.Done(true)
		}, true},
		"fsync, and a start in between": {func(b *backWorld) {
			b.o.f.Syncing().Done(true)
			next := b.starts[1] - 1
			b.do(b.create("t-0", name(next)))
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBackWorld(t, true)
			c.do(b)
			b.write("t-0/"+first(b.world), firstLog(b.world))
			if err := b.upload("t-0", 0); !c.sent {
				b.wantRefused(err, ReasonUnsent)
			} else if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What a start finds was sent, also if the broker opens it now; a successor does not
// know.
func TestSentBeforeAStart(t *testing.T) {
	w := newWorld(t, 3)
	w.tune = func(o *Options) { o.Writeback = true }
	w.reopen()
	o := w.openHandle(first(w))
	w.do(w.upload("t-0", w.starts[0]))
	o2 := w.openHandle(second(w))
	w.takeOver(nil)
	o.rebuilt()
	o2.rebuilt()
	w.do(w.v.CheckOwner(t.Context()))
	w.wantRefused(w.upload("t-0", w.starts[1]), ReasonUnsent)
	w.wantRefused(w.evict("t-0", w.starts[0]), ReasonUnsent)
	o.f.Syncing().Done(true)
	w.do(w.evict("t-0", w.starts[0]))
	o2.f.Closed(true)
	w.do(w.upload("t-0", w.starts[1]))
}

// The files beside a segment are held to the same, and after a takeover an index that
// stays mapped is flushed in either mode.
func TestSentBeside(t *testing.T) {
	for _, back := range []bool{true, false} {
		w := newWorld(t, 3)
		index := segment.Stem(w.starts[0]) + ".index"
		var asked []string
		var o *opened
		w.tune = func(opt *Options) {
			opt.Writeback = back
			opt.Flush = func(_ context.Context, path string, _ uint64) error {
				asked = append(asked, path)
				o.f.Syncing().Done(true)
				return nil
			}
		}
		w.reopen()
		o = w.openHandle(index)
		w.takeOver(nil)
		o.f = w.v.FileOf(o.h)
		o.f.Reopened(true)
		w.do(w.upload("t-0", w.starts[0]))
		if !slices.Equal(asked, []string{"t-0/" + index}) {
			t.Errorf("writeback %v: asked for %v", back, asked)
		}
	}
	w := newWorld(t, 3)
	o := w.openHandle(segment.Stem(w.starts[0]) + ".index")
	w.takeOver(nil)
	o.f = w.v.FileOf(o.h)
	o.f.Reopened(true)
	w.wantRefused(w.upload("t-0", w.starts[0]), ReasonSideFile)
	o.f.Closed(true)
	w.do(w.upload("t-0", w.starts[0]))
}

// The kernel sends times late, wherever the segment is by then: they are its times, and
// no change of its bytes.
func TestLateTimes(t *testing.T) {
	want := time.Unix(1500000000, 0)
	for _, at := range []struct {
		name    string
		prepare func(*world)
	}{{"local", local}, {"uploaded", uploaded}, {"leaving", leaving}, {"remote", remote}, {"filling", func(w *world) {
		w.remote(w.starts[0])
		w.crashIn("rehydrate:fsync", func() { w.do(w.v.Rehydrate(w.t.Context(), w.segment("t-0", w.starts[0]).File)) })
	}}} {
		t.Run(at.name, func(t *testing.T) {
			w := newWorld(t, 3)
			at.prepare(w)
			s := w.segment("t-0", w.starts[0])
			w.do(w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Attr}, func(fd int) error {
				return putBack(fd, times{{Sec: want.Unix()}, {Sec: want.Unix()}})
			}))
			w.wantModified(want)
			now := w.segment("t-0", w.starts[0])
			if now.State != s.State || now.Record != s.Record || now.File.Changes() != s.File.Changes() {
				t.Errorf("it is %v, was %v", now.State, s.State)
			}
			w.wantContent(w.dir("t-0"), first(w), firstLog(w))
			w.takeOver(func(o *Options) { o.quick = 1 })
			w.wantModified(want)
			w.do(w.v.CheckOwner(t.Context()))
			if now := w.segment("t-0", w.starts[0]); now.State == Local {
				w.do(w.upload("t-0", w.starts[0]))
			}
			if w.segment("t-0", w.starts[0]).State != Remote {
				w.do(w.evict("t-0", w.starts[0]))
			}
			w.wantModified(want)
			w.do(w.v.Rehydrate(t.Context(), w.segment("t-0", w.starts[0]).File))
			w.wantModified(want)
			w.wantContent(w.dir("t-0"), first(w), firstLog(w))
		})
	}
}

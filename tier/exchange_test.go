package tier

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestExchange lets segments of every two states change places.
func TestExchange(t *testing.T) {
	states := map[string]func(w *world, start uint64){
		"local":    func(*world, uint64) {},
		"uploaded": func(w *world, start uint64) { w.do(w.upload("t-0", start)) },
		"leaving": func(w *world, start uint64) {
			w.do(w.upload("t-0", start))
			w.crashIn("evict:empty", func() { _ = w.evict("t-0", start) })
		},
		"remote": func(w *world, start uint64) { w.remote(start) },
	}
	for one, first := range states {
		for other, second := range states {
			t.Run(one+" and "+other, func(t *testing.T) {
				w := newWorld(t, 4)
				a, b := w.starts[0], w.starts[1]
				if one == "local" || one == "uploaded" { // what is evicted is the older one
					a, b = b, a
					second(w, b)
					first(w, a)
				} else {
					first(w, a)
					second(w, b)
				}
				d := w.dir("t-0")
				err := w.v.Rename(d, name(a), d, name(b), unix.RENAME_EXCHANGE)
				want := map[uint64][]byte{a: w.logs[b], b: w.logs[a]}
				if (one == "remote") != (other == "remote") {
					want = w.logs
					if !errors.Is(err, unix.EINVAL) {
						t.Fatalf("got %v, want EINVAL", err)
					}
				} else {
					w.do(err)
				}
				for range 2 {
					w.wantContent(d, name(a), want[a])
					w.wantContent(d, name(b), want[b])
					w.reopen()
					d = w.dir("t-0")
				}
				w.retireAll()
				if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
					t.Errorf("the store has %v, named are %v", got, want)
				}
			})
		}
	}
}

// A directory, a symlink and a segment may change places, or take each other's.
func TestOtherThingsInASegmentsPlace(t *testing.T) {
	for what, do := range map[string]func(t *testing.T, w *world, d Dir, state string){
		"a directory onto a segment": otherThingOnto,
		"a segment over a symlink":   overASymlink,
		"a symlink over a segment":   symlinkOver,
		"a directory and a segment":  exchangeWithDirectory,
	} {
		for _, state := range []string{"local", "uploaded", "remote"} {
			t.Run(what+" "+state, func(t *testing.T) {
				w := newWorld(t, 3)
				if state != "local" {
					w.do(w.upload("t-0", 0))
				}
				if state == "remote" {
					w.do(w.evict("t-0", 0))
				}
				w.mkdir("t-0/sub")
				w.do(os.Symlink("elsewhere", filepath.Join(w.path, "t-0", "sym")))
				do(t, w, w.dir("t-0"), state)
			})
		}
	}
}

func wantErrno(t *testing.T, err error, want unix.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// otherThingOnto: nothing that a native directory refuses is done.
func otherThingOnto(t *testing.T, w *world, d Dir, _ string) {
	wantErrno(t, w.v.Rename(d, "sub", d, name(0), 0), unix.ENOTDIR)
	wantErrno(t, w.v.Rename(d, name(0), d, "sub", 0), unix.EISDIR)
	w.wantContent(d, name(0), w.logs[0])
	wantErrno(t, w.v.Rename(d, "sym", d, name(0), unix.RENAME_NOREPLACE), unix.EEXIST)
	wantErrno(t, w.link(name(w.starts[1]), name(0)), unix.EEXIST)
	wantErrno(t, w.v.Rename(d, name(0), d, "missing", unix.RENAME_EXCHANGE), unix.ENOENT)
	wantErrno(t, w.v.Rename(d, name(0), d, name(w.starts[1]), unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE), unix.EINVAL)
	w.reopen()
	w.wantContent(w.dir("t-0"), name(0), w.logs[0])
}

// overASymlink: the segment goes on under the symlink's name.
func overASymlink(t *testing.T, w *world, d Dir, _ string) {
	w.do(w.v.Rename(d, name(0), d, "sym", 0))
	for range 2 {
		w.wantContent(d, "sym", w.logs[0])
		if _, err := w.v.Lookup(d, name(0)); !isNotExist(err) {
			t.Errorf("the old name: %v", err)
		}
		w.reopen()
		d = w.dir("t-0")
	}
}

// symlinkOver: the segment is gone, and so are its objects.
func symlinkOver(t *testing.T, w *world, d Dir, _ string) {
	w.do(w.v.Rename(d, "sym", d, name(0), 0))
	for range 2 {
		if e, err := w.v.Lookup(d, name(0)); err != nil || e.Stat.Mode&unix.S_IFMT != unix.S_IFLNK {
			t.Errorf("mode %o, %v", e.Stat.Mode, err)
		}
		w.reopen()
		d = w.dir("t-0")
	}
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Errorf("the store has %v", got)
	}
}

// exchangeWithDirectory: what is not remote changes places with a directory, either way round.
func exchangeWithDirectory(t *testing.T, w *world, d Dir, state string) {
	from, to := "sub", name(0)
	if state == "uploaded" {
		from, to = to, from
	}
	err := w.v.Rename(d, from, d, to, unix.RENAME_EXCHANGE)
	if state == "remote" {
		wantErrno(t, err, unix.EINVAL)
		w.wantContent(d, name(0), w.logs[0])
		return
	}
	w.do(err)
	w.wantContent(d, "sub", w.logs[0])
	if e, err := w.v.Lookup(d, name(0)); err != nil || e.Stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.Errorf("mode %o, %v", e.Stat.Mode, err)
	}
}

// Two partitions change places, and keep their objects.
func TestExchangeOfPartitions(t *testing.T) {
	w := newWorld(t, 3)
	w.mkdir("t-1")
	next := uint64(1000)
	for range 2 {
		w.addSegment("t-1", &next)
	}
	w.reopen()
	w.remote(0)
	root := w.dir(".")
	w.do(w.v.Rename(root, "t-0", root, "t-1", unix.RENAME_EXCHANGE))
	for range 2 {
		w.wantContent(w.dir("t-1"), name(0), w.logs[0])
		if got := w.partition("t-1").Segments()[0]; got.State != Remote || got.Start != 0 {
			t.Errorf("the first segment of t-1 is %d, %v", got.Start, got.State)
		}
		if got := w.partition("t-0").Segments()[0].Start; got != 1000 {
			t.Errorf("the first segment of t-0 is %d", got)
		}
		w.reopen()
	}
}

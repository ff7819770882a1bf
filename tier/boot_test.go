package tier

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/segment"
)

func TestLock(t *testing.T) {
	w := newWorld(t, 1)
	fd, err := unix.Open(w.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	w.do(err)
	defer unix.Close(fd)
	if _, err := Open(t.Context(), Options{Root: fd}); err != ErrLocked {
		t.Fatalf("got %v, want ErrLocked", err)
	}
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
	unknown := other.Marshal()
	for what, bad := range map[string][]byte{
		"short": good[:100], "long": append(bytes.Clone(good), 0), "empty": {}, "checksum": append([]byte{good[0] ^ 1}, good[1:]...),
		"incarnation": unknown[:],
	} {
		t.Run(what, func(t *testing.T) {
			w.do(os.WriteFile(path, bad, 0o644))
			w.open()
			w.wantState("t-0", start, Quarantined)
			if _, err := w.content(w.dir("t-0"), name(start)); err == nil {
				t.Error("reads of a quarantined segment succeed")
			}
			if e, err := w.v.Lookup(w.dir("t-0"), name(start)); err != nil || e.Stat.Size == 0 {
				t.Errorf("it looks empty: a read would end at once, without an error (%v)", err)
			} else {
				e.File.Release()
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

// A quarantined file stays one under a name that is no segment's.
func TestQuarantineOfOtherNames(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.remote(start)
	d := w.dir("t-0")
	w.do(w.v.Rename(d, name(start), d, "backup", 0))
	w.close()
	p := filepath.Join(w.path, "t-0", "backup.remote")
	b, err := os.ReadFile(p)
	w.do(err)
	b[30] ^= 1
	w.do(os.WriteFile(p, b, 0o644))
	w.open()
	for range 2 { // the second look finds what the first left behind
		if got, err := w.content(w.dir("t-0"), "backup"); !errors.Is(err, ErrQuarantined) {
			t.Errorf("a quarantined file gives %d bytes, %v", len(got), err)
		}
	}
}

// A local file that somebody made beside a remote one is served; when it goes, the
// marker does not come back as a file of 128 bytes.
func TestTwins(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.remote(start)
	w.close()
	w.write("t-0/"+name(start), []byte("made by hand"))
	w.open()
	d := w.dir("t-0")
	w.wantContent(d, name(start), []byte("made by hand"))
	w.do(w.v.Unlink(d, name(start)))
	if got, err := w.content(d, name(start)); !isNotExist(err) {
		t.Errorf("after the unlink the name gives %d bytes, %v", len(got), err)
	}
}

// A disk without a free block is when tierfs is needed most.
func TestOpenOnAFullDisk(t *testing.T) {
	w := newWorld(t, 0)
	w.close()
	w.path = t.TempDir()
	w.do(unix.Mount("tmpfs", w.path, "tmpfs", 0, "size=1m"))
	defer unix.Unmount(w.path, unix.MNT_DETACH)
	defer w.close()
	w.open()
	w.close()
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(w.path, fmt.Sprint("fill", i)), make([]byte, 4096), 0o644)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	w.open()
}

// A segment that the broker gave another start is the segment of its new name.
func TestRenameToAnotherStart(t *testing.T) {
	for _, evicted := range []bool{false, true} {
		w := newWorld(t, 3)
		start := w.starts[0]
		w.do(w.upload("t-0", start))
		if evicted {
			w.do(w.evict("t-0", start))
		}
		d := w.dir("t-0")
		w.do(w.v.Rename(d, name(start), d, name(7), 0))
		w.wantContent(d, name(7), w.logs[start])
		w.reopen()
		w.wantContent(w.dir("t-0"), name(7), w.logs[start])
		if s := w.segment("t-0", 7); !s.Held() {
			t.Errorf("it is %v", s.State)
		}
		w.retireAll()
		if len(w.logObjects()) != 1 {
			t.Error("its object is gone")
		}
	}
}

// A pair that was found at boot, whose object is gone from the store: the segment
// is whole, so it is uploaded again.
func TestLostObjectIsUploadedAgain(t *testing.T) {
	for what, lose := range map[string]func(w *world, key string){
		"missing": func(w *world, key string) { w.do(w.store.Delete(w.t.Context(), key)) },
		"cut": func(w *world, key string) {
			w.store.Corrupt(key, func(b []byte) []byte { return b[:len(b)-1] })
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 3)
			start := w.starts[0]
			w.do(w.upload("t-0", start))
			w.do(w.v.CheckOwner(t.Context()))
			w.reopen()
			lose(w, w.logObjects()[0])
			w.wantRefused(w.evict("t-0", start), ReasonLost)
			w.wantState("t-0", start, Local)
			w.remote(start)
			w.retireAll()
			w.wantContent(w.dir("t-0"), name(start), w.logs[start])
		})
	}
	t.Run("another store", func(t *testing.T) {
		w := newWorld(t, 3)
		w.do(w.upload("t-0", 0))
		w.do(w.v.CheckOwner(t.Context()))
		w.store = sim.New(sim.Options{})
		w.reopen()
		if err := w.evict("t-0", 0); !errors.Is(err, ErrNotOwner) {
			t.Errorf("got %v, want ErrNotOwner", err)
		}
		w.wantState("t-0", 0, Uploaded)
	})
}

// A marker that no catalog knows is not served as a file of 128 bytes, and goes on
// as what it is.
func TestStrayMarker(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	w.remote(start)
	b, err := os.ReadFile(filepath.Join(w.path, "t-0", remoteName(name(start))))
	w.do(err)
	w.write("t-0/"+remoteName("stray"), b)
	d := w.dir("t-0")
	if got, err := w.content(d, "stray"); !errors.Is(err, ErrQuarantined) {
		t.Errorf("it gives %d bytes, %v", len(got), err)
	}
	w.do(w.v.Rename(d, "stray", d, "moved", 0))
	if got, err := w.content(d, "moved"); !errors.Is(err, ErrQuarantined) {
		t.Errorf("renamed it gives %d bytes, %v", len(got), err)
	}
	w.do(w.v.Unlink(d, "moved"))
}

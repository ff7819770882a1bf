package tier

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
)

func TestHidden(t *testing.T) {
	w := newWorld(t, 3)
	d := w.dir("t-0")
	w.remote(w.starts[0])
	w.do(w.upload("t-0", w.starts[1]))
	for _, n := range []string{segment.Stem(w.starts[0]) + ".remote", segment.Stem(w.starts[1]) + ".uploaded", ".tierfs-partition"} {
		if _, err := w.v.Lookup(d, n); err != unix.ENOENT {
			t.Errorf("lookup of %s: %v", n, err)
		}
		if err := w.v.Unlink(d, n); err != unix.ENOENT {
			t.Errorf("unlink of %s: %v", n, err)
		}
		if _, _, err := w.v.Create(d, n, unix.O_RDWR, 0o644); err != unix.EPERM {
			t.Errorf("create of %s: %v", n, err)
		}
		if err := w.v.Rename(d, name(w.starts[2]), d, n, 0); err != unix.EPERM {
			t.Errorf("rename to %s: %v", n, err)
		}
	}
	list, err := w.v.List(d)
	w.do(err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	var want []string
	for _, s := range w.starts {
		want = append(want, segment.Stem(s)+".index", name(s))
	}
	if !slices.Equal(names, want) {
		t.Errorf("listing %v, want %v", names, want)
	}
}

// A lookup that a rename overtakes must not leave its old name with the file: the
// object would never be free to go, and a write would look for the old name.
func TestLookupOvertakenByARename(t *testing.T) {
	overtaken := func(t *testing.T) (w *world, d Dir, gone string) {
		w = newWorld(t, 3)
		d = w.dir("t-0")
		old := name(w.starts[0])
		w.remote(w.starts[0])
		looked := make(chan struct{})
		w.step = func(s string) {
			if s != "rename:name" {
				return
			}
			go func() {
				defer close(looked)
				if e, err := w.v.Lookup(d, old); err == nil {
					e.File.Release()
				}
			}()
			time.Sleep(20 * time.Millisecond) // for it to come as far as the file's lock, which nobody sees
		}
		w.do(w.v.Rename(d, old, d, old+".deleted", 0))
		<-looked
		w.step = nil
		return w, d, old + ".deleted"
	}
	t.Run("the object goes", func(t *testing.T) {
		w, d, gone := overtaken(t)
		w.do(w.v.Unlink(d, gone))
		w.retireAll()
		if got := w.logObjects(); len(got) != 0 {
			t.Errorf("objects leak: %v", got)
		}
	})
	t.Run("a write", func(t *testing.T) {
		w, d, gone := overtaken(t)
		w.do(w.mutate(d, gone, Mutation{Kind: Write}, overwrite(0, w.logs[w.starts[0]][:4])))
		w.wantContent(d, gone, w.logs[w.starts[0]])
	})
}

// Names that are too long for a marker are names all the same: Kafka's topics may
// have 249 characters.
func TestLongNames(t *testing.T) {
	w := newWorld(t, 1)
	for _, n := range []int{248, 249, 255} {
		if _, err := w.v.Lookup(w.dir("."), strings.Repeat("a", n)); !isNotExist(err) {
			t.Errorf("lookup of a missing name of %d bytes: %v", n, err)
		}
	}
	if _, err := w.v.Lookup(w.dir("."), strings.Repeat("a", 256)); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("lookup of a name of 256 bytes: %v", err)
	}
}

// A directory is no marker, whatever it is called: it is not there.
func TestDirectoryCalledLikeAMarker(t *testing.T) {
	w := newWorld(t, 1)
	w.mkdir("x.remote")
	if _, err := w.v.Lookup(w.dir("."), "x"); !isNotExist(err) {
		t.Errorf("lookup: %v", err)
	}
	list, err := w.v.List(w.dir("."))
	w.do(err)
	for _, e := range list {
		if e.Name == "x" {
			t.Error("it is listed")
		}
	}
}

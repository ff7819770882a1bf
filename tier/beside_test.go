package tier

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
)

// What stands in the place of a file beside a segment and is none is left out: the
// upload neither fails because of it nor waits for it.
func TestStrangersBesideASegment(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"pipe":      func(path string) error { return unix.Mkfifo(path, 0o644) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"socket": func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, 3)
			start := w.starts[0]
			index := filepath.Join(w.path, "t-0", segment.Stem(start)+".index")
			w.do(os.Remove(index))
			w.do(put(index))
			w.remote(start)
			if rec := w.segment("t-0", start).Record; rec.IndexSize != 0 || w.store.Count("put") != 1 {
				t.Errorf("the index counts with %d bytes; %d PUTs", rec.IndexSize, w.store.Count("put"))
			}
		})
	}
}

// A segment whose record has no place is not put at all: it would be put for ever.
func TestNoPlaceForARecord(t *testing.T) {
	w := newWorld(t, 3)
	start := w.starts[0]
	place := filepath.Join(w.path, "t-0", uploadedName(name(start)))
	w.do(os.Mkdir(place, 0o755))
	w.wantRefused(w.upload("t-0", start), ReasonNoPlace)
	if n := w.store.Count("put"); n != 0 || len(w.v.Tombstones()) != 0 {
		t.Errorf("%d PUTs, tombstones %v", n, w.v.Tombstones())
	}
	w.do(os.Remove(place))
	w.remote(start)
}

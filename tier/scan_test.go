package tier

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// A start reads names and records, nothing else: no request, and no file for what
// stands beside a segment.
func TestOpenOverManyRemoteSegments(t *testing.T) {
	root := t.TempDir()
	if err := tiertest.Plant(root, tiertest.Plan{Prefix: "p", Partitions: 3, Segments: 50}); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	store := sim.New(sim.Options{})
	v, err := Open(t.Context(), Options{Root: fd, Store: store, Prefix: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if n := len(v.Partitions()); n != 3 {
		t.Errorf("%d partitions", n)
	}
	for _, p := range v.Partitions() {
		segs := p.Segments()
		if len(segs) != 51 || p.Reason() != "" {
			t.Fatalf("%s: %d segments, %s", p.Path(), len(segs), p.Reason())
		}
		for _, s := range segs[:50] {
			use, err := s.File.Usage()
			if s.State != Remote || s.Record.Start != s.Start || err != nil || use.Size != tiertest.SegmentSize {
				t.Errorf("%s %s: %v, %+v, %v", p.Path(), s.Name(), s.State, use, err)
			}
		}
		if last := segs[50]; last.State != Local || !last.Active {
			t.Errorf("%s: the last one is %v", p.Path(), last.State)
		}
	}
	if n := len(v.files); n != 3*51 {
		t.Errorf("the catalog has %d files", n)
	}
	for _, op := range []string{"get", "head", "list", "put", "delete"} {
		if n := store.Count(op); n != 0 {
			t.Errorf("%d requests %s", n, op)
		}
	}
}

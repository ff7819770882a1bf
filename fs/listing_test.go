package fs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// Names with the same hash have an order and offsets of their own.
func TestOffsets(t *testing.T) {
	names := []tier.ListEntry{{Name: "c"}, {Name: "b"}, {Name: "x"}, {Name: "a"}, {Name: "zero"}}
	got := inOrder(names, func(name string) uint64 {
		switch name {
		case "x":
			return ^uint64(0)
		case "zero":
			return 0
		}
		return 7 << 8
	})
	var order []string
	last := uint64(dotDotOffset)
	for _, e := range got {
		if e.off <= last || int64(e.off) < 0 {
			t.Errorf("%s has offset %#x after %#x", e.Name, e.off, last)
		}
		last = e.off
		order = append(order, e.Name)
	}
	if want := []string{"zero", "a", "b", "c", "x"}; !slices.Equal(order, want) {
		t.Errorf("got %v, want %v", order, want)
	}
}

// readSome reads one small buffer of names behind an offset.
func (l *lives) readSome(fh, off uint64) (names []string, next uint64) {
	l.t.Helper()
	buf := make([]byte, 512)
	list := fuse.NewDirEntryList(buf, off)
	l.ok("readdir", l.f.ReadDir(nil, &fuse.ReadIn{Fh: fh, Offset: off, Size: 512}, list))
	for _, e := range parseDirents(buf) {
		names, next = append(names, e.name), uint64(e.off)
	}
	return names, next
}

// parseDirents decodes the fuse_dirents at the beginning of b.
func parseDirents(b []byte) (out []dirent) {
	for len(b) >= 24 {
		off, length := le64(b[8:]), int(b[16])|int(b[17])<<8
		if length == 0 {
			return out
		}
		out = append(out, dirent{string(b[24 : 24+length]), int64(off)})
		b = b[(24+length+7)&^7:]
	}
	return out
}

func le64(b []byte) (v uint64) {
	for i := 7; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

// A directory is read through takeovers while names come and go: what was there all
// the time is given once.
func TestListingOverTakeovers(t *testing.T) {
	l := newLives(t, tier.Options{})
	r := rand.New(rand.NewPCG(1, 1))
	check(t, os.Mkdir(l.at("d"), 0o700))
	var stay []string
	for i := range 300 {
		name := fmt.Sprintf("stays-%d", i)
		stay = append(stay, name)
		l.write("d/"+name, "")
		l.write(fmt.Sprintf("d/goes-%d", i), "")
	}
	slices.Sort(stay)
	var out fuse.OpenOut
	l.ok("opendir", l.f.OpenDir(nil, &fuse.OpenIn{InHeader: l.request(l.lookup("d").NodeId)}, &out))
	seen := map[string]int{}
	for off := uint64(0); ; {
		names, next := l.readSome(out.Fh, off)
		if len(names) == 0 {
			break
		}
		off = next
		for _, name := range names {
			seen[name]++
		}
		_ = unix.Unlink(l.at(fmt.Sprintf("d/goes-%d", r.IntN(300))))
		l.write(fmt.Sprintf("d/comes-%d", r.IntN(1000)), "")
		if r.IntN(3) == 0 {
			l.takeOver()
		}
	}
	for _, name := range append(stay, ".", "..") {
		if seen[name] != 1 {
			t.Errorf("%s was given %d times", name, seen[name])
		}
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s was given %d times", name, n)
		}
	}
}

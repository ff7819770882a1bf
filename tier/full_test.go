package tier

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// fullWorld is a world on a small disk.
type fullWorld struct {
	*world
	left uint64 // blocks that eat could not get
}

// newFullWorld has so many segments of some blocks each, and an active one.
func newFullWorld(t *testing.T, remote, uploaded, local int) *fullWorld {
	t.Helper()
	w := &fullWorld{world: newWorld(t, 0)}
	w.close()
	w.path = tiertest.SmallDisk(t, 5)
	t.Cleanup(w.close) // before the disk goes
	w.mkdir("t-0")
	w.write("meta.properties", []byte("node.id=1\n"))
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		w.write(name, []byte("0\n1\nt 0 1000000\n"))
	}
	next := uint64(0)
	for range remote + uploaded + local + 1 {
		log, index, end := segmenttest.Kafka(next, 8, 5, 500)
		w.starts, w.logs[next] = append(w.starts, next), log
		w.write("t-0/"+name(next), log)
		w.write("t-0/"+segment.Stem(next)+".index", index)
		next = end
	}
	w.open()
	w.do(w.v.CheckOwner(t.Context()))
	for _, start := range w.starts[:remote] {
		w.remote(start)
	}
	for _, start := range w.starts[remote : remote+uploaded] {
		w.do(w.upload("t-0", start))
	}
	return w
}

// eat writes files until the disk has not a single block left, for nobody.
func (w *fullWorld) eat() {
	w.t.Helper()
	for size := 1 << 20; size >= 4096; size /= 2 {
		for i := 0; ; i++ {
			f, err := os.OpenFile(filepath.Join(w.path, fmt.Sprintf("fill-%d", size)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
			if err == nil {
				_, err = f.Write(make([]byte, size))
				err = errors.Join(err, f.Sync(), f.Close())
			}
			if errors.Is(err, unix.ENOSPC) {
				break
			}
			w.do(err)
		}
	}
	w.left = w.free()
}

// free is how many blocks the disk has left. ext4 keeps some that nobody gets.
func (w *fullWorld) free() uint64 {
	w.t.Helper()
	var st unix.Statfs_t
	w.do(unix.Statfs(w.path, &st))
	return st.Bfree
}

// freed is how many blocks are free again since eat.
func (w *fullWorld) freed() int { return int(w.free()) - int(w.left) }

// An upload and an eviction free a disk that has not a block left.
func TestFullDiskIsFreed(t *testing.T) {
	w := newFullWorld(t, 1, 0, 20)
	w.eat()
	if err := os.WriteFile(filepath.Join(w.path, "one"), []byte("x"), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk takes a file: %v", err)
	}
	for _, start := range w.starts[1 : len(w.starts)-1] {
		w.remote(start)
	}
	if free := w.freed(); free < 20*4 {
		t.Errorf("%d blocks are free afterwards", free)
	}
	d := w.dir("t-0")
	for start, log := range w.logs {
		w.wantContent(d, name(start), log)
	}
	for i := range 21 {
		_ = os.Remove(filepath.Join(w.path, fmt.Sprintf("fill-%d", 1<<i)))
	}
	w.remakeReserve()
}

// remakeReserve looks whether the reserve is whole again once there is room.
func (w *fullWorld) remakeReserve() {
	w.t.Helper()
	w.v.reserve.take()
	if got := w.below(".tierfs/reserve"); len(got) != reserveFiles {
		w.t.Errorf("the reserve has %v", got)
	}
}

// What the broker does to get room works without any.
func TestFullDiskTakesDeletions(t *testing.T) {
	w := newFullWorld(t, 60, 60, 60)
	remote, uploaded, local := w.starts[:60], w.starts[60:120], w.starts[120:180]
	w.eat()
	d := w.dir("t-0")
	w.do(empty(first)(w.world)) // truncation of a remote segment
	if got, err := w.content(d, name(remote[0])); err != nil || len(got) != 0 {
		t.Errorf("truncated it has %d bytes, %v", len(got), err)
	}
	if err := w.mutate(d, name(uploaded[0]), Mutation{Kind: Truncate, Size: 5000}, truncate(5000)); err != nil {
		t.Errorf("truncation of an uploaded segment: %v", err)
	}
	w.logs[uploaded[0]] = w.logs[uploaded[0]][:5000]
	w.wantContent(d, name(uploaded[0]), w.logs[uploaded[0]])
	w.write("fill-4096", nil) // the broker's own directory may have to grow
	for _, all := range [][]uint64{remote[1:], uploaded[1:], local} {
		for _, start := range all {
			w.do(w.v.Rename(d, name(start), d, name(start)+".deleted", 0))
		}
	}
	w.eat()
	for _, all := range [][]uint64{remote[1:], uploaded[1:], local} {
		for _, start := range all {
			w.do(w.v.Unlink(d, name(start)+".deleted"))
		}
	}
	if free := w.freed(); free < 100*4 {
		t.Errorf("%d blocks are free afterwards", free)
	}
	w.empty("t-0")
	w.retireAll()
	if got := w.logObjects(); len(got) != 0 {
		t.Errorf("the store has %v", got)
	}
}

// A segment may replace another, whatever the two are.
func TestFullDiskTakesReplacements(t *testing.T) {
	w := newFullWorld(t, 3, 3, 3)
	w.eat()
	d := w.dir("t-0")
	s := w.starts
	for _, pair := range [][2]uint64{{s[0], s[3]}, {s[4], s[1]}, {s[6], s[2]}, {s[7], s[5]}} {
		w.do(w.v.Rename(d, name(pair[0]), d, name(pair[1]), 0))
		w.wantContent(d, name(pair[1]), w.logs[pair[0]])
	}
}

// A mount starts on such a disk, with all that a crash left to be finished.
func TestFullDiskStarts(t *testing.T) {
	w := newFullWorld(t, 1, 1, 5)
	w.do(w.v.CloseSource())
	leaving, uploading := w.starts[1], w.starts[2]
	w.crashIn("evict:empty", func() { _ = w.evict("t-0", leaving) })
	w.crashIn("upload:record", func() { _ = w.upload("t-0", uploading) })
	w.eat()
	w.close()
	w.open()
	w.do(w.v.CloseSource())
	w.do(w.v.CheckOwner(t.Context()))
	for _, start := range []uint64{uploading, w.starts[3]} {
		w.remote(start)
	}
	d := w.dir("t-0")
	for start, log := range w.logs {
		w.wantContent(d, name(start), log)
	}
}

// A disk that has blocks, but no inode left.
func TestNoInodesLeft(t *testing.T) {
	w := newFullWorld(t, 1, 0, 3)
	w.mkdir("fill")
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(w.path, "fill", fmt.Sprint(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		w.do(err)
	}
	w.remote(w.starts[1])
	w.remote(w.starts[2])
	w.wantContent(w.dir("t-0"), name(w.starts[2]), w.logs[w.starts[2]])
}

// Another process takes what the reserve gives back before tierfs can. Each step
// that needs room fails and says why, and is done when there is room.
func TestReserveIsStolen(t *testing.T) {
	w := newFullWorld(t, 2, 1, 3)
	w.eat()
	given := 0
	w.step = func(s string) {
		if s == "reserve:give:done" {
			given++
			w.eat()
		}
	}
	d := w.dir("t-0")
	for try := range 2 * reserveFiles {
		if err := w.upload("t-0", w.starts[3]); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("upload %d: %v", try, err)
		}
	}
	if given != reserveFiles {
		t.Errorf("%d files of %d were given back", given, reserveFiles)
	}
	if err := empty(first)(w.world); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("truncation of a remote segment: %v", err)
	}
	if free := w.freed(); free != 0 {
		t.Fatalf("%d blocks are free", free)
	}
	w.step = nil
	for start, log := range w.logs {
		w.wantContent(d, name(start), log)
	}
	w.reopen()
	w.do(os.Remove(filepath.Join(w.path, "fill-4096")))
	w.do(os.Remove(filepath.Join(w.path, fmt.Sprintf("fill-%d", 1<<20))))
	w.remote(w.starts[3])
	w.remakeReserve()
	w.do(w.v.CheckOwner(t.Context()))
	w.retireAll()
	if got, want := w.logObjects(), w.liveObjects(); !slices.Equal(got, want) {
		t.Errorf("the store has %v, named are %v", got, want)
	}
}

// The blocks that an eviction frees may be gone before it can write the record.
func TestEvictionLosesItsBlock(t *testing.T) {
	w := newFullWorld(t, 0, 3, 1)
	w.eat()
	for _, name := range w.below(".tierfs/reserve") { // nor is there a reserve
		w.do(os.Remove(filepath.Join(w.path, ".tierfs/reserve", name)))
	}
	w.v.reserve.have = nil
	w.eat()
	eater, err := os.OpenFile(filepath.Join(w.path, "eater"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	w.do(err)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for block := bytes.Repeat([]byte{1}, 4096); ; {
			select {
			case <-stop:
				return
			default:
				_, _ = eater.Write(block)
			}
		}
	}()
	for _, start := range w.starts[:3] {
		err := w.evict("t-0", start)
		if state := w.segment("t-0", start).State; err == nil && state != Remote || err != nil && (state != Filling || !errors.Is(err, unix.ENOSPC)) {
			t.Errorf("segment %d is %v after %v", start, state, err)
		}
	}
	close(stop)
	<-ended
	w.do(eater.Close())
	d := w.dir("t-0")
	for start, log := range w.logs {
		w.wantContent(d, name(start), log)
	}
	w.reopen()
	w.do(os.Remove(filepath.Join(w.path, "eater")))
	for _, start := range w.starts[:3] {
		if w.segment("t-0", start).State != Remote {
			w.do(w.evict("t-0", start))
		}
		w.wantContent(w.dir("t-0"), name(start), w.logs[start])
	}
}

package tier

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// residentWorld has a segment of several stretches on a small disk, of which one is
// in memory.
func residentWorld(t *testing.T) (w *fullWorld, path string, want []uint64) {
	t.Helper()
	w = newFullWorld(t, 0, 0, 0)
	w.close()
	log, index, next := segmenttest.Kafka(100_000, 70, 5, 10_000)
	path = filepath.Join(w.path, "t-0", name(100_000))
	w.logs[100_000] = log
	w.write("t-0/"+name(100_000), log)
	w.write("t-0/"+segment.Stem(100_000)+".index", index)
	w.write("t-0/"+name(next), nil)
	f, err := os.Open(path)
	w.do(err)
	defer f.Close()
	w.do(f.Sync())
	w.do(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	w.do(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)) // no page more than is read
	_, err = f.ReadAt(make([]byte, coldStretch/2), coldStretch)
	w.do(err)
	want = w.resident(path)
	if len(want) < 3 || want[0] != 0 || want[1] != coldStretch/2/4096 || want[2] != 0 {
		t.Fatalf("before, of each stretch there are in memory %v", want)
	}
	w.open()
	return w, path, want
}

// resident is how many pages of each stretch of a file are in memory.
func (w *world) resident(path string) (out []uint64) {
	w.t.Helper()
	f, err := os.Open(path)
	w.do(err)
	defer f.Close()
	info, err := f.Stat()
	w.do(err)
	for off := int64(0); off < info.Size(); off += coldStretch {
		var st unix.Cachestat_t
		w.do(unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(off), Len: coldStretch}, &st, 0))
		out = append(out, st.Cache)
	}
	return out
}

// wantResident looks whether memory holds of the file what it did before, and nothing
// less where something of a stretch was there.
func (w *world) wantResident(path string, before []uint64) {
	w.t.Helper()
	for i, n := range w.resident(path) {
		if before[i] == 0 && n != 0 || n < before[i] {
			w.t.Errorf("stretch %d: %d pages were in memory, now %d", i, before[i], n)
		}
	}
}

// What an upload reads of a segment does not stay in memory; what was there before
// does.
func TestUploadLeavesNoPages(t *testing.T) {
	w, path, before := residentWorld(t)
	w.do(w.upload("t-0", 0))
	w.do(w.upload("t-0", 100_000))
	w.wantResident(path, before)
}

func TestComparisonLeavesNoPages(t *testing.T) {
	w, path, before := residentWorld(t)
	w.do(w.upload("t-0", 0))
	w.do(w.upload("t-0", 100_000))
	rec, _ := w.segment("t-0", 100_000).File.Record()
	f, err := os.Open(path)
	w.do(err)
	defer f.Close()
	if same, err := hasBytes(t.Context(), int(f.Fd()), rec); !same || err != nil {
		t.Errorf("the bytes are the record's: %v, %v", same, err)
	}
	w.wantResident(path, before)
}

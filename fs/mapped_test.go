package fs

import (
	"bytes"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// mapShared brings the pages in during the system call. A fault would block a thread that the Go runtime, which serves
// the mount too, believes to be running.
const mapShared = unix.MAP_SHARED | unix.MAP_POPULATE

// TestMappedIndex writes an index as Kafka does at a roll: through a mapping, then trimmed by a descriptor that is
// closed while the mapping lives on. The index counts as clean from that close on, and its object has every byte.
func TestMappedIndex(t *testing.T) {
	m := tieredTest(t, func(c *mountConfig) { c.options.Layout = layout.Kafka })
	log, index, next := segmenttest.Kafka(0, 40, 3, 1000)
	tail, _, _ := segmenttest.Kafka(next, 1, 1, 10)
	check(t, os.WriteFile(m.path("t-0", segment.Stem(0)+".log"), log, 0o644))

	const preallocated = 1 << 20
	name := m.path("t-0", segment.Stem(0)+".index")
	f, err := os.Create(name)
	check(t, err)
	check(t, f.Truncate(preallocated))
	mapped, err := unix.Mmap(int(f.Fd()), 0, preallocated, unix.PROT_READ|unix.PROT_WRITE, mapShared)
	check(t, err)
	defer func() { check(t, unix.Munmap(mapped)) }()
	check(t, f.Close())
	copy(mapped, index)

	trim, err := os.OpenFile(name, os.O_RDWR, 0)
	check(t, err)
	check(t, trim.Truncate(int64(len(index))))
	again, err := unix.Mmap(int(trim.Fd()), 0, len(index), unix.PROT_READ|unix.PROT_WRITE, mapShared)
	check(t, err)
	defer func() { check(t, unix.Munmap(again)) }()
	check(t, trim.Close())
	check(t, os.WriteFile(m.path("t-0", segment.Stem(next)+".log"), tail, 0o644))

	p := m.volume.Partitions()[0]
	u, err := m.volume.Prepare(t.Context(), p, p.Segments()[0])
	check(t, err)
	defer u.Close()
	for _, o := range u.Objects {
		got, err := io.ReadAll(io.NewSectionReader(o.Body.R, 0, o.Body.Size))
		check(t, err)
		if want := map[bool][]byte{true: log, false: index}[o.Log]; !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes and is not what was written, %d bytes", o.Key, len(got), len(want))
		}
	}
	if len(u.Objects) != 2 || u.Record.IndexSize != int64(len(index)) {
		t.Errorf("%d objects, the record %+v", len(u.Objects), u.Record)
	}
	check(t, u.Abort())
}

// TestSeekMeetsMappedPages: what a mapping has written into a hole is data, long before the kernel hands it on.
func TestSeekMeetsMappedPages(t *testing.T) {
	const size = 1 << 20
	m := mountTest(t)
	f, err := os.Create(m.path("file"))
	check(t, err)
	check(t, f.Truncate(size))
	mapped, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, mapShared)
	check(t, err)
	defer func() { check(t, unix.Munmap(mapped)) }()
	check(t, f.Close())
	mapped[size/2] = 1
	r, err := os.Open(m.path("file"))
	check(t, err)
	defer r.Close()
	if data, err := unix.Seek(int(r.Fd()), 0, unix.SEEK_DATA); err != nil || data > size/2 {
		t.Errorf("data begins at %d, %v", data, err)
	}
	if hole, err := unix.Seek(int(r.Fd()), size/2, unix.SEEK_HOLE); err != nil || hole <= size/2 {
		t.Errorf("a hole at %d, %v", hole, err)
	}
}

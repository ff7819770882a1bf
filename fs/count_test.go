package fs

import (
	"bytes"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
)

// A countedFile is an open file of which the test knows every byte.
type countedFile struct {
	m    *testMount
	f    *os.File
	data []byte
}

// sent is how many requests of op the kernel sends while do runs.
func (c *countedFile) sent(op metrics.FuseOp, do func()) int {
	c.m.t.Helper()
	before := c.m.count(op)
	do()
	return c.m.count(op) - before
}

func (c *countedFile) readAll(f *os.File) {
	c.m.t.Helper()
	got, err := io.ReadAll(io.NewSectionReader(f, 0, int64(len(c.data))))
	if !bytes.Equal(got, c.data) || err != nil {
		c.m.t.Fatalf("read %d bytes, %v", len(got), err)
	}
}

func (c *countedFile) append(size int) {
	c.m.t.Helper()
	p := pattern(size, byte(len(c.data)))
	_, err := c.f.WriteAt(p, int64(len(c.data)))
	check(c.m.t, err)
	c.data = append(c.data, p...)
}

func (c *countedFile) readTail(size int) {
	c.m.t.Helper()
	tail := make([]byte, size)
	_, err := c.f.ReadAt(tail, int64(len(c.data)-size))
	check(c.m.t, err)
	if !bytes.Equal(tail, c.data[len(c.data)-size:]) {
		c.m.t.Fatal("the tail differs")
	}
}

// What the kernel asks for, and what it knows already.
func TestRequestCounts(t *testing.T) {
	const rounds, batch = 50, 16205
	m := mountTest(t, func(c *mountConfig) { c.fs.ReadAhead = 1 << 20 })
	c := &countedFile{m: m, data: pattern(4<<20, 4)}
	check(t, os.WriteFile(m.path("file"), c.data, 0o644))
	var err error
	c.f, err = os.OpenFile(m.path("file"), os.O_RDWR, 0)
	check(t, err)
	defer c.f.Close()
	dropFD(t, c.f)

	if n := c.sent(metrics.OpRead, func() { c.readAll(c.f) }); n < 4 || n > 12 {
		t.Errorf("%d READs of 4 MiB that are not cached", n)
	}
	for _, op := range []metrics.FuseOp{metrics.OpRead, metrics.OpGetAttr} {
		if n := c.sent(op, func() { c.readAll(c.f) }); n != 0 {
			t.Errorf("%d %ss for warm pages", n, op)
		}
	}
	if n := c.sent(metrics.OpRead, c.reopen); n != 0 {
		t.Errorf("%d READs after a reopen", n)
	}
	n := c.sent(metrics.OpRead, func() {
		for range rounds {
			c.append(batch)
			c.readTail(batch)
		}
	})
	if n > 2*rounds {
		t.Errorf("%d READs of a reader at the tail, in %d rounds", n, rounds)
	}
	appends := func() {
		for range rounds {
			c.append(batch)
		}
	}
	if n := c.sent(metrics.OpWrite, appends); n > 2*rounds {
		t.Errorf("%d WRITEs for %d appends", n, rounds)
	}
	if n := c.sent(metrics.OpGetXAttr, appends); n != 0 {
		t.Errorf("%d GETXATTRs for %d appends", n, rounds)
	}
	look := func() {
		_ = stat(t, m.path("file"))
		var st unix.Stat_t
		wantErrno(t, "missing", unix.Stat(m.path("missing"), &st), unix.ENOENT)
	}
	look()
	if n := c.sent(metrics.OpLookup, look); n != 0 {
		t.Errorf("%d LOOKUPs of known names and of names known to be missing", n)
	}
	c.readAll(c.f)
}

func (c *countedFile) reopen() {
	g, err := os.Open(c.m.path("file"))
	check(c.m.t, err)
	defer g.Close()
	c.readAll(g)
}

package fs

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/tier"
)

// killedAt is what a step of the volume throws to end a request as a kill would.
type killedAt struct{ step string }

// tieredLives are lives over a directory t-0 of generic segments: uploaded ones with
// the starts 0 and 1000 or, if they are to be evicted, remote ones, and two local ones
// with the starts 2000 and 3000.
type tieredLives struct {
	*lives
	dir uint64
}

const liveSegments = 4

func newTieredLives(t *testing.T, evict bool) *tieredLives {
	t.Helper()
	store := sim.New(sim.Options{})
	dir, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Close(dir)) })
	cache, err := chunkcache.New(chunkcache.Options{Dir: dir, Store: store, ChunkSize: 1 << 20})
	check(t, err)
	t.Cleanup(func() { check(t, cache.Close()) })
	l := newLives(t, tier.Options{Layout: layout.Generic, Store: store, Cache: cache, Prefix: "p", FetchTimeout: 10 * time.Second})
	check(t, os.Mkdir(l.at("t-0"), 0o755))
	for i := range liveSegments {
		check(t, os.WriteFile(l.at(segmentPath(i*1000)), liveSegment(i), 0o644))
	}
	l.takeOver() // which finds them
	out := &tieredMount{testMount: &testMount{t: t, volume: l.volume}, store: store}
	for _, p := range l.volume.Partitions() {
		for _, s := range p.Segments()[:2] {
			check(t, out.upload(t.Context(), p, s))
		}
		for _, s := range p.Segments()[:2] {
			if evict {
				check(t, l.volume.Evict(context.Background(), p, s))
			}
		}
	}
	return &tieredLives{l, l.lookup("t-0").NodeId}
}

func liveSegment(i int) []byte { return pattern(5000+i, byte(i)) }

// name is that of the segment i.
func (l *tieredLives) name(i int) string { return fmt.Sprintf("%020d.log", i*1000) }

func (l *tieredLives) find(name string) (fuse.EntryOut, bool) {
	l.t.Helper()
	var out fuse.EntryOut
	in := l.request(l.dir)
	l.ok("lookup", l.f.Lookup(nil, &in, name, &out))
	return out, out.NodeId != 0
}

// content is what a reader gets under a name; "missing" if there is none.
func (l *tieredLives) content(name string) string {
	l.t.Helper()
	e, ok := l.find(name)
	if !ok {
		return "missing"
	}
	var out fuse.OpenOut
	l.ok("open", l.f.Open(nil, &fuse.OpenIn{InHeader: l.request(e.NodeId)}, &out))
	defer l.release(out.Fh)
	buf := make([]byte, 1<<16)
	r, code := l.f.Read(nil, &fuse.ReadIn{InHeader: l.request(e.NodeId), Fh: out.Fh}, buf)
	l.ok("read", code)
	return string(buf[:r.Size()])
}

// A stepOp is a request about segments, and what is under their names afterwards:
// the number of a segment, or -1 for missing, or -2 for empty.
type stepOp struct {
	evict bool
	do    func(l *tieredLives, in fuse.InHeader) fuse.Status
	want  [liveSegments]int
}

func stepOps() map[string]stepOp {
	unlink := func(l *tieredLives, in fuse.InHeader) fuse.Status { return l.f.Unlink(nil, &in, l.name(0)) }
	rename := func(from, to int, flags uint32) func(l *tieredLives, in fuse.InHeader) fuse.Status {
		return func(l *tieredLives, in fuse.InHeader) fuse.Status {
			return l.f.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: l.dir, Flags: flags}, l.name(from), l.name(to))
		}
	}
	empty := func(l *tieredLives, in fuse.InHeader) fuse.Status {
		e, _ := l.find(l.name(0))
		in.NodeId = e.NodeId
		var out fuse.AttrOut
		set := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: in, Valid: fuse.FATTR_SIZE}}
		return l.f.SetAttr(nil, &set, &out)
	}
	return map[string]stepOp{
		"unlink uploaded":            {false, unlink, [...]int{-1, 1, 2, 3}},
		"unlink remote":              {true, unlink, [...]int{-1, 1, 2, 3}},
		"truncate uploaded":          {false, empty, [...]int{-2, 1, 2, 3}},
		"truncate remote":            {true, empty, [...]int{-2, 1, 2, 3}},
		"rename uploaded over local": {false, rename(0, 2, 0), [...]int{-1, 1, 0, 3}},
		"rename remote over local":   {true, rename(0, 2, 0), [...]int{-1, 1, 0, 3}},
		"rename local over uploaded": {false, rename(2, 0, 0), [...]int{2, 1, -1, 3}},
		"rename local over remote":   {true, rename(2, 0, 0), [...]int{2, 1, -1, 3}},
		"rename uploaded":            {false, rename(0, 1, 0), [...]int{-1, 0, 2, 3}},
		"rename remote":              {true, rename(0, 1, 0), [...]int{-1, 0, 2, 3}},
		"exchange uploaded":          {false, rename(0, 2, unix.RENAME_EXCHANGE), [...]int{2, 1, 0, 3}},
		"exchange remote":            {true, rename(0, 1, unix.RENAME_EXCHANGE), [...]int{1, 0, 2, 3}},
	}
}

// run answers a request, but for a kill at the step at; it returns the steps before.
func (l *tieredLives) run(do func() fuse.Status, at string) (steps []string, code fuse.Status, was bool) {
	l.step = func(s string) {
		if s == at {
			panic(killedAt{s})
		}
		steps = append(steps, s)
	}
	defer func() {
		l.step = nil
		if r := recover(); r != nil {
			if _, is := r.(killedAt); !is {
				panic(r)
			}
			was = true
		}
	}()
	return steps, do(), false
}

// A request that was killed before or after any durable step is resent, finds what
// tier makes of it at its start, and is answered as the first time. The handle of a
// file that it takes the name of reads on.
func TestResentAtEveryStep(t *testing.T) {
	for name, op := range stepOps() {
		t.Run(name, func(t *testing.T) {
			l := newTieredLives(t, op.evict)
			steps, code, _ := l.run(func() fuse.Status { return op.do(l, l.request(l.dir)) }, "")
			l.ok("undisturbed", code)
			l.wantSegments(op.want)
			if len(steps) == 0 {
				t.Fatal("no step")
			}
			for _, step := range steps {
				t.Run(step, func(t *testing.T) {
					l := newTieredLives(t, op.evict)
					fh := l.openSegment(0)
					in := l.request(l.dir)
					if _, _, was := l.run(func() fuse.Status { return op.do(l, in) }, step); !was {
						t.Fatal("not killed")
					}
					for range 2 {
						l.takeOver()
						in.Unique |= resentBit
						l.ok("resent", op.do(l, in))
						l.wantSegments(op.want)
						buf := make([]byte, 1<<16)
						r, code := l.f.Read(nil, &fuse.ReadIn{InHeader: l.request(l.dir), Fh: fh}, buf)
						l.ok("read", code)
						if want := liveSegment(0); string(buf[:r.Size()]) != string(want) && !strings.HasPrefix(name, "truncate") {
							t.Errorf("the open handle gives %d bytes", r.Size())
						}
					}
				})
			}
		})
	}
}

func (l *tieredLives) openSegment(i int) uint64 {
	l.t.Helper()
	e, _ := l.find(l.name(i))
	var out fuse.OpenOut
	l.ok("open", l.f.Open(nil, &fuse.OpenIn{InHeader: l.request(e.NodeId), Flags: unix.O_RDWR}, &out))
	return out.Fh
}

func (l *tieredLives) wantSegments(want [liveSegments]int) {
	l.t.Helper()
	for i, w := range want {
		expected := "missing"
		switch {
		case w == -2:
			expected = ""
		case w >= 0:
			expected = string(liveSegment(w))
		}
		if got := l.content(l.name(i)); got != expected {
			l.t.Errorf("segment %d: %d bytes, want those of %d", i, len(got), w)
		}
	}
}

package tier

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEvictGoesOnAfterAFailure(t *testing.T) {
	w := newWorld(t, 2)
	w.do(w.upload("t-0", 0))
	w.step = func(name string) {
		if name == "evict:dirsync" {
			panic(name)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = w.evict("t-0", 0)
	}()
	w.step = nil
	w.wantState("t-0", 0, Leaving)
	w.do(w.evict("t-0", 0))
	w.wantState("t-0", 0, Remote)
	w.wantContent(w.dir("t-0"), segmentName(0), w.logs[0])
}

// A mutation whose bytes are still to come may fall on either side of a look.
func TestNoLookDuringAMutation(t *testing.T) {
	w := newWorld(t, 2)
	s := w.segment("t-0", 0)
	before, err := s.File.Usage()
	w.do(err)
	done, err := s.File.Mutate(context.Background(), Mutation{Kind: Write})
	w.do(err)
	w.wantRefused(w.upload("t-0", 0), ReasonWriting)
	use, err := s.File.Usage()
	w.do(err)
	if use.Size != before.Size {
		t.Fatalf("size %d, want %d", use.Size, before.Size)
	}
	fd, err := s.File.open(unix.O_RDWR)
	w.do(err)
	defer unix.Close(fd)
	w.do(overwrite(before.Size, w.logs[w.starts[1]])(fd))
	done()
	if use, err = s.File.Usage(); err != nil || use.Size != before.Size+int64(len(w.logs[w.starts[1]])) {
		t.Fatalf("size %d after the write, %v", use.Size, err)
	}
}

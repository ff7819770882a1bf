package tier

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// indexed is a remote segment whose index matters.
type indexed struct {
	*world
	file       *File
	log, index []byte
}

func newIndexed(t *testing.T) *indexed {
	w, _ := newColdWorld(t, nil)
	x := &indexed{world: w}
	w.mkdir("t-1")
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		w.write(name, []byte("0\n2\nt 0 1000000\nt 1 1000000\n"))
	}
	next := uint64(0)
	x.log, x.index, next = segmenttest.Kafka(0, 300, 5, 200)
	w.write("t-1/"+name(0), x.log)
	x.beside(x.index)
	w.addSegment("t-1", &next)
	w.reopen()
	w.do(w.upload("t-1", 0))
	w.do(w.evict("t-1", 0))
	x.file = w.segment("t-1", 0).File
	return x
}

func (x *indexed) beside(index []byte) { x.write("t-1/"+segment.Stem(0)+".index", index) }

// read reads in the middle, and returns how many GETs that took.
func (x *indexed) read() (int, error) {
	x.t.Helper()
	before := x.store.Count("get")
	b := make([]byte, 1000)
	off := int64(len(x.log) / 2)
	src := x.file.Source()
	defer src.Release()
	n, err := src.ReadAt(x.t.Context(), b, off)
	if err == nil && !bytes.Equal(b[:n], x.log[off:off+int64(n)]) {
		err = fmt.Errorf("wrong bytes")
	}
	return x.store.Count("get") - before, err
}

// shifted is an index of the same form whose positions are no batch's.
func shifted(index []byte) []byte {
	out := bytes.Clone(index)
	for i := 4; i < len(out); i += 8 {
		binary.BigEndian.PutUint32(out[i:], binary.BigEndian.Uint32(out[i:])+7)
	}
	return out
}

func TestIndexBesideASegment(t *testing.T) {
	t.Run("is used", func(t *testing.T) {
		x := newIndexed(t)
		x.store.SetHook(func(_ context.Context, op, key string) error {
			if op == "get" && strings.HasSuffix(key, ".index") {
				t.Error("the index object is asked for")
			}
			return nil
		})
		if gets, err := x.read(); err != nil || gets == 0 {
			t.Errorf("%d GETs, %v", gets, err)
		}
	})
	t.Run("of another size", func(t *testing.T) {
		x := newIndexed(t)
		x.beside(shifted(x.index)[:len(x.index)-8])
		if _, err := x.read(); err != nil {
			t.Error(err)
		}
		if x.file.distrusted.Load() != 0 {
			t.Error("it was used until the object looked bad")
		}
	})
	t.Run("with wrong positions", func(t *testing.T) {
		x := newIndexed(t)
		x.beside(shifted(x.index))
		for range 2 {
			if _, err := x.read(); err != nil {
				t.Fatal(err)
			}
		}
		if x.file.distrusted.Load() == 0 {
			t.Error("it was never used")
		}
	})
	t.Run("of an object that is bad", func(t *testing.T) {
		x := newIndexed(t)
		for _, key := range x.store.Keys() {
			if strings.Contains(key, "/t-1/") && strings.HasSuffix(key, logSuffix) {
				x.store.Corrupt(key, func(b []byte) []byte {
					for i := range b {
						b[i] ^= 1
					}
					return b
				})
			}
		}
		first, err := x.read()
		if err == nil {
			t.Fatal("bad bytes were served")
		}
		x.file.missed.forget()
		second, err := x.read()
		if err == nil || second >= first {
			t.Errorf("%d and %d GETs: it is tried again for ever, %v", first, second, err)
		}
	})
}

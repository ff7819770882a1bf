package tier

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// cutIn is what the broker does to the segment at w.starts[0] while others are at
// work on it, and the model that the segment must agree with afterwards.
type cutIn struct {
	name string
	run  func(w *world) error
	want func(w *world) outcome
	held func(w *world) []byte // through a handle from before; nil: what there was
}

// raceWorld is a world of three segments with two files beside them that can
// replace the first.
func raceWorld(t *testing.T) *world {
	w := newWorld(t, 3)
	for start, log := range w.logs {
		setEpochs(log, 7)
		w.write("t-0/"+name(start), log)
	}
	w.write("t-0/swap", swapped)
	w.write("t-0/other", otherLog(w))
	return w
}

const batchEpoch = 12 // of a batch: the leader's epoch, four bytes that no checksum covers

func setEpochs(log []byte, epoch byte) {
	for at := 0; at < len(log); at += 12 + int(log[at+8])<<24 + int(log[at+9])<<16 + int(log[at+10])<<8 + int(log[at+11]) {
		log[at+batchEpoch+3] = epoch
	}
}

// otherLog is a whole segment of the same size and offsets as the first, with other
// bytes: only they tell which is which.
func otherLog(w *world) []byte {
	b := bytes.Clone(firstLog(w))
	setEpochs(b, firstLog(w)[batchEpoch+3]+1)
	return b
}

// smallerLog is a whole segment of another size.
func smallerLog(w *world) []byte {
	log, _, _ := segmenttest.Kafka(w.starts[0], 8, 5, 150)
	return log
}

func zeroed(log []byte, at int) []byte {
	b := bytes.Clone(log)
	clear(b[at : at+4])
	return b
}

func zeroRange(off, n int64) func(int) error {
	return func(fd int) error {
		err := unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if errors.Is(err, unix.EOPNOTSUPP) { // tmpfs
			return punch(off, n)(fd)
		}
		return err
	}
}

// secondBatch is where the second batch of the first segment begins.
func secondBatch(w *world) int {
	log := firstLog(w)
	return 12 + int(log[10])<<8 + int(log[11])
}

// change is a cut-in that changes the bytes of the inode.
func change(name string, m Mutation, do func(w *world) func(fd int) error, want func(w *world) []byte) cutIn {
	return cutIn{name, func(w *world) error { return w.mutate(w.dir("t-0"), first(w), m, do(w)) },
		func(w *world) outcome { return outcome{first(w): want(w)} }, want}
}

func cutIns() []cutIn {
	return append(changes(), append(moves(), replacements()...)...)
}

func changes() []cutIn {
	changed := func(w *world) outcome { return outcome{first(w): changedLog(w)} }
	return []cutIn{
		{"write", write, changed, changedLog},
		{"write and retire", func(w *world) error { return errors.Join(write(w), w.retireDue()) }, changed, changedLog},
		change("rewrite", Mutation{Kind: Write}, func(w *world) func(int) error { return overwrite(0, otherLog(w)) }, otherLog),
		change("append", Mutation{Kind: Write}, func(w *world) func(int) error { return overwrite(int64(len(firstLog(w))), []byte("more")) },
			func(w *world) []byte { return append(bytes.Clone(firstLog(w)), "more"...) }),
		change("truncate", Mutation{Kind: Truncate, Size: 100}, func(*world) func(int) error { return truncate(100) },
			func(w *world) []byte { return firstLog(w)[:100] }),
		change("truncate to 0", Mutation{Kind: Truncate}, func(*world) func(int) error { return truncate(0) },
			func(w *world) []byte { return []byte{} }),
		change("punch", Mutation{Kind: Allocate}, func(*world) func(int) error { return punch(batchEpoch, 4) },
			func(w *world) []byte { return zeroed(firstLog(w), batchEpoch) }),
		change("zero", Mutation{Kind: Allocate}, func(w *world) func(int) error { return zeroRange(int64(secondBatch(w)+batchEpoch), 4) },
			func(w *world) []byte { return zeroed(firstLog(w), secondBatch(w)+batchEpoch) }),
		change("grow", Mutation{Kind: Allocate}, func(w *world) func(int) error {
			return func(fd int) error { return unix.Fallocate(fd, 0, int64(len(firstLog(w))), 100) }
		}, func(w *world) []byte { return append(bytes.Clone(firstLog(w)), make([]byte, 100)...) }),
		{"truncating open", func(w *world) error {
			return errors.Join(empty(first)(w), w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Write}, overwrite(0, smallerLog(w))))
		}, func(w *world) outcome { return outcome{first(w): smallerLog(w)} }, smallerLog},
	}
}

func moves() []cutIn {
	same := func(w *world) outcome { return outcome{first(w): firstLog(w)} }
	return []cutIn{
		{"rename", rename(first, deleted), func(w *world) outcome { return outcome{first(w): nil, deleted(w): firstLog(w)} }, nil},
		{"rename and back", func(w *world) error { return errors.Join(rename(first, deleted)(w), rename(deleted, first)(w)) }, same, nil},
		{"rename onto another", rename(first, second), func(w *world) outcome { return outcome{first(w): nil, second(w): firstLog(w)} }, nil},
		{"link", func(w *world) error { return w.link(first(w), "backup") },
			func(w *world) outcome { return outcome{first(w): firstLog(w), "backup": firstLog(w)} }, nil},
		{"link and rename over", func(w *world) error { return errors.Join(w.link(first(w), "backup"), replace(w)) },
			func(w *world) outcome { return outcome{first(w): swapped, "backup": firstLog(w)} }, nil},
		{"link and write", func(w *world) error { return errors.Join(w.link(first(w), "backup"), write(w)) },
			func(w *world) outcome { return outcome{first(w): changedLog(w), "backup": changedLog(w)} }, changedLog},
		{"link, unlink and rename", func(w *world) error {
			return errors.Join(w.link(first(w), "backup"), w.v.Unlink(w.dir("t-0"), first(w)),
				rename(func(*world) string { return "backup" }, first)(w))
		}, same, nil},
	}
}

func replacements() []cutIn {
	other := func(w *world) outcome { return outcome{first(w): otherLog(w)} }
	return []cutIn{
		{"unlink", func(w *world) error { // as brokers do, with what stands beside it
			err := errors.Join(unlink(w), w.v.Unlink(w.dir("t-0"), segment.Stem(w.starts[0])+".index"))
			return err
		}, func(w *world) outcome { return outcome{first(w): nil} }, nil},
		{"unlink and create", recreate, other, nil},
		{"unlink and rename", func(w *world) error {
			return errors.Join(unlink(w), rename(func(*world) string { return "other" }, first)(w))
		}, other, nil},
		{"rename over", replace, func(w *world) outcome { return outcome{first(w): swapped} }, nil},
		{"rename another over", rename(func(*world) string { return "other" }, first), other, nil},
		{"rename another over and write", func(w *world) error {
			return errors.Join(rename(func(*world) string { return "other" }, first)(w),
				w.mutate(w.dir("t-0"), first(w), Mutation{Kind: Write}, overwrite(0, smallerLog(w))))
		}, func(w *world) outcome {
			b := otherLog(w)
			copy(b, smallerLog(w))
			return outcome{first(w): b}
		}, nil},
	}
}

// recreate unlinks the first segment and makes it anew with other bytes.
func recreate(w *world) error {
	if err := unlink(w); err != nil {
		return err
	}
	d := w.dir("t-0")
	fd, e, err := w.v.Create(d, first(w), unix.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	_ = unix.Close(fd)
	e.File.Release()
	b, err := os.ReadFile(filepath.Join(w.path, "t-0", "other"))
	if err != nil {
		return err
	}
	return w.mutate(d, first(w), Mutation{Kind: Write}, overwrite(0, b))
}

package tier

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/marker"
)

// Kind is what a mutation does.
type Kind uint8

// The kinds of mutation. Attr leaves the bytes alone: mode, owner, times, xattrs.
const (
	Write Kind = iota
	Truncate
	Allocate
	Attr
)

// Mutation is a change of a file that is about to be made.
type Mutation struct {
	Kind Kind
	Size int64 // of Truncate: the size to come
}

// Mutate makes a file ready for a change of its bytes or attributes: the caller
// makes the change right after, on its own descriptor, and then calls done. In
// between the file's lock is held shared.
//
// A file whose object exists loses it first, durably. A remote file is brought
// back whole, which waits for the store until ctx ends; only a truncation to 0
// does not need its bytes.
func (f *File) Mutate(ctx context.Context, m Mutation) (done func(), err error) {
	for {
		f.mu.RLock()
		switch {
		case f.state == Local && m.Kind != Attr:
			f.mutating.Add(1) // before changes: see settled
			f.changes.Add(1)
			f.dirty.Store(true)
			return f.mutated, nil
		case m.Kind == Attr:
			return f.retimed, nil
		case f.state == Quarantined:
			why := f.why
			f.mu.RUnlock()
			return nil, quarantined(why)
		}
		f.mu.RUnlock()
		if err := f.makeMutable(ctx, m); err != nil {
			return nil, err
		}
	}
}

// mutated ends a mutation of the bytes.
func (f *File) mutated() {
	f.mutating.Add(-1)
	f.mu.RUnlock()
}

// retimed ends a mutation of the attributes, which Usage must not remember.
func (f *File) retimed() {
	f.mu.RUnlock()
	f.sizes.forget() // not under the lock: Usage takes the two the other way round
}

// makeMutable takes the file one step closer to Local.
func (f *File) makeMutable(ctx context.Context, m Mutation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.state {
	case Leaving:
		return f.v.stay(f)
	case Uploaded:
		return f.v.forgetObject("mutate:tombstone", f)
	case Remote:
		if m.Kind == Truncate && m.Size == 0 {
			return f.v.emptyRemote(f)
		}
		fallthrough
	case Filling:
		f.mu.Unlock()
		defer f.mu.Lock()
		return f.v.rehydrateForWrite(ctx, f)
	}
	return nil
}

// emptyRemote makes a remote file an empty local one. Its bytes are not needed,
// so neither is the store. The caller holds the file's lock exclusively.
func (v *Volume) emptyRemote(f *File) error {
	fd, err := f.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := v.buryCopy("truncate:tombstone", f.rec); err != nil {
		return err
	}
	err = v.step("truncate:empty", func() error {
		if err := unix.Ftruncate(fd, 0); err != nil {
			return pathError("truncate", "", err)
		}
		return unix.Fsync(fd)
	})
	if err != nil {
		return err
	}
	if err := v.localName("truncate:name", f, Local); err != nil {
		return err
	}
	f.rec, f.found = marker.Record{}, false
	v.recount(f)
	return nil
}

// rehydrateForWrite brings a remote file back because a write needs it. It waits
// for the store without limit: the broker would halt on an error.
func (v *Volume) rehydrateForWrite(ctx context.Context, f *File) error {
	name := "(unlinked)"
	f.mu.RLock()
	if home, ok := f.home(); ok {
		name = home.name
	}
	f.mu.RUnlock()
	v.log.Warn("a write into a remote segment brings it back", "segment", name)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := v.Rehydrate(ctx, f)
		if err == nil {
			v.opt.Metrics.Rehydrated()
		}
		if err == nil || !waitable(err) {
			return err
		}
		v.log.Warn("a write into a remote segment waits for the store", "segment", name, "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// markRemote writes the record into the file's own inode, which loses its bytes.
// The times stay. It tells whether the bytes are gone, also when it fails. The
// caller holds the file's lock exclusively.
func (v *Volume) markRemote(step string, fd int, rec marker.Record) (emptied bool, err error) {
	err = v.step(step, func() error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return pathError("stat", "", err)
		}
		if err := unix.Ftruncate(fd, 0); err != nil {
			return pathError("truncate", "", err)
		}
		emptied = true
		b := rec.Marshal()
		if n, err := unix.Pwrite(fd, b[:], 0); err != nil || n != len(b) {
			return pathError("write", "", cmp.Or(err, error(unix.EIO)))
		}
		if err := putBack(fd, timesOf(&st)); err != nil {
			return err
		}
		return pathError("fsync", "", unix.Fsync(fd))
	})
	return emptied, err
}

// unlinkRecord removes the record beside a file. The caller holds its lock.
func (v *Volume) unlinkRecord(step string, f *File) error {
	home, ok := f.home()
	if !ok {
		return nil
	}
	dir, err := v.openDir(home.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return v.step(step, func() error { return durable.Unlink(dir, uploadedName(home.name)) })
}

package tier

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

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
			if m.Kind == Write && f.v.starts.active.Load() != 0 && f.isSegment() {
				f.v.starts.wrote(callerOf(ctx), time.Now())
			}
			return f.mutated, nil
		case m.Kind == Attr && f.state != Leaving && f.state != Filling:
			return f.retimed, nil
		case f.state == Quarantined:
			why := f.why
			f.mu.RUnlock()
			return nil, quarantined(why)
		}
		f.mu.RUnlock()
		if m.Kind == Attr {
			return f.mutateTimes()
		}
		if err := f.makeMutable(ctx, m); err != nil {
			return nil, own(err)
		}
	}
}

// endMutation ends a mutation of the bytes.
func (f *File) endMutation() {
	f.mutating.Add(-1)
	f.mu.RUnlock()
}

// endRetiming ends a mutation of the attributes, which Usage must not remember.
func (f *File) endRetiming() {
	f.mu.RUnlock()
	f.sizes.forget() // not under the lock: Usage takes the two the other way round
}

// mutateTimes makes a file that is on the way ready for a change of its attributes:
// the times that were kept for it are those that the change finds and leaves. It
// holds the lock exclusively, so that no step moves the times meanwhile.
func (f *File) mutateTimes() (done func(), err error) {
	f.mu.Lock()
	fd, err := f.open(unix.O_RDONLY)
	if err == nil && f.state == Filling {
		if err = putBack(fd, f.times); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		f.mu.Unlock()
		return nil, own(err)
	}
	return func() {
		if err := f.keepTimes(fd); err != nil {
			f.v.log.Warn("a change of times would not outlive a crash", "err", err)
		}
		_ = unix.Close(fd)
		f.mu.Unlock()
		f.sizes.forget()
	}, nil
}

// keepTimes takes the inode's times for the file's own, also beside it.
func (f *File) keepTimes(fd int) error {
	if f.state != Filling && f.state != Leaving {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	f.times = timesOf(&st)
	if len(f.links) == 0 {
		return nil
	}
	dir, err := f.v.openDir(f.home.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return timeRecord(dir, f.home.name, f.times)
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
	case Remote, Filling:
		if m.Kind == Truncate && m.Size == 0 {
			return f.v.emptyRemote(f)
		}
		f.mu.Unlock()
		defer f.mu.Lock()
		return f.v.rehydrateForWrite(ctx, f)
	}
	return nil
}

// emptyRemote makes a remote file an empty local one. Its bytes are not needed,
// so neither is the store, and a rehydration under way ends. Until the file has its
// own name the record stands beside it: a crash before that leaves the segment as
// it was. The caller holds the file's lock exclusively.
func (v *Volume) emptyRemote(f *File) error {
	fd, err := f.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if f.state == Remote {
		if err := v.unmark("truncate:record", f, fd); err != nil {
			return err
		}
	}
	f.stopFill()
	err = v.step("truncate:empty", func() error {
		if err := unix.Ftruncate(fd, 0); err != nil {
			return pathError("truncate", "", err)
		}
		return unix.Fsync(fd)
	})
	if err != nil {
		return err
	}
	if len(f.links) == 0 { // its tombstone is there
		f.state, f.rec = Local, marker.Record{}
		v.rewritten(f)
		return nil
	}
	if err := v.localName("truncate:name", f, Uploaded); err != nil {
		return err
	}
	return v.forgetObject("truncate:tombstone", f)
}

// rehydrateForWrite brings a remote file back because a write needs it. It waits
// for the store without limit: the broker would halt on an error. What the disk
// below fails is not waited for, nor what is final.
func (v *Volume) rehydrateForWrite(ctx context.Context, f *File) error {
	name := "(unlinked)"
	f.mu.RLock()
	if l, ok := f.place(); ok {
		name = l.name
	}
	f.mu.RUnlock()
	v.log.Warn("a write into a remote segment brings it back", "segment", name)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := v.Rehydrate(ctx, f)
		if err == nil {
			v.opt.Metrics.Rehydrated()
		}
		if _, ofStore := errors.AsType[*storeError](err); !ofStore || final(err) {
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

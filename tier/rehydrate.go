package tier

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
)

// waitable reports whether a failure of the store is one to wait out.
func waitable(err error) bool { return objstore.Retryable(err) || errors.Is(err, objstore.ErrAuth) }

// Rehydrate brings a remote segment back as a local file, after which it is
// uploaded: both copies are there. It verifies every byte against the record. When
// it fails, the segment is remote as before. One runs at a time for each file.
func (v *Volume) Rehydrate(ctx context.Context, f *File) error {
	select {
	case f.filling <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-f.filling }()

	fd, err := f.open(unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	rec, times, err := v.beginFilling(f, fd)
	if err != nil || rec == (marker.Record{}) {
		return err
	}
	if err := v.fill(ctx, fd, rec); err != nil {
		return errors.Join(err, v.undoFilling(f, fd))
	}
	if err := putBack(fd, times); err != nil {
		return errors.Join(err, v.undoFilling(f, fd))
	}
	if err := v.step("rehydrate:fsync", func() error { return pathError("fsync", "", unix.Fsync(fd)) }); err != nil {
		return errors.Join(err, v.undoFilling(f, fd))
	}
	err = v.endFilling(f)
	v.changed(f.handle)
	return err
}

// endFilling makes the filled inode the segment's local file again.
func (v *Volume) endFilling(f *File) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := v.localName("rehydrate:name", f, Uploaded)
	if err == nil && len(f.links) == 0 {
		f.state, f.rec = Local, marker.Record{} // unlinked meanwhile: its tombstone is there
	}
	return err
}

// beginFilling puts the record beside the file, because its own inode is about to
// be overwritten. An empty record says that there is nothing to fill.
func (v *Volume) beginFilling(f *File, fd int) (marker.Record, [2]unix.Timespec, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return marker.Record{}, [2]unix.Timespec{}, err
	}
	switch f.state {
	case Quarantined:
		return marker.Record{}, timesOf(&st), quarantined(f.why)
	case Filling: // one that failed and could not be undone
		return f.rec, timesOf(&st), nil
	case Remote:
	default:
		return marker.Record{}, timesOf(&st), nil
	}
	if home, ok := f.home(); ok {
		dir, err := v.openDir(home.dir)
		if err != nil {
			return marker.Record{}, timesOf(&st), err
		}
		defer unix.Close(dir)
		err = v.step("rehydrate:record", func() error { return marker.Write(dir, uploadedName(home.name), f.rec) })
		if err != nil {
			return marker.Record{}, timesOf(&st), err
		}
	}
	f.state = Filling
	return f.rec, timesOf(&st), nil
}

// undoFilling makes the inode a marker again.
func (v *Volume) undoFilling(f *File, fd int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != Filling {
		return nil
	}
	if _, err := v.markRemote("rehydrate:undo", fd, f.rec); err != nil {
		return err
	}
	f.state = Remote
	return v.unlinkRecord("rehydrate:record", f)
}

// fill writes the object's bytes into the file and proves them.
func (v *Volume) fill(ctx context.Context, fd int, rec marker.Record) error {
	if v.opt.Store == nil {
		return fmt.Errorf("%w: no store is configured", ErrUnavailable)
	}
	key, err := v.key(rec, logSuffix)
	if err != nil {
		return err
	}
	return v.step("rehydrate:fill", func() error {
		body, err := v.opt.Store.GetRange(ctx, key, 0, rec.Size)
		if err != nil {
			return err
		}
		defer body.Close()
		hash := xxh3.New()
		w := io.NewOffsetWriter(fdWriter(fd), 0)
		if _, err := io.CopyBuffer(io.MultiWriter(w, hash), body, make([]byte, 1<<20)); err != nil {
			return err
		}
		if hash.Sum128().Bytes() != rec.LogHash {
			return fmt.Errorf("object %s does not have the bytes that its record says", key)
		}
		return nil
	})
}

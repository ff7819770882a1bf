package tier

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
)

// storeError is a failure of the store, told from one of the disk below: the causes
// of both may be the same system errors.
type storeError struct{ error }

func (e *storeError) Unwrap() error { return e.error }

// storeReader marks the failures of an object's body.
type storeReader struct{ r io.Reader }

func (s storeReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		err = &storeError{err}
	}
	return n, err
}

// A fill is one rehydration at work. Whoever takes a file's fill away may change
// the inode at once: its writes have ended.
type fill struct {
	f      *File
	fd     int
	rec    marker.Record
	off    int64
	cancel context.CancelFunc // ends the download
}

// errOvertaken ends a fill whose bytes nobody needs any more. It does not leave
// the package.
var errOvertaken = errors.New("the file is not being filled any more")

// Write appends to what the fill has written into the inode.
func (w *fill) Write(p []byte) (int, error) {
	w.f.mu.RLock()
	defer w.f.mu.RUnlock()
	if w.f.fill != w {
		return 0, errOvertaken
	}
	n, err := fdWriter(w.fd).WriteAt(p, w.off)
	w.off += int64(n)
	return n, err
}

// stopFill takes the fill away. The caller holds the file's lock exclusively.
func (f *File) stopFill() {
	if f.fill != nil {
		f.fill.cancel()
		f.fill = nil
	}
}

// Rehydrate brings a remote segment back as a local file, after which it is
// uploaded: both copies are there. It verifies every byte against the record. When
// it fails, the segment is remote as before. One runs at a time for each file; a
// truncation to 0 ends it early.
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := v.beginFilling(f, fd, cancel)
	if w == nil || err != nil {
		return err
	}
	err = v.download(ctx, w)
	if err == nil {
		err = v.step("rehydrate:fsync", func() error { return pathError("fsync", "", unix.Fsync(fd)) })
	}
	if err = v.endFilling(w, err); err == nil {
		v.changed(f.handle)
	}
	return err
}

// beginFilling starts a fill; nil: there is nothing to fill.
func (v *Volume) beginFilling(f *File, fd int, cancel context.CancelFunc) (*fill, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.state {
	case Quarantined:
		return nil, quarantined(f.why)
	case Filling: // one that failed and could not be undone
	case Remote:
		if err := v.unmark("rehydrate:record", f, fd); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	f.fill = &fill{f: f, fd: fd, rec: f.rec, cancel: cancel}
	return f.fill, nil
}

// unmark puts the record of a remote file beside it, because its own inode is
// about to be overwritten. The caller holds the file's lock exclusively.
func (v *Volume) unmark(step string, f *File, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pathError("stat", "", err)
	}
	if l, ok := f.place(); ok {
		dir, err := v.openDir(l.dir)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		if err := v.step(step, func() error { return writeRecord(dir, l.name, f.rec, timesOf(&st)) }); err != nil {
			return err
		}
		f.home = l
	}
	f.state, f.times = Filling, timesOf(&st)
	return nil
}

// download writes the object's bytes into the file and proves them.
func (v *Volume) download(ctx context.Context, w *fill) error {
	if v.opt.Store == nil {
		return fmt.Errorf("%w: no store is configured", ErrUnavailable)
	}
	key, err := v.key(w.rec, logSuffix)
	if err != nil {
		return err
	}
	return v.step("rehydrate:fill", func() error {
		body, err := v.opt.Store.GetRange(ctx, key, 0, w.rec.Size)
		if err != nil {
			return &storeError{err}
		}
		defer body.Close()
		hash := xxh3.New()
		if _, err := io.CopyBuffer(io.MultiWriter(w, hash), storeReader{body}, make([]byte, 1<<20)); err != nil {
			return err
		}
		if hash.Sum128().Bytes() != w.rec.LogHash {
			return fmt.Errorf("object %s does not have the bytes that its record says", key)
		}
		return w.cut()
	})
}

// cut ends the inode where the segment does: a marker may be longer. It puts the
// file's times back.
func (w *fill) cut() error {
	w.f.mu.RLock()
	defer w.f.mu.RUnlock()
	if w.f.fill != w {
		return errOvertaken
	}
	if err := unix.Ftruncate(w.fd, w.rec.Size); err != nil {
		return pathError("truncate", "", err)
	}
	return putBack(w.fd, w.f.times)
}

// endFilling makes the filled inode the segment's local file again, or a marker if
// the fill failed.
func (v *Volume) endFilling(w *fill, failed error) error {
	f := w.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fill != w { // overtaken by who needs no bytes
		return nil
	}
	f.fill = nil
	if failed != nil {
		return errors.Join(failed, v.empty("rehydrate", f, w.fd))
	}
	err := v.localName("rehydrate:name", f, Uploaded)
	if err == nil && len(f.links) == 0 {
		f.state, f.rec = Local, marker.Record{} // unlinked: its tombstone is there
		v.rewritten(f.handle)
	}
	return err
}

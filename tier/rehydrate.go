package tier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
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
	// resumed: another fill, or an eviction, stopped half way; its bytes may be whole.
	resumed bool
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
// truncation to 0 ends it early. For one that was unlinked meanwhile, and that nobody
// has open, it may fail with a [*Refused].
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
		err = v.point("rehydrate:fsync", func() error { return pathError("fsync", "", unix.Fsync(fd)) })
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
	resumed := f.state == Filling
	switch f.state {
	case Quarantined:
		return nil, quarantined(f.why)
	case Filling: // one that failed and could not be undone, or a predecessor's
	case Remote:
		if err := v.unmark("rehydrate:record", f, fd); err != nil {
			return nil, err
		}
	default:
		return nil, nil
	}
	f.fill = &fill{f: f, fd: fd, rec: f.rec, cancel: cancel, resumed: resumed}
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
	} else if err := v.unmarkNameless(step, f); err != nil {
		return err
	}
	f.state, f.times = Filling, timesOf(&st)
	v.touchedLocked(f)
	return nil
}

// download writes the object's bytes into the file and proves them. It needs no store
// if they are there.
func (v *Volume) download(ctx context.Context, w *fill) error {
	if w.resumed {
		if whole, err := hasBytes(ctx, w.fd, w.rec); err == nil && whole {
			return w.cut()
		}
	}
	if v.opt.Store == nil {
		return fmt.Errorf("%w: no store is configured", ErrUnavailable)
	}
	key, err := v.key(w.rec, logSuffix)
	if err != nil {
		return err
	}
	return v.point("rehydrate:fill", func() error {
		hash := xxh3.New()
		if err := v.transfer(ctx, w, key, io.MultiWriter(w, hash)); err != nil {
			return err
		}
		if hash.Sum128().Bytes() != w.rec.LogHash {
			return fmt.Errorf("object %s does not have the bytes that its record says", key)
		}
		return w.cut()
	})
}

// transfer copies the object. Where it breaks off it goes on from there, as often
// as it must, unless a try brings nothing at all.
func (v *Volume) transfer(ctx context.Context, w *fill, key string, to io.Writer) error {
	buf := make([]byte, 1<<20)
	for {
		before := w.off
		err := v.copyRest(ctx, w, key, to, buf)
		_, ofStore := errors.AsType[*storeError](err)
		if !ofStore || final(err) || ctx.Err() != nil || w.off == before {
			return err
		}
		v.log.Info("the transfer of a segment broke off; it goes on", "object", key, "at", w.off, "err", err)
	}
}

// fillTime is how long a try of a transfer may take beside what its bytes need at
// fillRate bytes a second.
const (
	fillTime = 90 * time.Second
	fillRate = 1 << 20
)

// copyRest copies what of the object is missing. Its limit is no deadline of the
// context: a store that does not get on gives up by a limit of its own, which is
// shorter.
func (v *Volume) copyRest(ctx context.Context, w *fill, key string, to io.Writer, buf []byte) error {
	rest := w.rec.Size - w.off
	limit := fillTime + time.Duration(float64(rest)/fillRate*float64(time.Second))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(limit, func() { cancel(fmt.Errorf("%w: %d bytes of %s within %v", context.DeadlineExceeded, rest, key, limit)) })
	defer late.Stop()
	body, err := v.opt.Store.GetRange(ctx, key, w.off, rest)
	if err == nil {
		defer body.Close()
		_, err = io.CopyBuffer(to, storeReader{body}, buf)
	} else {
		err = &storeError{err}
	}
	if err != nil && ctx.Err() != nil {
		return &storeError{fmt.Errorf("%w, after: %w", context.Cause(ctx), err)}
	}
	return err
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
		if errors.Is(failed, objstore.ErrNotFound) && len(f.links) == 0 && f.opens.Load() == 0 {
			failed = refuse(ReasonGone) // the object went with its segment
		}
		return errors.Join(failed, v.empty("rehydrate", f, w.fd))
	}
	err := v.localName("rehydrate:name", f, Uploaded)
	if err == nil && len(f.links) == 0 {
		f.state, f.rec = Local, marker.Record{} // unlinked: its tombstone is there
		v.rewritten(f)
	}
	return err
}

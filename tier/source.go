package tier

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/segment"
)

// A Source is where the bytes of one READ come from. A local source holds the
// file's lock shared until Release, so that an eviction waits for it; a remote one
// holds nothing: objects do not change.
type Source struct {
	f     *File
	local bool
	rec   marker.Record
	beside
	err error
}

// beside is the name that the files beside a remote segment go by.
type beside struct {
	place link
	ok    bool // there is one, and what stands beside it is to be believed
}

// agrees reports whether the files beside the name are those of the record: a
// segment that was given another start has another's index beside it, or none.
func (b beside) agrees(rec marker.Record) bool {
	start, _, ok := segment.ParseStem(b.place.name)
	return b.ok && ok && start == rec.Start
}

// Source gives the source for one READ. Release it.
func (f *File) Source() Source {
	f.mu.RLock()
	if f.state == Local || f.state == Uploaded {
		return Source{f: f, local: true}
	}
	s := Source{f: f, rec: f.rec}
	s.place, s.ok = f.place()
	if f.state == Quarantined {
		s.err = quarantined(f.why)
	}
	f.mu.RUnlock()
	return s
}

func quarantined(why string) error { return fmt.Errorf("%w: %s", ErrQuarantined, why) }

// Local reports whether the bytes are in the inode itself.
func (s Source) Local() bool { return s.local }

// Size is the size of a remote segment in bytes.
func (s Source) Size() int64 { return s.rec.Size }

// Release ends the use of the source.
func (s Source) Release() {
	if s.local {
		s.f.mu.RUnlock()
	}
}

// ReadAt reads a remote segment as io.ReaderAt does: all of p, or less together
// with io.EOF at the segment's end. Otherwise it fails whole: with
// [ErrUnavailable] when the store did not give the bytes in time.
func (s Source) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if off >= s.rec.Size {
		return 0, io.EOF
	}
	var eof error
	if rest := s.rec.Size - off; int64(len(p)) > rest {
		p, eof = p[:rest], io.EOF
	}
	v := s.f.v
	if v.opt.Cache == nil {
		return 0, fmt.Errorf("%w: no store is configured", ErrUnavailable)
	}
	s.ok = s.agrees(s.rec) && s.f.distrusted.Load() != uint64(s.rec.UploadID)
	err := s.read(ctx, p, off)
	if s.ok && errors.Is(err, chunkcache.ErrBadObject) && s.distrust(err) {
		err = s.read(ctx, p, off)
	}
	if err != nil {
		return 0, err
	}
	return len(p), eof
}

func (s *Source) read(ctx context.Context, p []byte, off int64) error {
	o, err := s.f.v.object(s.rec, s.beside)
	if err != nil {
		return err
	}
	return s.f.v.planner.read(ctx, s.f, o, p, off)
}

// distrust gives up the index beside the segment, if there is another: cut where no
// batch starts, good bytes look bad.
func (s *Source) distrust(why error) bool {
	v := s.f.v
	key, err := v.key(s.rec, logSuffix)
	if err != nil || s.rec.IndexSize == 0 {
		return false
	}
	if s.f.distrusted.Swap(uint64(s.rec.UploadID)) != uint64(s.rec.UploadID) {
		v.log.Warn("an object looks bad; the index beside its segment may be wrong and is not used any more", "segment", s.place.name, "err", why)
	}
	v.opt.Cache.Drop(key)
	s.f.missed.forget()
	s.ok = false
	return true
}

// object describes a record's object for the cache.
func (v *Volume) object(rec marker.Record, b beside) (chunkcache.Object, error) {
	key, err := v.key(rec, logSuffix)
	if err != nil {
		return chunkcache.Object{}, err
	}
	o := chunkcache.Object{Key: key, Size: rec.Size, Label: v.topicOf(b.place.dir)}
	rules := v.Layout()
	if rules == nil || rules.Format() == segment.Generic {
		return o, nil
	}
	format := rules.Format()
	o.Check = func(data []byte) (int64, error) { return segment.Check(data, format, rec.Start, rec.End) }
	o.Index = func(ctx context.Context) ([]int64, error) { return v.boundaries(ctx, rec, b, format) }
	return o, nil
}

// topicOf names the topic of a directory, for the metrics.
func (v *Volume) topicOf(dir handle.Handle) string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if p := v.partitions[dir]; p != nil {
		return p.name.Topic
	}
	return ""
}

// boundaries returns the batch starts of a remote segment: from the index beside
// it, or from the index object when that is missing, damaged, or not the one that
// was uploaded.
func (v *Volume) boundaries(ctx context.Context, rec marker.Record, b beside, format segment.Format) ([]int64, error) {
	if rec.IndexSize == 0 {
		return nil, nil // there was none that fits
	}
	suffix := v.Layout().IndexSuffix()
	var local error = unix.ENOENT
	if b.agrees(rec) {
		dir, err := v.openDir(b.place.dir)
		if err != nil {
			return nil, err
		}
		defer unix.Close(dir)
		var raw []byte
		if raw, local = durable.ReadFile(dir, segment.Stem(rec.Start)+suffix, maxIndex); local == nil && int64(len(raw)) != rec.IndexSize {
			local = fmt.Errorf("the index beside the segment has %d bytes, not %d", len(raw), rec.IndexSize)
		}
		if local == nil {
			var starts []int64
			if starts, local = segment.Boundaries(raw, rec.Size, format); local == nil {
				return starts, nil
			}
		}
	}
	key, err := v.key(rec, suffix)
	if err != nil {
		return nil, err
	}
	raw, err := fetch(ctx, v.opt.Store, key, rec.IndexSize)
	if err != nil {
		return nil, errors.Join(local, err)
	}
	return segment.Boundaries(raw, rec.Size, format)
}

const maxIndex = 64 << 20

// fetch gets a whole small object.
func fetch(ctx context.Context, s objstore.Store, key string, size int64) ([]byte, error) {
	if size > maxIndex {
		return nil, fmt.Errorf("object %s: %d bytes are too many for an index", key, size)
	}
	r, err := s.GetRange(ctx, key, 0, size)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, size)
	_, err = io.ReadFull(r, b)
	return b, err
}

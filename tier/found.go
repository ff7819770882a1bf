package tier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/objstore"
)

const (
	// foundTimeout is how long the eviction of a pair that was found at boot waits
	// for the store: others, which need no store, wait behind it.
	foundTimeout = 5 * time.Second
	// foundPause is how long no further pair asks a store that did not answer one.
	foundPause = 30 * time.Second
)

// asked remembers that the store did not answer about a pair found at boot.
type asked struct {
	mu   sync.Mutex
	fail error
	at   time.Time
}

// recall returns the error of a question that failed just now.
func (a *asked) recall() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail == nil || time.Since(a.at) > foundPause {
		return nil
	}
	return fmt.Errorf("the store is not asked again yet: %w", a.fail)
}

func (a *asked) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail, a.at = err, time.Now()
}

// compareFound proves a pair that was found at boot: nobody knows what happened
// to the file while no tierfs was there. The store is asked first, because it may
// be away and the bytes take long to read; they are read once.
func (v *Volume) compareFound(ctx context.Context, p *Partition, s Segment, fd int) error {
	f := s.File
	if f.isFound() {
		if err := v.flushSegment(ctx, p, s, fd); err != nil {
			return err
		}
	}
	f.mu.RLock()
	found, rec, before := f.found, f.rec, f.changes.Load()
	same := f.compared == before+1
	f.mu.RUnlock()
	if !found {
		return nil
	}
	kept, err := v.askFound(ctx, rec)
	if err != nil {
		return err
	}
	if !same {
		if same, err = hasBytes(ctx, fd, rec); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != Uploaded || f.rec != rec || f.changes.Load() != before {
		return refuse(ReasonChanged)
	}
	why := ReasonLost
	switch {
	case same && kept:
		f.found = false
		return nil
	case same:
		f.compared = before + 1
		v.log.Error("an object is lost; its segment is whole here and will be uploaded again", "segment", f.home.name, "upload", rec.UploadID)
	default:
		why = ReasonChanged
		v.log.Warn("a segment differs from the record found beside it; it will be uploaded again", "segment", f.home.name)
	}
	if err := v.forgetObject("evict:tombstone", f); err != nil {
		return err
	}
	return refuse(why)
}

func (f *File) isFound() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.found
}

// askFound is hasObject for as long as an eviction may wait, and not soon again
// after it failed.
func (v *Volume) askFound(ctx context.Context, rec marker.Record) (bool, error) {
	key, err := v.key(rec, logSuffix)
	if err != nil {
		return false, err
	}
	if err := v.asked.recall(); err != nil {
		return false, err
	}
	wait, cancel := context.WithTimeout(ctx, foundTimeout)
	defer cancel()
	kept, err := v.hasObject(wait, key, rec)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotOwner) {
		v.asked.note(err)
	}
	return kept, err
}

// hasObject reports whether the store has an object of the record's size. One that
// is missing is a loss, if the store is the right one.
func (v *Volume) hasObject(ctx context.Context, key string, rec marker.Record) (bool, error) {
	info, err := v.opt.Store.Head(ctx, key)
	if err == nil && info.Size == rec.Size {
		return true, nil
	}
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return false, err
	}
	if err := v.CheckOwner(ctx); err != nil {
		return false, err
	}
	v.log.Warn("an object is not what its record says", "object", key, "bytes", rec.Size, "found", info.Size, "err", err)
	return false, nil
}

// hasBytes reports whether a file holds exactly the bytes of a record.
func hasBytes(ctx context.Context, fd int, rec marker.Record) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if st.Size != rec.Size {
		return false, nil
	}
	defer FindCold(fd, rec.Size).Drop()
	h := xxh3.New()
	if _, err := io.CopyBuffer(h, &contextReader{ctx, io.NewSectionReader(fdReader(fd), 0, rec.Size)}, make([]byte, 1<<20)); err != nil {
		return false, err
	}
	return h.Sum128().Bytes() == rec.LogHash, nil
}

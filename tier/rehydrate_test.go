package tier

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/tierfs/tierfs/objstore"
)

// breaking is a store whose bodies break off after some bytes.
type breaking struct {
	objstore.Store
	after int64
	offs  *[]int64 // where each GET began
	t     *testing.T
}

func (s breaking) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if _, ok := ctx.Deadline(); ok {
		s.t.Error("the store may go on failing for as long as the whole transfer takes")
	}
	*s.offs = append(*s.offs, off)
	r, err := s.Store.GetRange(ctx, key, off, n)
	if err != nil || n <= s.after {
		return r, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(r, s.after), brokenPipe{}), r}, nil
}

type brokenPipe struct{}

func (brokenPipe) Read([]byte) (int, error) { return 0, objstore.ErrTransient }

func TestRehydrationGoesOn(t *testing.T) {
	rehydrate := func(t *testing.T, after int64) (*world, []int64, error) {
		w := newWorld(t, 3)
		w.remote(0)
		var offs []int64
		w.tune = func(o *Options) { o.Store = breaking{w.store, after, &offs, t} }
		w.reopen()
		err := w.v.Rehydrate(t.Context(), w.segment("t-0", 0).File)
		return w, offs, err
	}
	t.Run("from where it broke off", func(t *testing.T) {
		w, offs, err := rehydrate(t, 1000)
		w.do(err)
		w.wantState("t-0", 0, Uploaded)
		w.wantContent(w.dir("t-0"), name(0), w.logs[0])
		for i, off := range offs {
			if off != int64(i)*1000 {
				t.Errorf("GETs begin at %v", offs)
				break
			}
		}
		if len(offs) < 3 {
			t.Errorf("%d GETs", len(offs))
		}
	})
	t.Run("not without bytes", func(t *testing.T) {
		w, offs, err := rehydrate(t, 0)
		if !errors.Is(err, objstore.ErrTransient) || len(offs) != 1 {
			t.Errorf("got %v after %d GETs", err, len(offs))
		}
		w.wantState("t-0", 0, Remote)
	})
}

// TestRehydrationOfTheUnlinked: the object goes with its segment, under the eyes of who fetches it.
func TestRehydrationOfTheUnlinked(t *testing.T) {
	w := newWorld(t, 3)
	w.remote(0)
	f := w.segment("t-0", 0).File
	w.step = func(step string) {
		if step == "rehydrate:fill" {
			w.step = nil
			w.do(w.v.Unlink(w.dir("t-0"), name(0)))
			w.retireAll()
		}
	}
	w.wantRefused(w.v.Rehydrate(t.Context(), f), ReasonGone)
}

package tier

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

// A pair that was found at boot asks the store before it reads the segment, for a
// few seconds at most, and not again soon when the store is away.
func TestFoundPairAsksTheStoreFirst(t *testing.T) {
	w := newWorld(t, 4)
	for _, start := range w.starts[:2] {
		w.do(w.upload("t-0", start))
	}
	w.close()
	differs := append([]byte("differs"), w.logs[0][7:]...)
	w.write("t-0/"+name(0), differs)
	w.open()
	w.store.SetHook(func(ctx context.Context, op, _ string) error {
		if end, ok := ctx.Deadline(); op == "head" && (!ok || time.Until(end) > foundTimeout) {
			t.Error("the store has longer than the others can wait")
		}
		return objstore.ErrTransient
	})
	heads := w.store.Count("head")
	for _, start := range w.starts[:2] {
		if err := w.evict("t-0", start); !errors.Is(err, objstore.ErrTransient) {
			t.Errorf("got %v, want the store's failure", err)
		}
	}
	if n := w.store.Count("head") - heads; n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	w.store.SetHook(nil)
	w.v.asked.at = time.Now().Add(-foundPause - time.Second)
	w.wantRefused(w.evict("t-0", 0), ReasonChanged)
	w.wantContent(w.dir("t-0"), name(0), differs)
}

// The bytes of a found pair are read once.
func TestFoundPairIsReadOnce(t *testing.T) {
	w := newWorld(t, 3)
	w.do(w.upload("t-0", 0))
	w.reopen()
	f := w.segment("t-0", 0).File
	f.rec.LogHash[0]++ // whoever reads them finds that they differ
	f.compared = f.changes.Load() + 1
	w.do(w.evict("t-0", 0))
}

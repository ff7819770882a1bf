package tier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
)

// unlinkedUploads is a world with so many uploads that are to be deleted.
func unlinkedUploads(t *testing.T, n int) *world {
	w := newWorld(t, n+1)
	w.grace = time.Hour
	w.reopen()
	for _, start := range w.starts[:n] {
		w.do(w.upload("t-0", start))
		w.do(w.v.Unlink(w.dir("t-0"), name(start)))
	}
	return w
}

// A key that the store never deletes stops no other.
func TestRefusedDeletion(t *testing.T) {
	w := unlinkedUploads(t, 4)
	locked := w.logObjects()[1]
	w.store.SetHook(func(_ context.Context, op, key string) error {
		if op == "delete" && key == locked {
			return fmt.Errorf("%w: it is locked", objstore.ErrAuth)
		}
		return nil
	})
	w.retireAll()
	if got := w.logObjects(); !slices.Equal(got, []string{locked}) {
		t.Errorf("left are %v", got)
	}
	left := w.v.Tombstones()
	if len(left) != 1 || len(w.below(".tierfs/tombstones")) != 1 {
		t.Fatalf("tombstones %v", left)
	}
	if key, err := w.v.key(left[0].Record, logSuffix); err != nil || key != locked {
		t.Errorf("the tombstone of %s is left, %v", key, err)
	}
	if in := time.Until(left[0].Due); in < refusedPause-time.Minute || in > refusedPause {
		t.Errorf("it is tried again in %v", in)
	}
	w.store.SetHook(nil)
	w.retireAll()
	if len(w.logObjects()) != 0 || len(w.v.Tombstones()) != 0 {
		t.Error("it is never deleted")
	}
}

// A store that refuses everything is not asked for each upload, and one that is
// away for none.
func TestRefusingStore(t *testing.T) {
	const uploads = maxRefused + 4
	for failure, requests := range map[error]int{
		objstore.ErrAuth: 1 + maxRefused, objstore.ErrConfig: 1, objstore.ErrTransient: 1,
	} {
		t.Run(strings.ReplaceAll(failure.Error(), " ", "_"), func(t *testing.T) {
			w := unlinkedUploads(t, uploads)
			w.store.SetHook(func(_ context.Context, op, _ string) error {
				if op == "delete" {
					return failure
				}
				return nil
			})
			before := w.store.Count("delete")
			if err := w.retireDue(); !errors.Is(err, failure) {
				t.Errorf("got %v", err)
			}
			if n := w.store.Count("delete") - before; n != requests {
				t.Errorf("%d requests, want %d", n, requests)
			}
			if n := len(w.v.Tombstones()); n != uploads {
				t.Errorf("%d tombstones", n)
			}
		})
	}
}

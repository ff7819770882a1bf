package powercut

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestFirstMount cuts before the flushes of a volume's first mount, until the mount owns the volume: whatever is there of it, the next
// mount has to go on, and to become the owner.
func TestFirstMount(t *testing.T) {
	w := newWorld(t, "through")
	err := w.onDisk(t.Context(), func(disk *disk, store string) error { return w.first(t.Context(), disk, store) })
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.cuts); !soak() { // the owner is claimed at the end
		w.cuts = []cut{w.cuts[0], w.cuts[n/2], w.cuts[n-2], w.cuts[n-1]}
	}
	w.holds(t, 1)
}

func (w *world) first(ctx context.Context, disk *disk, store string) (err error) {
	if err := errors.Join(os.Mkdir(filepath.Join(disk.point, "data"), 0o755), syncfs(disk.point)); err != nil {
		return err
	}
	d, err := newDaemon(tierfs, w.path("tierfs"), disk.point, store, w.writes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ended := make(chan error, 1)
	watch, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		err := d.Start(ctx)
		if err == nil {
			err = owns(ctx, d)
		}
		ended <- err
	}()
	for watch.Err() == nil && err == nil {
		err = disk.still(watch, beforeFlush, 0, func(entries int) error { return w.take(entries, newLedger(), store) })
	}
	if watch.Err() != nil { // no further flush has come
		err = nil
	}
	return errors.Join(err, <-ended)
}

package powercut

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/segment"
)

// TestDiskBeforeStore cuts behind a change of the store, right before the disk is flushed for the next time, and nothing survives that
// was not flushed: what the store was changed for has to be on the disk by then. Without the intent an object would be there that
// nobody knows, without the tombstone a segment would be back whose object is gone.
func TestDiskBeforeStore(t *testing.T) {
	w := record(t, tierfs, "through", idle, func(w *world) cutter {
		return func(ctx context.Context, disk *disk, b *broker, store string) error {
			p := &partition{broker: b, dir: "load-0", random: rand.New(rand.NewPCG(1, 1))}
			if err := p.remote(ctx); err != nil {
				return err
			}
			defer func() { _ = p.active.Close() }()
			return errors.Join(w.put(ctx, disk, p, store), w.deleted(ctx, disk, p, store))
		}
	})
	for i := range w.cuts {
		w.cuts[i].bare = true
	}
	w.holds(t, 1)
}

// objects are the paths of a segment's objects.
func objects(store string, start uint64) (paths []string, err error) {
	found, err := rig.FS(store).Objects("/"+segment.Stem(start)+"-", ".log")
	for key := range found {
		paths = append(paths, filepath.Join(store, key))
	}
	return paths, err
}

// put cuts behind the upload of a segment.
func (w *world) put(ctx context.Context, disk *disk, p *partition, store string) error {
	start := p.starts[len(p.starts)-1]
	return w.behind(ctx, disk, p, store, p.roll, func() (bool, error) {
		paths, err := objects(store, start)
		return len(paths) > 0, err
	})
}

// deleted cuts behind the deletion of the objects of remote segments, of which one is removed and one replaced.
func (w *world) deleted(ctx context.Context, disk *disk, p *partition, store string) error {
	remove := func(start uint64) error {
		return errors.Join(p.remove(p.name(start, ".index")), p.syncDir(p.dir), p.remove(p.name(start, ".log")))
	}
	for i, change := range []func(start uint64) error{remove, p.replaceBy} {
		start := p.starts[i]
		paths, err := objects(store, start)
		if err != nil || len(paths) != 1 {
			return errors.Join(err, fmt.Errorf("segment %d has the objects %v", start, paths))
		}
		err = w.behind(ctx, disk, p, store, func() error { return change(start) }, func() (bool, error) {
			_, err := os.Lstat(paths[0])
			if errors.Is(err, fs.ErrNotExist) {
				return true, nil
			}
			return false, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// behind makes a change, and cuts before the first flush at which something has happened in the store.
func (w *world) behind(ctx context.Context, disk *disk, p *partition, store string, change func() error, happened func() (bool, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := change()
		if err != nil {
			cancel()
		}
		ended <- err
	}()
	for done := false; !done; {
		err := disk.still(ctx, beforeFlush, 0, func(entries int) (err error) {
			if done, err = happened(); done {
				err = w.take(entries, p.ledger, store)
			}
			return err
		})
		if err != nil {
			cancel()
			return errors.Join(err, <-ended)
		}
	}
	return <-ended
}

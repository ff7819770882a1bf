package powercut

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// world is one disk with all that was done to it, and the moments at which it may stop.
type world struct {
	dir    string
	writes string // the mode of the mount
	cuts   []cut
	took   time.Duration
	met    map[string]int // how many files of each sort were found below after the cuts
}

// cutter makes cuts while a broker works.
type cutter func(ctx context.Context, d *disk, b *broker, store string) error

// record lets a broker work on a mount until the cuts were made, and takes all down. It fails the test when the broker does.
func record(t *testing.T, binary, writes string, pace pace, cut func(*world) cutter) *world {
	t.Helper()
	w := newWorld(t, writes)
	err := w.onDisk(t.Context(), func(disk *disk, store string) error { return w.work(t, disk, binary, store, pace, cut(w)) })
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func newWorld(t *testing.T, writes string) *world {
	return &world{dir: t.TempDir(), writes: writes, met: map[string]int{}}
}

// onDisk calls f with the world's disk, mounted, and an empty store.
func (w *world) onDisk(ctx context.Context, f func(disk *disk, store string) error) error {
	dir, point, store := w.path("disk"), w.path("point"), w.path("store")
	for _, dir := range []string{dir, point, store} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	disk, err := newDisk(ctx, dir, point)
	if err != nil {
		return err
	}
	began := time.Now()
	err = f(disk, store)
	w.took = time.Since(began)
	return errors.Join(err, disk.close())
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// work lets the broker work. The disk is mounted.
func (w *world) work(t *testing.T, disk *disk, binary, store string, pace pace, cut cutter) (err error) {
	if err := os.Mkdir(filepath.Join(disk.point, "data"), 0o755); err != nil {
		return err
	}
	tierfs, err := newDaemon(binary, w.path("tierfs"), disk.point, store, w.writes)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, tierfs.Close())
		if err != nil {
			t.Logf("tierfs:\n%s", tierfs.Log().Tail(30))
		}
	}()
	if err := tierfs.Start(t.Context()); err != nil {
		return err
	}
	if err := syncfs(disk.point); err != nil { // a volume that is there, whatever comes
		return err
	}
	b := &broker{
		view: &view{tierfs.Mountpoint(), newLedger()}, daemon: tierfs, pace: pace, offsets: map[string]uint64{}, rolled: make(chan struct{}, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- b.run(ctx)
	}()
	err = cut(ctx, disk, b, store)
	cancel()
	return errors.Join(err, <-ended)
}

// spread makes so many cuts, in turn by these orders. About spacing entries of the disk's log lie between two of them.
func spread(cuts, spacing int, orders ...string) func(*world) cutter {
	return func(w *world) cutter {
		return func(ctx context.Context, disk *disk, b *broker, store string) error {
			for i := range cuts {
				order, after := orders[i%len(orders)], 1+rand.IntN(2*spacing)
				if order == atOnce {
					if err := b.ledger.await(ctx, 1+after/6); err != nil {
						return err
					}
				}
				if err := w.cut(ctx, disk, b.ledger, store, order, after); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

func (w *world) cut(ctx context.Context, disk *disk, l *ledger, store, order string, after int) error {
	return disk.still(ctx, order, after, func(entries int) error { return w.take(entries, l, store) })
}

// shares are how much of what was not flushed survives.
var shares = []float64{0.5, 0, 1, 0.9, 0.1}

// replay makes the images of all cuts, one after the other, and calls f with what was wrong in each. f says whether to go on.
func (w *world) replay(t *testing.T, images int, deaf bool, f func(name string, wrong []string) bool) {
	t.Helper()
	h, err := newHistory(w.path("disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	for i, c := range w.cuts {
		if deaf && h.deafAt == 0 {
			h.deafAt = c.entries
		}
		if err := h.goTo(c.entries); err != nil {
			t.Fatal(err)
		}
		for k := range images {
			kept := shares[(i+k)%len(shares)]
			if deaf || c.bare {
				kept = 0
			}
			name := fmt.Sprintf("cut %d after %d entries, %d of them open, %v kept", i, c.entries, len(h.open), kept)
			dir := w.path(fmt.Sprintf("cut-%d-%d", i, k))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			image := filepath.Join(dir, "image")
			if err := h.image(image, uint64(k), kept); err != nil {
				t.Fatal(err)
			}
			wrong, err := w.after(t.Context(), image, c)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			more := f(name, wrong)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if !more {
				return
			}
		}
	}
}

// counts of cuts of each kind, and of images of each.
func counts() (cuts, images int) {
	if soak() {
		return 120, 4
	}
	return 10, 1
}

// TestPowerCut is the promise, for each mode of writes.
func TestPowerCut(t *testing.T) {
	cuts, images := counts()
	for _, writes := range []string{"through", "writeback"} {
		t.Run(writes, func(t *testing.T) {
			t.Run("busy", func(t *testing.T) {
				w := record(t, tierfs, writes, busy, spread(cuts, 450, withFlush, atEntry, atOnce))
				w.holds(t, images)
				for sort := range sorts {
					if w.met[sort] == 0 && sort != "unwritten" && sort != "intent" && sort != "renamed" { // those live for a moment
						t.Errorf("no cut has left a file of the sort %s", sort)
					}
				}
			})
			t.Run("quiet", func(t *testing.T) {
				w := record(t, tierfs, writes, quiet, spread(cuts, 60, beforeFlush))
				w.holds(t, images)
			})
		})
	}
}

// holds fails the test for each image with something wrong.
func (w *world) holds(t *testing.T, images int) {
	t.Helper()
	looked, began := 0, time.Now()
	w.replay(t, images, false, func(name string, wrong []string) bool {
		looked++
		if len(wrong) > 0 {
			t.Errorf("%s:\n%s", name, strings.Join(wrong, "\n"))
		}
		return true
	})
	last := w.cuts[len(w.cuts)-1]
	t.Logf("recorded in %v: %d entries and %d promises; %d images of %d cuts in %v had %v",
		w.took, last.entries, last.ledger.acks, looked, len(w.cuts), time.Since(began), w.met)
}

// found is the first thing that is wrong.
func (w *world) found(t *testing.T, deaf bool) (first string) {
	t.Helper()
	w.replay(t, 1, deaf, func(name string, wrong []string) bool {
		if len(wrong) > 0 {
			first = name + ": " + wrong[0]
		}
		return first == ""
	})
	return first
}

// TestSeesLies holds the test itself to its purpose: a disk that forgets what was flushed has to be noticed, and a tierfs
// that answers fsync without one.
func TestSeesLies(t *testing.T) {
	t.Run("disk", func(t *testing.T) {
		w := record(t, tierfs, "through", busy, spread(3, 300, withFlush))
		if first := w.found(t, true); first == "" {
			t.Error("nobody has noticed")
		} else {
			t.Log(first)
		}
	})
	t.Run("tierfs", func(t *testing.T) {
		w := record(t, lying(t), "through", busy, func(w *world) cutter {
			return func(ctx context.Context, disk *disk, b *broker, store string) error {
				for range 3 { // the disk's log has few entries now
					if err := errors.Join(b.ledger.await(ctx, 60), w.cut(ctx, disk, b.ledger, store, atOnce, 0)); err != nil {
						return err
					}
				}
				return nil
			}
		})
		if first := w.found(t, false); first == "" {
			t.Error("nobody has noticed")
		} else {
			t.Log(first)
		}
	})
}

// lying is a tierfs whose calls of fsync and fdatasync do nothing, and succeed.
func lying(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "lying")
	script := fmt.Sprintf("#!/bin/sh\nexec strace -D -f -qq -o /dev/null -e trace=fsync,fdatasync -e inject=fsync,fdatasync:retval=0 %q \"$@\"\n", tierfs)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

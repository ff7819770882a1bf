package tier

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Lookups and listings that run while a segment's name below is swapped to and fro
// see it each time, and once.
func TestNamesDuringSwaps(t *testing.T) {
	w := newWorld(t, 2)
	for i := range 2000 { // more than one read of the directory takes
		w.write(fmt.Sprintf("t-0/%0200d", i), nil)
	}
	d := w.dir("t-0")
	ctx, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer stop()
	var all sync.WaitGroup
	swaps, looks, lists := 0, 0, 0
	all.Go(func() {
		for ; ctx.Err() == nil || swaps%2 == 1; swaps++ {
			from, to := name(0), remoteName(name(0))
			if swaps%2 == 1 {
				from, to = to, from
			}
			if err := w.v.swap(d.Handle, func() error { return renameat(d.FD, from, d.FD, to, unix.RENAME_NOREPLACE) }); err != nil {
				t.Error(err)
				return
			}
		}
	})
	all.Go(func() {
		for ; ctx.Err() == nil; looks++ {
			if _, _, err := w.v.resolve(d, name(0)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	all.Go(func() {
		for ; ctx.Err() == nil; lists++ {
			list, err := w.v.List(d)
			n := 0
			for _, e := range list {
				if e.Name == name(0) {
					n++
				}
			}
			if err != nil || n != 1 {
				t.Errorf("listed %d times, %v", n, err)
				return
			}
		}
	})
	all.Wait()
	t.Logf("%d swaps, %d lookups, %d listings", swaps, looks, lists)
	if _, _, err := w.v.resolve(d, name(5)); err != unix.ENOENT && !isNotExist(err) {
		t.Errorf("a missing name: %v", err)
	}
}

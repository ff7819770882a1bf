package upload

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier/tiertest"
)

// A volume that is full for what the kernel has accepted is looked at regularly, also
// while nothing may be evicted.
func TestFullVolumeIsLookedAt(t *testing.T) {
	disk := tiertest.SmallDisk(t, 0)
	bubble(t, func(w *world) {
		w.path = disk
		w.write("meta.properties", []byte("node.id=1\n"))
		w.fill("a-0", 2)
		w.tier.DirtyCap = 1 << 20
		w.open()
		w.b.Pause()
		eaten := filepath.Join(disk, "eaten")
		w.do(tiertest.Eat(eaten))
		failed := false
		w.do(w.v.Late(t.Context(), func() error {
			if !failed {
				failed = true
				return unix.ENOSPC
			}
			return nil
		}))
		w.after(time.Minute)
		if !w.v.Full() || w.v.LateReserve() >= w.tier.DirtyCap {
			t.Fatalf("full: %v, reserve %d", w.v.Full(), w.v.LateReserve())
		}
		w.do(os.Remove(eaten))
		w.after(2 * evictTick)
		if w.v.Full() || w.v.LateReserve() < w.tier.DirtyCap {
			t.Errorf("with room full: %v, reserve %d", w.v.Full(), w.v.LateReserve())
		}
	})
}

package crash

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tierfs/tierfs/tier/tiertest"
)

// withoutRoom fills the disk up while an upload is about to write its intent, and kills where the reserve has to give way. The
// recovery finds a full disk.
func withoutRoom(t *testing.T, at point) {
	disk := tiertest.SmallDisk(t, 0)
	v := newVolume(t, disk, crash, through)
	v.must(v.restart())
	process, from := v.daemon.Process(), v.daemon.Log().Len()
	v.order("hold upload:intent")
	v.must(v.newPartition(uploaded.prefix()).fill())
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	v.must(v.daemon.Log().Await(ctx, process, from, "holding at upload:intent\n"))
	eaten := filepath.Join(disk, "eaten")
	v.must(tiertest.Eat(eaten))
	v.order(at.order(v.verb))
	v.must(v.died(process, from, at.name()))
	v.must(v.restart())
	v.look("with a full disk")
	v.check("with a full disk")
	v.must(os.Remove(eaten))
	v.settled("with room again")
	v.must(v.daemon.Stop())
}

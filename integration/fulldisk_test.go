package integration

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// A mount starts on a disk that is full to the last block, root's included, and frees it.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	p := newPlainIn(t, tiertest.SmallDisk(t, 5), rig.FS(t.TempDir()), "", "orders")
	p.mount()
	p.stop()
	p.must(tiertest.Eat(p.path("fill")))
	if err := os.WriteFile(p.path("one"), make([]byte, 4096), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk takes a file: %v", err)
	}

	p.mount()
	p.evict()
	if got := p.metric("tierfs_segments", "state", "remote"); got != segmentsOf-1 {
		t.Errorf("%v segments were evicted of %d", got, segmentsOf-1)
	}
	for name := range p.logs {
		p.whole(name)
	}
	p.must(os.WriteFile(p.view("one"), make([]byte, 4096), 0o600))
	p.stop()
	if found := p.check(); len(found) != 0 {
		t.Errorf("found %q", found)
	}
}

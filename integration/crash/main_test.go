package crash

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/tierfs/tierfs/integration/daemon"
)

// tierfs is the daemon with its crash points, built once by TestMain.
var tierfs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tierfs-crash-")
	if err == nil {
		tierfs = filepath.Join(dir, "tierfs")
		err = daemon.Build(context.Background(), tierfs, false, "crashpoints")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		os.RemoveAll(dir)
		os.Exit(status)
	}))
}

// rounds is how often each point is killed at.
func rounds() int {
	if os.Getenv("TIERFS_SOAK") != "" {
		return 20
	}
	return 1
}

package powercut

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/tierfs/tierfs/integration/daemon"
)

// tierfs is the daemon, built once by TestMain.
var tierfs string

// diskEnv tells the test binary that it is the process of a disk.
const diskEnv = "TIERFS_POWERCUT_DISK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(diskEnv); dir != "" {
		if err := serveDisk(dir); err != nil {
			fmt.Fprintln(os.Stderr, "disk:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "tierfs-powercut-")
	if err == nil {
		tierfs = filepath.Join(dir, "tierfs")
		err = daemon.Build(context.Background(), tierfs, false)
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

// soak says whether there is time for many cuts.
func soak() bool { return os.Getenv("TIERFS_SOAK") != "" }

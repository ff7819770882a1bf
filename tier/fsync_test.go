package tier

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const fsyncEnv = "TIERFS_FSYNC_CHILD"

// The kernel reports a failed write of a segment once. An fsync that is tried again
// says nothing of the bytes that were lost, so one that finds no room is not.
func TestFailedFsyncIsNotTriedAgain(t *testing.T) {
	if dir := os.Getenv(fsyncEnv); dir != "" {
		fsyncChild(t, dir)
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, out := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "strace")
	cmd := exec.CommandContext(t.Context(), "strace", "-f", "-o", out, "-e", "signal=none", "-P", filepath.Join(dir, "t-0", name(0)),
		"-e", "trace=fsync", "-e", "inject=fsync:error=ENOSPC:when=1", exe, "-test.run", "^TestFailedFsyncIsNotTriedAgain$")
	cmd.Env = append(os.Environ(), fsyncEnv+"="+dir)
	said, err := cmd.CombinedOutput()
	trace, _ := os.ReadFile(out)
	if err != nil || strings.Count(string(trace), "fsync(") != 1 {
		t.Fatalf("%v\n%s\n%s", err, said, trace)
	}
}

// fsyncChild runs where the first fsync of the first segment fails.
func fsyncChild(t *testing.T, dir string) {
	runtime.LockOSThread() // strace counts by thread
	defer runtime.UnlockOSThread()
	w := newWorld(t, 3)
	w.close()
	w.do(os.Rename(w.path, dir)) // the trace knows it by this name
	w.path = dir
	w.open()
	if _, err := w.v.Prepare(t.Context(), w.partition("t-0"), w.segment("t-0", 0)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the upload of bytes that may not be on the disk: %v", err)
	}
}

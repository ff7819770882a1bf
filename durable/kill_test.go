package durable

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// writerEnv makes this test binary a writer in the directory it names.
const writerEnv = "TIERFS_TEST_DURABLE_WRITER"

// content is what the writer's file holds in its n-th version.
func content(n int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%08d\n", n), 10000)
}

// writeForEver writes one version after the other, until it is killed, and
// reports each that is written.
func writeForEver(dir string) {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for n := 1; err == nil; n++ {
		if err = WriteFile(fd, "f", content(n), 0o600); err == nil {
			_, err = fmt.Println(n)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// A writer is killed at odd moments: the file is always one whole version, the
// last that was reported or the one after it.
func TestKill(t *testing.T) {
	tr := newTree(t)
	for round := range 8 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), writerEnv+"="+tr.path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		tr.do(err)
		tr.do(cmd.Start())
		last := 0
		for last <= round { // some versions, then in the midst of the next
			if _, err := fmt.Fscanln(out, &last); err != nil {
				t.Fatalf("the writer stopped by itself: %v, %v", err, cmd.Wait())
			}
		}
		tr.do(cmd.Process.Kill())
		for {
			if _, err := fmt.Fscanln(out, &last); err != nil {
				break
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.Exited() {
			t.Fatalf("the writer stopped by itself: %v", err)
		}
		got, err := ReadFile(tr.fd, "f", 1<<20)
		tr.do(err)
		if !bytes.Equal(got, content(last)) && !bytes.Equal(got, content(last+1)) {
			t.Errorf("after version %d the file holds %d bytes, %.20q…", last, len(got), got)
		}
		tr.do(SweepTemp(tr.fd))
		if entries, err := os.ReadDir(tr.path); err != nil || len(entries) != 1 {
			t.Errorf("the sweep left %v, %v", entries, err)
		}
	}
	if info, err := os.Stat(filepath.Join(tr.path, "f")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// describe is one paragraph on where and when the numbers were taken.
func describe(ctx context.Context) (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "", err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &disk); err != nil {
		return "", err
	}
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	model := "unknown CPU"
	for line := range strings.Lines(string(cpus)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		commit = []byte("unknown") // a source tree without its history
	}
	return fmt.Sprintf("%s. %d cores (%s), %d GiB of memory, Linux %s, %s below, Go %s, Kafka's broker, its client and tierfs on the same cores. Commit %s.",
		time.Now().UTC().Format("2006-01-02"), runtime.NumCPU(), model, info.Totalram*uint64(info.Unit)>>30,
		unix.ByteSliceToString(uts.Release[:]), fsName(int64(disk.Type)), runtime.Version(), strings.TrimSpace(string(commit))), nil
}

func fsName(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "XFS"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	}
	return fmt.Sprintf("file system %#x", magic)
}

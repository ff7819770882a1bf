package main

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// configCommand shows the effective settings.
func (p *program) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the effective settings and where each came from",
		Args:  between(0, 0),
	}
	flags := addSettingFlags(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := flags.load(p)
		if err != nil {
			return err
		}
		table := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
		for _, l := range c.Lines() {
			fmt.Fprintf(table, "%s = %s\t# %s%s\n", l.Path, l.Value, l.Origin, when(l.Idle, ", no effect in this version"))
		}
		return table.Flush()
	}
	return cmd
}

// versionCommand shows what this binary is and runs on.
func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version, the commit, Go's version and the kernel's FUSE version",
		Args:  between(0, 0),
		RunE: func(*cobra.Command, []string) error {
			name, commit := buildVersion()
			table := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintf(table, "tierfs\t%s\ncommit\t%s\ngo\t%s %s/%s\n", name, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			fmt.Fprintf(table, "kernel\t%s\nfuse\t%s\n", kernelRelease(), fuseVersion())
			return table.Flush()
		},
	}
}

// buildVersion is what the linker and the version control say.
func buildVersion() (name, commit string) {
	name, commit = version, "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return name, commit
	}
	if name == "" {
		name = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " (changed)"
		}
	}
	return name, commit + dirty
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// The first request that the kernel sends to a new session (linux/fuse.h):
// a header of 40 bytes, then the protocol's major u32@40 and minor u32@44.
const (
	fuseMajor = 40
	fuseMinor = 44
)

// fuseVersion asks the kernel for its FUSE protocol, by a session that is never
// mounted anywhere.
func fuseVersion() string {
	major, minor, err := askFuse()
	if err != nil {
		return fmt.Sprintf("unknown (%v)", err)
	}
	return fmt.Sprintf("%d.%d", major, minor)
}

func askFuse() (major, minor uint32, err error) {
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("open /dev/fuse: %w", err)
	}
	defer unix.Close(fuse)
	session, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, 0, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(session)
	for _, option := range [][2]string{
		{"source", "tierfs-version"}, {"fd", strconv.Itoa(fuse)}, {"rootmode", "40000"}, {"user_id", "0"}, {"group_id", "0"},
	} {
		if err := unix.FsconfigSetString(session, option[0], option[1]); err != nil {
			return 0, 0, fmt.Errorf("fsconfig %s: %w", option[0], err)
		}
	}
	if err := unix.FsconfigCreate(session); err != nil {
		return 0, 0, fmt.Errorf("fsconfig: %w", err)
	}
	request := make([]byte, 64<<10)
	n, err := unix.Read(fuse, request)
	if err != nil || n < fuseMinor+4 {
		return 0, 0, fmt.Errorf("read of %d bytes: %w", n, err)
	}
	return binary.NativeEndian.Uint32(request[fuseMajor:]), binary.NativeEndian.Uint32(request[fuseMinor:]), nil
}

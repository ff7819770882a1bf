package fs

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	fsType = "tierfs" // "fuse.tierfs" in the kernel's tables

	// maxRequest bounds a READ and a WRITE: the most the kernel sends by default.
	maxRequest = 1 << 20

	// maxBackground is how many read-aheads the kernel has in flight. Its default,
	// 12, lets 12 cold reads hold up every warm one.
	maxBackground = 1024
)

// wantedFlags are asked for beyond go-fuse's own choice.
//
// CAP_HANDLE_KILLPRIV_V2: set-id bits are cleared here, so that the kernel need not
// ask for security.capability before each write(2).
// CAP_READDIRPLUS_AUTO: attributes come with names only where the reader wants them.
// CAP_EXPLICIT_INVAL_DATA: a new mtime does not drop the pages of a file.
const wantedFlags = fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_READDIRPLUS_AUTO | fuse.CAP_EXPLICIT_INVAL_DATA

// unwantedFlags: passthrough pins the inode below, so it could not be emptied; and
// nothing here answers ENOSYS to an open.
const unwantedFlags = fuse.CAP_PASSTHROUGH | fuse.CAP_NO_OPEN_SUPPORT | fuse.CAP_NO_OPENDIR_SUPPORT

// mountFuse opens /dev/fuse and mounts it. It does not leave the mount itself to
// go-fuse, whose descriptor would be inherited by every child of the daemon.
func mountFuse(mountpoint, source string) (fd int, err error) {
	fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/fuse: %w", err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,default_permissions,allow_other,max_read=%d",
		fd, unix.S_IFDIR, maxRequest)
	err = unix.Mount(source, mountpoint, "fuse."+fsType, unix.MS_NOSUID|unix.MS_NODEV, data)
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mount on %s: %w", mountpoint, err)
	}
	return fd, nil
}

// mountOptions are those of the session. DirectMount and DirectMountStrict stay unset:
// with a mount that exists already, go-fuse would mount on the descriptor's path, which
// is /dev/fuse itself.
func mountOptions(opt Options) *fuse.MountOptions {
	return &fuse.MountOptions{
		AllowOther:               true,
		FsName:                   opt.FsName,
		Name:                     fsType,
		MaxBackground:            maxBackground,
		CongestionThreshold:      maxBackground,
		MaxWrite:                 maxRequest,
		ExplicitDataCacheControl: true,
		EnableLocks:              false, // the kernel keeps flock, fcntl and OFD locks itself
		EnableSymlinkCaching:     true,  // a symlink below never changes its target
		DisableSplice:            true,  // answers are in memory; a pipe would be one more copy
		ExtraCapabilities:        wantedFlags,
		DisabledCapabilities:     unwantedFlags,
		Logger:                   slog.NewLogLogger(opt.Log.Handler(), slog.LevelWarn),
	}
}

// setReadAhead raises the read-ahead of the new mount, which FUSE itself can only
// lower. The mount is found in mountinfo: nothing here may touch it.
func setReadAhead(opt Options) error {
	if opt.ReadAhead <= 0 {
		return nil
	}
	dev, err := mountDevice(opt.Mountpoint, opt.FsName)
	if err != nil {
		return err
	}
	kib := strconv.FormatInt(max(opt.ReadAhead>>10, 1), 10)
	return os.WriteFile("/sys/class/bdi/"+dev+"/read_ahead_kb", []byte(kib), 0)
}

var errNotMounted = errors.New("not in /proc/self/mountinfo")

// mountDevice returns "major:minor" of the topmost tierfs mount on mountpoint.
func mountDevice(mountpoint, source string) (string, error) {
	abs, err := filepath.Abs(mountpoint)
	if err != nil {
		return "", err
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer file.Close()
	found := ""
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if m, ok := parseMount(lines.Text()); ok && m.fsType == "fuse."+fsType && m.source == source && m.point == abs {
			found = m.device
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if found == "" {
		return "", fmt.Errorf("mount %s on %s: %w", source, abs, errNotMounted)
	}
	return found, nil
}

type mountLine struct{ device, point, fsType, source string }

// parseMount reads a line of /proc/pid/mountinfo (proc(5)): id, parent, device,
// root, mount point, options, optional fields, "-", type, source, options.
func parseMount(line string) (mountLine, bool) {
	before, after, ok := strings.Cut(line, " - ")
	left, right := strings.Fields(before), strings.Fields(after)
	if !ok || len(left) < 6 || len(right) < 2 {
		return mountLine{}, false
	}
	return mountLine{device: left[2], point: unescape(left[4]), fsType: right[0], source: unescape(right[1])}, true
}

// unescape undoes the octal escapes that the kernel writes for blanks and
// backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

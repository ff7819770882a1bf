package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/mountinfo"
)

const (
	fsType = "tierfs" // [mountinfo.FSType] without the kernel's "fuse."

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
func mountFuse(opt Options) (fd int, err error) {
	fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/fuse: %w", err)
	}
	if opt.Opened != nil {
		if err := opt.Opened(fd); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	data := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,default_permissions,allow_other,max_read=%d",
		fd, unix.S_IFDIR, maxRequest)
	err = unix.Mount(opt.FsName, opt.Mountpoint, mountinfo.FSType, unix.MS_NOSUID|unix.MS_NODEV, data)
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mount on %s: %w", opt.Mountpoint, err)
	}
	return fd, nil
}

// asked are the features that the mount asks for.
func asked(opt Options) uint64 {
	flags := uint64(wantedFlags)
	if !opt.NoResend {
		flags |= fuse.CAP_HAS_RESEND
	}
	if opt.Writeback {
		flags |= fuse.CAP_WRITEBACK_CACHE
	}
	return flags
}

// mountOptions are those of the session; what only a mount of go-fuse's own would look
// at is not among them.
func mountOptions(opt Options) *fuse.MountOptions {
	return &fuse.MountOptions{
		Name:                     fsType,
		MaxBackground:            maxBackground,
		CongestionThreshold:      maxBackground,
		MaxWrite:                 maxRequest,
		ExplicitDataCacheControl: true,
		EnableLocks:              false, // the kernel keeps flock, fcntl and OFD locks itself
		EnableSymlinkCaching:     true,  // a symlink below never changes its target
		ExtraCapabilities:        asked(opt),
		DisabledCapabilities:     unwantedFlags,
		Logger:                   slog.NewLogLogger(opt.Log.Handler(), slog.LevelWarn),
	}
}

// setReadAhead raises the read-ahead of the new mount, which FUSE itself can only
// lower.
func setReadAhead(device string, bytes int64) error {
	if bytes <= 0 {
		return nil
	}
	kib := strconv.FormatInt(max(bytes>>10, 1), 10)
	return os.WriteFile("/sys/class/bdi/"+device+"/read_ahead_kb", []byte(kib), 0)
}

// ownMount returns the line of this mount in the kernel's table.
func ownMount(point, source string) (mountinfo.Mount, error) {
	on, err := mountinfo.Stack(point)
	if err != nil {
		return mountinfo.Mount{}, err
	}
	for _, m := range slices.Backward(on) {
		if m.Type == mountinfo.FSType && m.Source == source {
			return m, nil
		}
	}
	return mountinfo.Mount{}, fmt.Errorf("mount %s on %s: %w", source, point, errNotMounted)
}

var errNotMounted = errors.New("not in /proc/self/mountinfo")

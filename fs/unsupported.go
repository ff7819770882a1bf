package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
)

// What is not done here is refused with a number that says so, and never with
// ENOSYS, on which the kernel stops asking for the life of the mount.

// Ioctl: there is no device behind a file, and no flags beyond its attributes. A
// shell's and a compiler's question whether it is a terminal gets the usual answer.
func (f *fileSystem) Ioctl(_ <-chan struct{}, _ *fuse.IoctlIn, _ []byte, _ *fuse.IoctlOut, _ []byte) fuse.Status {
	defer f.answered(metrics.OpIoctl, time.Now())
	return fuse.Status(unix.ENOTTY)
}

// GetLk is not sent: without EnableLocks the kernel keeps all locks itself.
func (f *fileSystem) GetLk(_ <-chan struct{}, _ *fuse.LkIn, _ *fuse.LkOut) fuse.Status {
	return f.unasked()
}

// SetLk is not sent either.
func (f *fileSystem) SetLk(_ <-chan struct{}, _ *fuse.LkIn) fuse.Status { return f.unasked() }

// SetLkw is not sent either.
func (f *fileSystem) SetLkw(_ <-chan struct{}, _ *fuse.LkIn) fuse.Status { return f.unasked() }

func (f *fileSystem) unasked() fuse.Status {
	defer f.answered(metrics.OpOther, time.Now())
	return fuse.ENOTSUP
}

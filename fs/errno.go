package fs

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// sentinels come before numbers: an error of the store may well carry the number
// of a socket or of somebody else's disk, and that is no answer to a broker.
var sentinels = []struct {
	err   error
	errno unix.Errno
}{
	{context.Canceled, unix.EINTR}, // a request's context ends only with its caller or with the mount
	{context.DeadlineExceeded, unix.EIO},

	{tier.ErrUnavailable, unix.EIO},
	{tier.ErrQuarantined, unix.EIO},
	{tier.ErrNotOwner, unix.EIO},
	{tier.ErrLocked, unix.EIO},

	{chunkcache.ErrBadObject, unix.EIO},
	{chunkcache.ErrRange, unix.EIO},
	{chunkcache.ErrClosed, unix.EIO},

	{objstore.ErrNotFound, unix.EIO}, // below a valid record: loss, not a missing file
	{objstore.ErrExists, unix.EIO},
	{objstore.ErrAuth, unix.EIO},
	{objstore.ErrThrottled, unix.EIO},
	{objstore.ErrTransient, unix.EIO},
	{objstore.ErrUnsupported, unix.EIO},
	{objstore.ErrShort, unix.EIO},
	{objstore.ErrRange, unix.EIO},
	{objstore.ErrInvalid, unix.EIO},
	{objstore.ErrChecksum, unix.EIO},
	{objstore.ErrConfig, unix.EIO}, // may carry what the disk of a directory store says
	{objstore.ErrTooLarge, unix.EIO},
}

// portable are errors of the standard library that stand for a number when none
// is in the chain.
var portable = []struct {
	err   error
	errno unix.Errno
}{
	{fs.ErrNotExist, unix.ENOENT},
	{fs.ErrExist, unix.EEXIST},
	{fs.ErrPermission, unix.EPERM},
	{fs.ErrInvalid, unix.EINVAL},
	{fs.ErrClosed, unix.EBADF},
}

// passed are the numbers that a system call on a file may give. Everything else
// (sockets, the kernel's private numbers above 511, which would leave the request
// without any answer) is EIO.
var passed = map[unix.Errno]bool{
	unix.EPERM: true, unix.ENOENT: true, unix.EINTR: true, unix.EIO: true, unix.ENXIO: true,
	unix.E2BIG: true, unix.EBADF: true, unix.EAGAIN: true, unix.ENOMEM: true, unix.EACCES: true,
	unix.EBUSY: true, unix.EEXIST: true, unix.EXDEV: true, unix.ENODEV: true, unix.ENOTDIR: true,
	unix.EISDIR: true, unix.EINVAL: true, unix.ENFILE: true, unix.EMFILE: true, unix.ENOTTY: true,
	unix.ETXTBSY: true, unix.EFBIG: true, unix.ENOSPC: true, unix.ESPIPE: true, unix.EROFS: true,
	unix.EMLINK: true, unix.ERANGE: true, unix.EDEADLK: true, unix.ENAMETOOLONG: true,
	unix.ENOTEMPTY: true, unix.ELOOP: true, unix.ENODATA: true, unix.EOVERFLOW: true,
	unix.EILSEQ: true, unix.EOPNOTSUPP: true, unix.EDQUOT: true, unix.ESTALE: true, unix.EUCLEAN: true,
}

// errnoOf is the one place where an error becomes a number; nil is 0.
func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.errno
		}
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		switch {
		case errno == unix.ENOSYS: // of a system call below; from us it would switch the operation off
			return unix.EOPNOTSUPP
		case passed[errno]:
			return errno
		}
		return unix.EIO
	}
	for _, p := range portable {
		if errors.Is(err, p.err) {
			return p.errno
		}
	}
	return unix.EIO
}

// status answers a request with err. An EIO is worth a line in the log, because
// the number is all that the caller is told.
func (f *fileSystem) status(op string, n *node, err error) fuse.Status {
	errno := errnoOf(err)
	if errno == unix.EIO {
		f.logFailure(op, n, err)
	}
	return fuse.Status(errno)
}

// changeStatus is status for a change of a file that the caller has open: that file
// is there, so what is missing can only be one of our own, and ENOENT is no answer.
func (f *fileSystem) changeStatus(op string, n *node, err error) fuse.Status {
	if errnoOf(err) == unix.ENOENT {
		f.logFailure(op, n, err)
		return fuse.EIO
	}
	return f.status(op, n, err)
}

// coldStatus is status for bytes that come from the store: whatever went wrong
// there, the broker is told EIO; EINTR is for a caller that is being killed.
func (f *fileSystem) coldStatus(op string, r coldRead, err error) fuse.Status {
	if errnoOf(err) == unix.EINTR {
		return fuse.EINTR
	}
	if !f.cold.failed(op, r, err, time.Now()) {
		f.logFailure(op, r.node, err)
	}
	return fuse.EIO
}

func (f *fileSystem) logFailure(op string, n *node, err error) {
	f.failures.Do(func() {
		f.log.Warn("request failed", "op", op, "inode", n.String(), "err", err)
	})
}

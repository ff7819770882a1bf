package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/tier"
)

// errnoRow is an error and the number that it becomes.
type errnoRow struct {
	name string
	err  error
	want unix.Errno
}

func errnoRows() []errnoRow {
	return []errnoRow{
		{"nothing", nil, 0},
		{"canceled", context.Canceled, unix.EINTR},
		{"deadline", context.DeadlineExceeded, unix.EIO},
		{"tier unavailable", tier.ErrUnavailable, unix.EIO},
		{"tier quarantined", tier.ErrQuarantined, unix.EIO},
		{"tier locked", tier.ErrLocked, unix.EIO},
		{"tier refused", &tier.Refused{Reason: "active"}, unix.EIO},
		{"tier without the volume", tier.ErrNotOwner, unix.EIO},
		{"object missing", objstore.ErrNotFound, unix.EIO},
		{"object exists", objstore.ErrExists, unix.EIO},
		{"auth", objstore.ErrAuth, unix.EIO},
		{"throttled", objstore.ErrThrottled, unix.EIO},
		{"transient", objstore.ErrTransient, unix.EIO},
		{"unsupported", objstore.ErrUnsupported, unix.EIO},
		{"short", objstore.ErrShort, unix.EIO},
		{"range", objstore.ErrRange, unix.EIO},
		{"invalid", objstore.ErrInvalid, unix.EIO},
		{"checksum", objstore.ErrChecksum, unix.EIO},
		{"settings", objstore.ErrConfig, unix.EIO},
		{"too large", objstore.ErrTooLarge, unix.EIO},
		{"outside the object", chunkcache.ErrRange, unix.EIO},
		{"bad object", chunkcache.ErrBadObject, unix.EIO},
		{"cache closed", chunkcache.ErrClosed, unix.EIO},
		{"invalid handle", handle.ErrInvalid, unix.EIO},
		{"missing", fs.ErrNotExist, unix.ENOENT},
		{"there", fs.ErrExist, unix.EEXIST},
		{"forbidden", fs.ErrPermission, unix.EPERM},
		{"closed file", fs.ErrClosed, unix.EBADF},
		{"argument", fs.ErrInvalid, unix.EINVAL},
		{"end of file", io.ErrUnexpectedEOF, unix.EIO},
		{"anything", errors.New("anything"), unix.EIO},
		{"path error", &os.PathError{Op: "open", Path: "x", Err: unix.ENOTDIR}, unix.ENOTDIR},
		{"full disk", unix.ENOSPC, unix.ENOSPC},
		{"stale handle", unix.ESTALE, unix.ESTALE},
		{"never ENOSYS", unix.ENOSYS, unix.EOPNOTSUPP},
		{"socket", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}, unix.EIO},
		{"timeout of a socket", unix.ETIMEDOUT, unix.EIO},
		{"the kernel's own", unix.Errno(512), unix.EIO},
		{"number 0", unix.Errno(0), unix.EIO},
		{"sentinel before number", fmt.Errorf("%w: %w", objstore.ErrNotFound, unix.ENOENT), unix.EIO},
		{"settings with a number", fmt.Errorf("%w: %w", objstore.ErrConfig, unix.EACCES), unix.EIO},
		{"bad object with a number", fmt.Errorf("%w: %w", chunkcache.ErrBadObject, unix.ENOENT), unix.EIO},
		{"not the owner, with a number", fmt.Errorf("%w: %w", tier.ErrNotOwner, fs.ErrNotExist), unix.EIO},
		{"number before sentinel", errors.Join(unix.EACCES, objstore.ErrTransient), unix.EIO},
	}
}

func TestErrno(t *testing.T) {
	for _, row := range errnoRows() {
		t.Run(row.name, func(t *testing.T) {
			if got := errnoOf(row.err); got != row.want {
				t.Errorf("bare: got %v, want %v", got, row.want)
			}
			if row.err == nil {
				return
			}
			if got := errnoOf(fmt.Errorf("context: %w", row.err)); got != row.want {
				t.Errorf("wrapped: got %v, want %v", got, row.want)
			}
		})
	}
}

// Whatever is missing below, it is not the file that a caller writes to.
func TestChangeStatus(t *testing.T) {
	f := unmounted(t)
	missing := &os.PathError{Op: "open", Path: "intent", Err: unix.ENOENT}
	for err, want := range map[error]unix.Errno{
		nil: 0, unix.ENOENT: unix.EIO, fs.ErrNotExist: unix.EIO, error(missing): unix.EIO,
		unix.ENOSPC: unix.ENOSPC, unix.EINVAL: unix.EINVAL, context.Canceled: unix.EINTR,
	} {
		if got := f.changeStatus("write", nil, err); unix.Errno(got) != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}

// Whatever the store says, a broker that reads is told EIO.
func TestColdStatus(t *testing.T) {
	f := unmounted(t)
	for _, err := range []error{unix.ENOENT, unix.ENOSPC, io.EOF, objstore.ErrAuth, tier.ErrUnavailable} {
		if got := f.coldStatus("read", coldRead{}, err); unix.Errno(got) != unix.EIO {
			t.Errorf("%v: got %v", err, got)
		}
	}
	if got := f.coldStatus("read", coldRead{}, context.Canceled); unix.Errno(got) != unix.EINTR {
		t.Errorf("caller killed: got %v", got)
	}
}

// Package handle names inodes of the source by their kernel file handles.
//
// An inode number alone is not enough: it is given out again once its file is
// gone. A file handle adds the generation, so it means one inode for as long
// as that inode exists and nothing afterwards, through renames, hard links,
// restarts of the daemon and reboots. Nothing here keeps a path or an open
// descriptor.
//
// A handle is only unique within one file system, and is opened through a
// descriptor of that file system. Taking one needs no privilege, opening one
// needs CAP_DAC_READ_SEARCH. The file system has to support both (ext4, XFS,
// btrfs and tmpfs do; overlayfs only with nfs_export=on).
//
// The binary form, which may be kept on disk:
//
//	offset  size  field
//	0       4     type, i32 little-endian, chosen by the file system
//	4       1     n, the number of handle bytes, 1 to 128
//	5       n     handle bytes, opaque
//
// All functions may be called in parallel.
package handle

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	headerSize = 5
	maxBytes   = 128 // the kernel's MAX_HANDLE_SZ

	maxReuse   = 100 // how often Open tries again while an inode number is being reused
	reusePause = time.Millisecond
)

// ErrInvalid is wrapped by Parse, AppendBinary and Open for bytes that cannot
// be a handle.
var ErrInvalid = errors.New("invalid file handle")

// Handle identifies one inode of a file system. It is comparable: two handles
// of the same file system are equal exactly when they mean the same inode. The
// zero value means no inode.
type Handle struct {
	Type  int32
	Bytes string
}

// At returns the handle of name in the directory dirfd; an empty name means
// dirfd itself, which may then be any kind of file. A symlink is not followed
// but named. The descriptor may be O_PATH. Errors are *fs.PathError around the
// errno: ENOENT, or EOPNOTSUPP when the file system has no handles.
func At(dirfd int, name string) (Handle, error) {
	flags := 0
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	for {
		// The wrapper grows its buffer and asks again on EOVERFLOW.
		fh, _, err := unix.NameToHandleAt(dirfd, name, flags)
		switch {
		case err == nil:
			return Handle{Type: fh.Type(), Bytes: string(fh.Bytes())}, nil
		case !errors.Is(err, unix.EINTR):
			return Handle{}, pathError("name_to_handle_at", dirfd, name, err)
		}
	}
}

// Open opens the inode with the open flags given, O_CLOEXEC added. mountFD is
// a descriptor of anything on the handle's file system, but not an O_PATH one,
// which kernels refuse with EBADF. The flag O_PATH opens every kind of inode; a
// symlink opens in no other way. The caller closes the descriptor.
// Errors are *fs.PathError around the errno, with the handle's String as path;
// ESTALE means that the inode is gone for good.
func (h Handle) Open(mountFD int, flags int) (int, error) {
	if err := h.validate(); err != nil {
		return -1, err
	}
	fh := unix.NewFileHandle(h.Type, []byte(h.Bytes))
	for try := 0; ; try++ {
		fd, err := unix.OpenByHandleAt(mountFD, fh, flags|unix.O_CLOEXEC|unix.O_LARGEFILE)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOMEM) && try < maxReuse:
			// The kernel's answer while the number of a lost inode is being given to a
			// new file. Nothing tells when that is done; it takes a moment.
			time.Sleep(reusePause)
		default:
			return -1, &fs.PathError{Op: "open_by_handle_at", Path: h.String(), Err: err}
		}
	}
}

// IsZero reports whether h is the zero value.
func (h Handle) IsZero() bool { return h == Handle{} }

// String returns the type in decimal and the bytes in hex, as "1:0c00…". It is
// for logs; it is stable and differs for different handles.
func (h Handle) String() string {
	return strconv.Itoa(int(h.Type)) + ":" + hex.EncodeToString([]byte(h.Bytes))
}

// AppendBinary appends the binary form to b. It fails with ErrInvalid for the
// zero value and for more bytes than the kernel allows.
func (h Handle) AppendBinary(b []byte) ([]byte, error) {
	if err := h.validate(); err != nil {
		return b, err
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Type))
	b = append(b, byte(len(h.Bytes)))
	return append(b, h.Bytes...), nil
}

// Parse reads the binary form of one handle, which must fill b. It fails with
// ErrInvalid.
func Parse(b []byte) (Handle, error) {
	if len(b) < headerSize {
		return Handle{}, fmt.Errorf("%w: %d bytes, need at least %d", ErrInvalid, len(b), headerSize)
	}
	if n := int(b[4]); len(b) != headerSize+n {
		return Handle{}, fmt.Errorf("%w: %d bytes for a handle of %d", ErrInvalid, len(b), n)
	}
	h := Handle{Type: int32(binary.LittleEndian.Uint32(b)), Bytes: string(b[headerSize:])}
	if err := h.validate(); err != nil {
		return Handle{}, err
	}
	return h, nil
}

func (h Handle) validate() error {
	if n := len(h.Bytes); n == 0 || n > maxBytes {
		return fmt.Errorf("%w: %d handle bytes, want 1 to %d", ErrInvalid, n, maxBytes)
	}
	return nil
}

func pathError(op string, dirfd int, name string, err error) error {
	if name == "" {
		name = "fd " + strconv.Itoa(dirfd)
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

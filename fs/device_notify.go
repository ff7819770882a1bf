package fs

import (
	"encoding/binary"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// What the kernel can be told. A notification is a reply to no request, with its
// number in the place of an error.
const (
	notifyInvalInode = 2
	notifyResend     = 7
	notifyIncEpoch   = 8
)

// notification begins a message with room for size bytes behind the header.
func notification(code uint32, size int) []byte {
	m := make([]byte, 0, outHeaderBytes+size)
	m = binary.NativeEndian.AppendUint32(m, uint32(outHeaderBytes+size))
	m = binary.NativeEndian.AppendUint32(m, code)
	return binary.NativeEndian.AppendUint64(m, 0)
}

// invalInode: off < 0 is for the attributes alone.
func invalInode(node uint64, off, length int64) []byte {
	m := notification(notifyInvalInode, 24)
	m = binary.NativeEndian.AppendUint64(m, node)
	m = binary.NativeEndian.AppendUint64(m, uint64(off))
	return binary.NativeEndian.AppendUint64(m, uint64(length))
}

func incEpoch() []byte { return notification(notifyIncEpoch, 0) }

func resend() []byte { return notification(notifyResend, 0) }

// tell writes a notification. None of ours waits for a lock that the kernel holds
// while somebody waits for an answer: a daemon that is killed in such a wait cannot die
// before its successor answers, which cannot start before it is dead.
func (d *device) tell(notification []byte) fuse.Status {
	if d.silent.Load() {
		return fuse.ENODEV
	}
	err := retry(func() error {
		_, err := unix.Write(d.fd, notification)
		return err
	})
	return fuse.Status(errnoOf(err))
}

// InodeNotify makes the kernel drop the attributes of an inode, and with off >= 0 its
// pages from there. ENOENT: the kernel does not know the inode.
func (d *device) InodeNotify(node uint64, off, length int64) fuse.Status {
	return d.tell(invalInode(node, off, length))
}

// EpochNotify makes the kernel look each name up again, when it needs it next. (To
// forget a single name it waits for the lock of the directory.) EINVAL: a kernel before
// Linux 6.16 cannot be told that.
func (d *device) EpochNotify() fuse.Status { return d.tell(incEpoch()) }

// Resend makes the kernel send everything again that it was not answered, with bit
// 63 of the request's number set.
func (d *device) Resend() fuse.Status { return d.tell(resend()) }

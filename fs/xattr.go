package fs

import (
	"bytes"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// aclPrefix is refused: the kernel checks modes only, and an ACL that is kept but
// not obeyed would be a promise broken.
const aclPrefix = "system.posix_acl_"

// GetXAttr reads an extended attribute of the inode below; with an empty dest, its
// size.
func (f *fileSystem) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	defer f.answered(metrics.OpGetXAttr, time.Now())
	if strings.HasPrefix(attr, aclPrefix) {
		return 0, fuse.ENOTSUP
	}
	n, l, code := f.forXAttr(in.NodeId)
	if !code.Ok() {
		return 0, code
	}
	defer l.release()
	size, err := unix.Getxattr(procPath(l.fd), attr, dest)
	if err != nil {
		return 0, f.status("getxattr", n, err)
	}
	return uint32(size), fuse.OK
}

// ListXAttr lists the names of the extended attributes; with an empty dest, the
// size of the list.
func (f *fileSystem) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	defer f.answered(metrics.OpListXAttr, time.Now())
	n, l, code := f.forXAttr(in.NodeId)
	if !code.Ok() {
		return 0, code
	}
	defer l.release()
	list, err := listXAttr(l.fd)
	if err != nil {
		return 0, f.status("listxattr", n, err)
	}
	if len(dest) > 0 && len(list) > len(dest) {
		return uint32(len(list)), fuse.ERANGE
	}
	copy(dest, list)
	return uint32(len(list)), fuse.OK
}

// listXAttr returns the visible names, each with a zero byte behind it.
func listXAttr(fd int) ([]byte, error) {
	size, err := unix.Listxattr(procPath(fd), nil)
	for err == nil && size > 0 {
		list := make([]byte, size)
		if size, err = unix.Listxattr(procPath(fd), list); err == nil {
			return visibleXAttrs(list[:size]), nil
		}
		if err == unix.ERANGE { // the list has grown
			size, err = unix.Listxattr(procPath(fd), nil)
		}
	}
	return nil, err
}

func visibleXAttrs(list []byte) []byte {
	var visible []byte
	for name := range bytes.SplitAfterSeq(list, []byte{0}) {
		if !bytes.HasPrefix(name, []byte(aclPrefix)) {
			visible = append(visible, name...)
		}
	}
	return visible
}

// SetXAttr sets an extended attribute of the inode below.
func (f *fileSystem) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	defer f.answered(metrics.OpSetXAttr, time.Now())
	return f.changeXAttr("setxattr", cancel, &in.InHeader, attr, func(path string) error {
		err := unix.Setxattr(path, attr, data, int(in.Flags))
		if alreadyThere(&in.InHeader, err) && hasXAttr(path, attr, data) {
			return nil
		}
		return err
	})
}

// RemoveXAttr removes an extended attribute of the inode below.
func (f *fileSystem) RemoveXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string) fuse.Status {
	defer f.answered(metrics.OpRemoveXAttr, time.Now())
	return f.changeXAttr("removexattr", cancel, in, attr, func(path string) error {
		err := unix.Removexattr(path, attr)
		if resent(in.Unique) && err == unix.ENODATA {
			return nil
		}
		return err
	})
}

func hasXAttr(path, attr string, data []byte) bool {
	got := make([]byte, len(data)+1)
	n, err := unix.Getxattr(path, attr, got)
	return err == nil && bytes.Equal(got[:n], data)
}

func (f *fileSystem) changeXAttr(op string, cancel <-chan struct{}, in *fuse.InHeader, attr string, do func(path string) error) fuse.Status {
	if strings.HasPrefix(attr, aclPrefix) {
		return fuse.ENOTSUP
	}
	n, l, code := f.forXAttr(in.NodeId)
	if !code.Ok() {
		return code
	}
	defer l.release()
	if n.file != nil {
		req := f.requestOf(cancel, in)
		defer req.stop()
		done, err := n.file.Mutate(req, tier.Mutation{Kind: tier.Attr})
		if err != nil {
			return f.status(op, n, err)
		}
		defer done()
	}
	err := do(procPath(l.fd))
	if err == nil {
		f.owesTimes(in.Pid, n)
	}
	return f.status(op, n, err)
}

func (f *fileSystem) forXAttr(id uint64) (*node, lent, fuse.Status) {
	n := f.inodes.get(id)
	if n == nil {
		return nil, lent{}, fuse.Status(unix.ESTALE)
	}
	l, err := f.descriptor(n, unix.O_PATH|unix.O_NOFOLLOW)
	return n, l, f.status("xattr", n, err)
}

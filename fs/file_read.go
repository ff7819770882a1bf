package fs

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// Read fills buf up to the end of the file: fewer bytes would mean the end of the
// file to the kernel. Where the bytes are is asked for each READ, and stays so until
// it is answered.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	defer f.answered(metrics.OpRead, time.Now())
	o, code := f.fileHandle(in.Fh)
	if !code.Ok() {
		return nil, code
	}
	src := o.file.Source()
	defer src.Release()
	if src.Local() {
		n, err := readFull(o.fd, buf, int64(in.Offset))
		if err != nil {
			return nil, f.status("read", o.node, err)
		}
		return inPlace(n), fuse.OK
	}
	req := f.requestOf(cancel, &in.InHeader)
	defer req.stop()
	n, code := f.readCold("read", req, o.node, src, buf, int64(in.Offset))
	if !code.Ok() {
		return nil, code
	}
	return inPlace(n), fuse.OK
}

// readCold is readRemote for a request: what fails is logged, and is an EIO.
func (f *fileSystem) readCold(op string, req *request, n *node, src tier.Source, p []byte, off int64) (int, fuse.Status) {
	read := coldRead{n, off, len(p)}
	done, err := readRemote(req, src, p, off)
	if err != nil {
		return 0, f.coldStatus(op, read, err)
	}
	f.cold.worked(read, time.Now())
	return done, fuse.OK
}

// readFull reads at off until p is full or the file ends.
func readFull(fd int, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(fd, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0:
			return done, nil
		default:
			done += n
		}
	}
	return done, nil
}

// readRemote is readFull for a segment whose bytes are in the store. A source that
// gives fewer bytes than it has is an error, never a short answer.
func readRemote(req *request, src tier.Source, p []byte, off int64) (int, error) {
	n, err := src.ReadAt(req, p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if want := max(min(int64(len(p)), src.Size()-off), 0); int64(n) != want {
		return 0, fmt.Errorf("%w: %d of %d bytes at %d", io.ErrUnexpectedEOF, n, want, off)
	}
	return n, nil
}

package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// Writev writes at the offset that the kernel gives, O_APPEND or not.
func (f *fileSystem) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	defer f.answered(metrics.OpWrite, time.Now())
	o, code := f.fileHandle(in.Fh)
	if !code.Ok() {
		return 0, code
	}
	req := f.requestOf(cancel, &in.InHeader)
	defer req.stop()
	var written uint32
	var err error
	if f.lateWrite(in) {
		err = f.late(o.node, func() (err error) {
			written, err = f.write(req, o, int64(in.Offset), data)
			return err
		})
	} else if written, err = f.write(req, o, int64(in.Offset), data); written > 0 && in.WriteFlags&fuse.WRITE_CACHE == 0 {
		err = nil // what is written counts; the next request meets the error, but for mapped pages the kernel sends none
	}
	if err != nil {
		return 0, f.changeStatus("write", o.node, err)
	}
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if err := dropSetID(o.fd); err != nil {
			f.failedChange(o.node)
			return 0, f.changeStatus("write", o.node, err)
		}
	}
	return written, fuse.OK
}

// Write is Writev with one buffer.
func (f *fileSystem) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return f.Writev(cancel, in, [][]byte{data})
}

// writeFull writes all of p, or returns how much it wrote before the error.
func writeFull(fd int, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(fd, p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// dropSetID clears the set-id bits of a file whose bytes a caller without
// CAP_FSETID has changed. The kernel leaves that to us (CAP_HANDLE_KILLPRIV_V2): the
// daemon below is root, for whom no file system does it.
func dropSetID(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	mode := st.Mode & 0o7777
	keep := mode &^ unix.S_ISUID
	if mode&unix.S_IXGRP != 0 { // without it, set-gid once meant mandatory locks
		keep &^= unix.S_ISGID
	}
	if keep == mode {
		return nil
	}
	return chmod(fd, keep)
}

// Fallocate passes on what the kernel lets through: allocation with or without
// growth, hole punching, zeroing. Collapsing and inserting ranges never get here.
func (f *fileSystem) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	defer f.answered(metrics.OpFallocate, time.Now())
	o, code := f.fileHandle(in.Fh)
	if !code.Ok() {
		return code
	}
	const known = unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_ZERO_RANGE
	if in.Mode&^known != 0 {
		return fuse.ENOTSUP
	}
	req := f.requestOf(cancel, &in.InHeader)
	defer req.stop()
	done, err := o.file.Mutate(req, tier.Mutation{Kind: tier.Allocate})
	if err != nil {
		return f.changeStatus("fallocate", o.node, err)
	}
	defer done()
	err = retry(func() error { return unix.Fallocate(o.fd, in.Mode, int64(in.Offset), int64(in.Length)) })
	return f.changeStatus("fallocate", o.node, err)
}

// retry repeats a system call that a signal to the daemon has interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

const (
	copyStep = 1 << 20  // bytes that are read before they are written
	copyMost = 64 << 20 // bytes per request; the caller asks again
)

// CopyFileRange copies through a buffer and in steps, so that no two files are held
// at once: each may have to wait for the store.
func (f *fileSystem) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	defer f.answered(metrics.OpCopyFileRange, time.Now())
	from, code := f.fileHandle(in.FhIn)
	if !code.Ok() {
		return 0, code
	}
	to, code := f.fileHandle(in.FhOut)
	if !code.Ok() {
		return 0, code
	}
	if in.Flags != 0 {
		return 0, fuse.EINVAL
	}
	req := f.requestOf(cancel, &in.InHeader)
	defer req.stop()
	left := min(in.Len, copyMost)
	buf := make([]byte, min(left, copyStep))
	copied := uint64(0)
	for left > 0 {
		n, code := f.copyStep(req, from, to, buf[:min(left, copyStep)], int64(in.OffIn+copied), int64(in.OffOut+copied))
		copied, left = copied+uint64(n), left-uint64(n)
		if !code.Ok() && copied == 0 {
			return 0, code
		}
		if !code.Ok() || n == 0 {
			break
		}
	}
	return uint32(copied), fuse.OK
}

func (f *fileSystem) copyStep(req *request, from, to *openFile, buf []byte, offIn, offOut int64) (int, fuse.Status) {
	n, code := f.copyRead(req, from, buf, offIn)
	if !code.Ok() || n == 0 {
		return 0, code
	}
	done, err := to.file.Mutate(req, tier.Mutation{Kind: tier.Write})
	if err != nil {
		return 0, f.changeStatus("copy_file_range", to.node, err)
	}
	defer done()
	n, err = writeFull(to.fd, buf[:n], offOut)
	return n, f.changeStatus("copy_file_range", to.node, err)
}

func (f *fileSystem) copyRead(req *request, from *openFile, buf []byte, off int64) (int, fuse.Status) {
	src := from.file.Source()
	defer src.Release()
	if src.Local() {
		n, err := readFull(from.fd, buf, off)
		return n, f.status("copy_file_range", from.node, err)
	}
	return f.readCold("copy_file_range", req, from.node, src, buf, off)
}

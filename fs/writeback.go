package fs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// Where the kernel writes back, it answers write(2) by itself and sends the bytes
// later, in WRITEs of up to 1 MiB. It owns the size and the times of regular files:
// those in our answers it ignores. What that asks of this package:
//
//   - A late WRITE is done in full or fails: the kernel does not look at how much of
//     it was written. Where the disk is full it lives on the volume's reserve.
//   - While the volume is full ([tier.Volume.Full]) a broker has to learn that with
//     what it does next. Its write(2) would be taken by the kernel; but before each one
//     the kernel wants to know the mode of the file, and asks by a GETATTR with the
//     file's handle if it does not. So it is made to forget the attributes of files
//     that are open for writing, and that GETATTR gets ENOSPC, which is what write(2)
//     returns. (A read that needs the size asks only when it was not told for an hour, and
//     stat(2) asks without a handle.) New names get ENOSPC, too, and an fsync or a close of a file of which
//     something lies in the room of the reserve, once, although it is synced.
//   - Where data and holes are only the kernel knows, see Lseek.

// full reports whether brokers are to be told that there is no room.
func (f *fileSystem) full() bool { return f.writeback && f.volume.Full() }

// noRoom is what a request for a new name gets; one that is resent may have been done
// while there was room.
func (f *fileSystem) noRoom(in *fuse.InHeader) bool { return f.full() && !resent(in.Unique) }

// filled is told when the volume becomes full, or is no more: in the second case the
// kernel asks once more for each file, and then does not.
func (f *fileSystem) filled(full bool) {
	for _, o := range f.handles.all() {
		switch {
		case o.file == nil || !o.writes():
		case !full:
			o.node.onReserve.Store(false) // it has room of its own again
		case f.notify != nil:
			f.notify.changed(o.node.handle)
		}
	}
}

// stillFull makes the kernel forget again what an answer has just told it.
func (f *fileSystem) stillFull(n *node) {
	if n.isRegular() && f.full() && f.notify != nil {
		f.notify.changed(n.handle)
	}
}

// late runs a WRITE that nobody waits for, with room from the reserve if it must be.
// What it wrote before it failed is written again.
func (f *fileSystem) late(n *node, write func() error) error {
	err := write()
	if !errors.Is(err, unix.ENOSPC) {
		f.volume.Wrote()
		return err
	}
	n.onReserve.Store(true)
	return f.volume.Late(f.base, write)
}

// reserved is the error of an fsync or a close by a writer that comes behind such a
// WRITE, as long as that matters.
func (f *fileSystem) reserved(o *openFile) error {
	if o.writes() && f.full() && o.node.onReserve.Swap(false) {
		return unix.ENOSPC
	}
	return nil
}

// lateWrite reports whether the kernel has gathered what a WRITE brings.
func (f *fileSystem) lateWrite(in *fuse.WriteIn) bool {
	return f.writeback && in.WriteFlags&fuse.WRITE_CACHE != 0
}

// write does one WRITE. It returns how much was written; for a late one that is all, or
// there is an error.
func (f *fileSystem) write(req *request, o *openFile, off int64, data [][]byte) (written uint32, err error) {
	done, err := o.file.Mutate(req, tier.Mutation{Kind: tier.Write})
	if err != nil {
		return 0, err
	}
	defer done()
	for _, p := range data {
		n, err := writeFull(o.fd, p, off)
		written, off = written+uint32(n), off+int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

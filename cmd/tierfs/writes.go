package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/fs"
	"github.com/tierfs/tierfs/holder"
)

// Modes of writing.
const (
	through   = "through"   // each write reaches the local file before it is answered
	writeback = "writeback" // the kernel gathers writes, and sends them later
)

// The kernel may have accepted so many bytes that have not reached the local file: enough to keep a disk busy, and what the reserve
// has to take when it is full. On a small disk it is a share of it.
const (
	mostDirty  = 128 << 20
	leastDirty = 4 << 20
	dirtyShare = 32
)

// dirtyCap is that for the disk of a directory.
func dirtyCap(dir int) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return 0, fmt.Errorf("size of the source's disk: %w", err)
	}
	return min(max(int64(st.Blocks)*st.Bsize/dirtyShare, leastDirty), mostDirty), nil
}

// writes is how a mount treats what the broker appends, and why not better.
type writes struct {
	mode string // through or writeback
	why  string // why not writeback; "" if that is so, or through was asked for
}

// mayGather says whether the kernel is to gather writes, as far as that is known before
// the volume is open, and why not. For a mount that is taken over it was decided long ago.
func (d *daemon) mayGather() (may bool, why string) {
	switch {
	case d.takeover:
		_, reply := d.table.Init()
		return fs.GathersWrites(reply), ""
	case d.cfg.Mount.Writes == through:
		return false, ""
	case d.keep.Kind() == holder.None:
		return false, "there is no holder, and what the kernel has gathered would be lost with this process"
	case unix.Access("/sys/class/bdi", unix.W_OK) != nil:
		return false, "/sys is read-only, so how much the kernel may gather cannot be limited"
	case !fs.Lockable():
		return false, "memory cannot be locked; raise LimitMEMLOCK"
	}
	return true, ""
}

// gathers is the same for the open volume, which was opened by what mayGather said and
// needs a reserve for what the kernel gathers.
func (d *daemon) gathers() (bool, string) {
	switch {
	case d.dirty == 0:
		return false, d.writes.why
	case !d.takeover && d.volume.LateReserve() < d.dirty:
		return false, fmt.Sprintf("the disk has too little room for a reserve of as much as the kernel may gather, %s", size(d.dirty))
	}
	return true, ""
}

// settled notes what came of it. It fails if that is not what the settings insist on.
func (d *daemon) settled(why string) error {
	d.writes = writes{mode: through, why: why}
	switch {
	case d.server == nil: // it was not even tried
	case d.server.Writeback():
		d.writes = writes{mode: writeback}
	case why != "" || d.cfg.Mount.Writes == through || d.takeover:
	case !d.server.Resend():
		d.writes.why = "this kernel does not send requests again that a dead daemon had; Linux 6.9 does"
	default:
		d.writes.why = "the kernel does not agree"
	}
	if d.cfg.Mount.Writes == writeback && d.writes.mode != writeback && !d.takeover {
		return fmt.Errorf("mount.writes = %q: %s; use \"auto\" or \"through\"", writeback, d.writes.why)
	}
	return nil
}

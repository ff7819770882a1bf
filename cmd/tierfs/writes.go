package main

import (
	"fmt"

	"github.com/tierfs/tierfs/holder"
)

// Modes of writing.
const (
	through   = "through"   // each write reaches the local file before it is answered
	writeback = "writeback" // the kernel gathers writes, and sends them later
)

// dirtyCap is how many bytes the kernel may have accepted that have not reached the local file: enough to keep the disk busy, and what the reserve
// has to take when the disk is full.
const dirtyCap = 128 << 20

// writes is how a mount treats what the broker appends, and why not better.
type writes struct {
	mode string // through or writeback
	why  string // why not writeback; "" if that is so, or through was asked for
}

// barred says why the kernel cannot be asked to gather writes; "": it can.
func (d *daemon) barred() string {
	switch {
	case d.keep.Kind() == holder.None:
		return "there is no holder, and what the kernel has gathered would be lost with this process"
	}
	return "this version does not gather writes"
}

// wanted says whether the kernel is to gather writes. For a mount that is taken over
// that was decided long ago.
func (d *daemon) wanted() (bool, string) {
	if d.cfg.Mount.Writes == through {
		return false, ""
	}
	why := d.barred()
	return why == "", why
}

// settled notes what came of it. It fails if that is not what the settings insist on.
func (d *daemon) settled(why string) error {
	d.writes = writes{mode: through, why: why}
	switch s := d.server; {
	case s.Writeback():
		d.writes = writes{mode: writeback}
	case why != "" || d.cfg.Mount.Writes == through:
	case !s.Locked():
		d.writes.why = "memory cannot be locked; raise LimitMEMLOCK"
	case !s.Resend():
		d.writes.why = "this kernel does not send requests again that a dead daemon had; Linux 6.9 does"
	default:
		d.writes.why = "the kernel does not agree"
	}
	if d.cfg.Mount.Writes == writeback && d.writes.mode != writeback && !d.takeover {
		return fmt.Errorf("mount.writes = %q: %s; use \"auto\" or \"through\"", writeback, d.writes.why)
	}
	return nil
}

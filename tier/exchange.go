package tier

import (
	"golang.org/x/sys/unix"
)

// exchange lets two names change places, in one system call. An uploaded file is
// local afterwards: its record could not change places with it in the same step.
func (v *Volume) exchange(src, dst *locked, flags uint32) error {
	switch {
	case flags&unix.RENAME_NOREPLACE != 0:
		return unix.EINVAL
	case dst == nil:
		return unix.ENOENT
	case src.file != nil && src.file == dst.file:
		return nil
	case src.remote() != dst.remote() || src.filling() || dst.filling():
		return unix.EINVAL
	}
	for _, l := range []*locked{src, dst} {
		if err := v.unmarked(l); err != nil {
			return own(err)
		}
	}
	paths := [2]string{}
	for i, l := range []*locked{src, dst} {
		dir, err := v.pathOf(l.dir.FD)
		if err != nil {
			return err
		}
		paths[i] = join(dir, l.name)
	}
	err := v.step("exchange:name", func() error {
		return renameat(src.dir.FD, src.below, dst.dir.FD, dst.below, unix.RENAME_EXCHANGE)
	})
	if err != nil {
		return err
	}
	const nowhere = "\x00"
	if dst.entry.dir() {
		v.moved(paths[1], nowhere)
	}
	if src.entry.dir() {
		v.moved(paths[0], paths[1])
	}
	if dst.entry.dir() {
		v.moved(nowhere, paths[0])
	}
	for _, l := range []*locked{src, dst} {
		if l.file != nil {
			v.unnamed(l.file, l.link())
		}
	}
	for _, move := range []struct{ from, to *locked }{{src, dst}, {dst, src}} {
		if f := move.from.file; f != nil {
			v.named(f, move.to.dir, move.to.name)
		}
	}
	return nil
}

// remote reports whether the name below is N.remote, and stays so: an eviction that
// has yet to empty the file is taken back.
func (l *locked) remote() bool {
	return l.file != nil && l.file.state.remoteNamed() && l.file.state != Leaving
}

func (l *locked) filling() bool { return l.file != nil && l.file.state == Filling }

// unmarked takes away the record beside a local file.
func (v *Volume) unmarked(l *locked) error {
	f := l.file
	if f == nil {
		return nil
	}
	if f.state == Leaving {
		if err := v.stay(f); err != nil {
			return err
		}
		l.below = l.name
	}
	if f.state == Uploaded && f.home == l.link() {
		return v.forgetObject("exchange:tombstone", f)
	}
	return nil
}

package powercut

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// view is a mounted volume as a broker uses it. Each operation stands in the ledger before it is begun. Names are the ledger's.
type view struct {
	point  string
	ledger *ledger
}

func (v *view) at(name string) string { return v.point + "/" + name }

// opened is an open file.
type opened struct {
	*os.File
	view *view
	name string
	file *file
	mode int // flags of open(2)
}

// create makes an empty file. mode may be O_APPEND, and O_DSYNC, with which each write is a promise.
func (v *view) create(name string, mode int) (*opened, error) {
	o := &opened{view: v, name: name, file: &file{states: [][]byte{nil}}, mode: mode}
	v.ledger.set(name, o.file)
	f, err := os.OpenFile(v.at(name), os.O_RDWR|os.O_CREATE|os.O_EXCL|mode, 0o644)
	o.File = f
	return o, err
}

// open opens a file that is there.
func (v *view) open(name string) (*opened, error) {
	f, err := os.OpenFile(v.at(name), os.O_RDWR, 0)
	return &opened{File: f, view: v, name: name, file: v.ledger.of(name)}, err
}

// put writes bytes at an offset, which may be the end.
func (o *opened) put(b []byte, at int) error {
	old := o.file.latest()
	changed := make([]byte, max(len(old), at+len(b)))
	copy(changed, old)
	copy(changed[at:], b)
	o.view.ledger.change(o.file, changed)
	write := func() (err error) {
		if o.mode&os.O_APPEND != 0 {
			_, err = o.Write(b)
		} else {
			_, err = o.WriteAt(b, int64(at))
		}
		return err
	}
	if o.mode&unix.O_DSYNC != 0 {
		return o.view.ledger.synced(o.name, o.file, write)
	}
	return write()
}

// mapped writes a file from its beginning through a mapping, as Kafka writes its indexes, and syncs the mapping.
func (o *opened) mapped(b []byte) error {
	zeros := make([]byte, len(b))
	o.view.ledger.change(o.file, zeros)
	if err := o.Truncate(int64(len(b))); err != nil {
		return err
	}
	pages, err := unix.Mmap(int(o.Fd()), 0, len(b), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	o.view.ledger.change(o.file, b)
	copy(pages, b)
	err = o.view.ledger.synced(o.name, o.file, func() error { return unix.Msync(pages, unix.MS_SYNC) })
	return errors.Join(err, unix.Munmap(pages))
}

func (o *opened) cut(size int) error {
	o.view.ledger.change(o.file, bytes.Clone(o.file.latest()[:size]))
	return o.Truncate(int64(size))
}

func (o *opened) sync() error {
	return o.view.ledger.synced(o.name, o.file, o.Sync)
}

// syncData is fdatasync, which promises the bytes and the size, too.
func (o *opened) syncData() error {
	return o.view.ledger.synced(o.name, o.file, func() error { return unix.Fdatasync(int(o.Fd())) })
}

// make makes a file with these bytes, synced.
func (v *view) make(name string, b []byte) error {
	o, err := v.create(name, 0)
	if err != nil {
		return err
	}
	return errors.Join(o.put(b, 0), o.sync(), o.Close())
}

// change opens a file for one change, and syncs it perhaps.
func (v *view) change(name string, sync bool, f func(*opened) error) error {
	o, err := v.open(name)
	if err != nil {
		return err
	}
	err = f(o)
	if err == nil && sync {
		err = o.sync()
	}
	return errors.Join(err, o.Close())
}

func (v *view) remove(name string) error {
	v.ledger.set(name, nil)
	return os.Remove(v.at(name))
}

func (v *view) rename(from, to string) error {
	v.ledger.move(from, to)
	return os.Rename(v.at(from), v.at(to))
}

// mkdir makes a directory; its name ends in a slash, here as everywhere.
func (v *view) mkdir(name string) error {
	v.ledger.set(name, &file{states: [][]byte{nil}})
	return os.Mkdir(v.at(name), 0o755)
}

func (v *view) rmdir(name string) error {
	v.ledger.set(name, nil)
	return unix.Rmdir(v.at(name))
}

// syncDir syncs a directory, named without a slash.
func (v *view) syncDir(dir string) error {
	return v.ledger.dirSynced(dir, func() error {
		d, err := os.Open(v.at(dir))
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	})
}

// same fails unless a file reads as it was written.
func (v *view) same(name string) error {
	have, err := os.ReadFile(v.at(name))
	if want := v.ledger.of(name).latest(); err == nil && !bytes.Equal(have, want) {
		err = fmt.Errorf("%s has %d bytes, and other ones than the %d that were written", name, len(have), len(want))
	}
	return err
}

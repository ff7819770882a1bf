package crash

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The operations of a broker on the mount. Paths are relative to it; each operation stands in the ledger before it is begun.

func (v *volume) at(path string) string { return v.daemon.Mountpoint() + "/" + path }

func (v *volume) mkdir(dir string) error {
	return v.ledger.do("mkdir "+dir, func() error { return os.Mkdir(v.at(dir), 0o755) }, outcome{dir + "/": exactly(nil)})
}

// create makes an empty file and leaves it open.
func (v *volume) create(path string) (f *os.File, err error) {
	err = v.ledger.do("create "+path, func() (err error) {
		f, err = os.OpenFile(v.at(path), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
		return err
	}, outcome{path: exactly(nil)})
	return f, err
}

// add appends to an open file: what the kill meets may have arrived in part.
func (v *volume) add(f *os.File, path string, b []byte) error {
	old, _ := v.ledger.of(path)
	all := append(slices.Clip(old), b...)
	return v.ledger.do("append to "+path, func() error {
		_, err := f.Write(b)
		return err
	}, outcome{path: {least: old, most: all}})
}

// put makes a file with these bytes, flushed.
func (v *volume) put(path string, b []byte) error {
	f, err := v.create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := v.add(f, path, b); err != nil {
		return err
	}
	return f.Sync()
}

// epochAt is the partition leader epoch in a batch, which its checksum does not cover.
const epochAt = 12

// touch overwrites the leader epoch of a segment's first batch.
func (v *volume) touch(path string, epoch byte) error {
	old, _ := v.ledger.of(path)
	changed := bytes.Clone(old)
	copy(changed[epochAt:], []byte{0, 0, 1, epoch})
	return v.ledger.do("write into "+path, func() error {
		f, err := os.OpenFile(v.at(path), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(changed[epochAt:epochAt+4], epochAt)
		return errors.Join(err, f.Close()) // the kernel may write that late
	}, outcome{path: exactly(changed)})
}

func (v *volume) truncate(path string, size int) error {
	old, _ := v.ledger.of(path)
	return v.ledger.do("truncate "+path, func() error { return os.Truncate(v.at(path), int64(size)) }, outcome{path: exactly(old[:size])})
}

func (v *volume) unlink(path string) error {
	return v.ledger.do("unlink "+path, func() error { return os.Remove(v.at(path)) }, outcome{path: {gone: true}})
}

// loseBelow removes a file from the source itself, as nobody should.
func (v *volume) loseBelow(path string) error {
	return v.ledger.do("remove below "+path, func() error { return os.Remove(v.below(path)) }, outcome{path: {gone: true}})
}

func (v *volume) rmdir(dir string) error {
	return v.ledger.do("rmdir "+dir, func() error { return unix.Rmdir(v.at(dir)) }, outcome{dir + "/": {gone: true}})
}

func (v *volume) link(path, other string) error {
	b, _ := v.ledger.of(path)
	return v.ledger.do("link "+other, func() error { return os.Link(v.at(path), v.at(other)) }, outcome{other: exactly(b)})
}

// rename moves a file, over another one if there is one. A remote file over a local one takes two steps below, and the old one
// goes first.
func (v *volume) rename(from, to string) error {
	b, _ := v.ledger.of(from)
	outcomes := []outcome{{from: {gone: true}, to: exactly(b)}}
	if _, over := v.ledger.of(to); over && v.isRemote(from) && !v.isRemote(to) {
		outcomes = append([]outcome{{from: exactly(b), to: {gone: true}}}, outcomes...)
	}
	return v.ledger.do("rename "+from+" to "+to, func() error { return os.Rename(v.at(from), v.at(to)) }, outcomes...)
}

func (v *volume) exchange(one, other string) error {
	a, _ := v.ledger.of(one)
	b, _ := v.ledger.of(other)
	return v.ledger.do("exchange "+one+" and "+other, func() error {
		return unix.Renameat2(unix.AT_FDCWD, v.at(one), unix.AT_FDCWD, v.at(other), unix.RENAME_EXCHANGE)
	}, outcome{one: exactly(b), other: exactly(a)})
}

func (v *volume) renameDir(from, to string) error {
	o := outcome{}
	for _, path := range v.ledger.below(from + "/") {
		b, _ := v.ledger.of(path)
		o[path] = want{gone: true}
		o[to+strings.TrimPrefix(path, from)] = exactly(b)
	}
	return v.ledger.do("rename "+from+" to "+to, func() error { return os.Rename(v.at(from), v.at(to)) }, o)
}

// dirty makes the kernel write a file back behind everybody's back, as it does for a mapping: no lock of the inode is held for
// as long as that takes. The bytes stay the same. done takes the mapping down, which waits for the write.
func (v *volume) dirty(path string) (done func(), err error) {
	f, err := os.OpenFile(v.at(path), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	done = func() {
		_ = unix.Munmap(page)
		_ = f.Close()
	}
	word := (*uint32)(unsafe.Pointer(&page[0]))
	atomic.StoreUint32(word, atomic.LoadUint32(word))
	if err := unix.SyncFileRange(int(f.Fd()), 0, int64(len(page)), unix.SYNC_FILE_RANGE_WRITE); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

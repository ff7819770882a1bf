package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// change does one thing that a broker does to a segment, and looks what came of it.
func (c *race) change(_ context.Context, r *rand.Rand) error {
	time.Sleep(time.Duration(r.IntN(80)) * time.Millisecond) // brokers leave sealed segments alone, mostly
	f := c.all[r.IntN(len(c.all))]
	f.Lock()
	defer f.Unlock()
	f.turn++
	changes := []func(*raced, *rand.Rand) error{
		c.overwrite, c.appendTo, c.truncate, c.truncatingOpen, c.punch, c.zero,
		c.renameAndBack, c.replace, c.linkAndWrite, c.linkAndUnlink, c.recreate, c.unlink,
	}
	do := changes[r.IntN(len(changes))]
	if f.racedInode == nil || len(f.data) > 1<<20 {
		do = c.recreate
	}
	if err := do(f, r); err != nil {
		return fmt.Errorf("%s, turn %d: %w", f.path, f.turn, err)
	}
	c.count("change", 1)
	if err := c.agrees(f); err != nil {
		return fmt.Errorf("behind a change: %w", err)
	}
	return nil
}

// on does something to a file that is opened for it.
func on(path string, flags int, do func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(do(fd), unix.Close(fd))
}

func writeAll(fd int, p []byte, off int64) error {
	n, err := unix.Pwrite(fd, p, off)
	if err == nil && n != len(p) {
		err = fmt.Errorf("wrote %d of %d", n, len(p))
	}
	return err
}

func (c *race) overwrite(f *raced, r *rand.Rand) error {
	return c.overwriteAt(f, f.path, r)
}

func (c *race) overwriteAt(f *raced, path string, r *rand.Rand) error {
	off := r.IntN(len(f.data) + 1)
	p := pattern(r.IntN(5000)+1, byte(f.turn))
	err := on(path, 0, func(fd int) error { return writeAll(fd, p, int64(off)) })
	f.data = append(bytes.Clone(f.data[:off]), append(p, f.data[min(off+len(p), len(f.data)):]...)...)
	return err
}

func (c *race) appendTo(f *raced, r *rand.Rand) error {
	p := pattern(r.IntN(5000)+1, byte(f.turn))
	err := on(f.path, unix.O_APPEND, func(fd int) error { return writeAll(fd, p, 0) })
	f.data = slices.Concat(f.data, p)
	return err
}

func (c *race) truncate(f *raced, r *rand.Rand) error {
	size := r.IntN(len(f.data) + 1)
	f.data = f.data[:size:size]
	return unix.Truncate(f.path, int64(size))
}

func (c *race) truncatingOpen(f *raced, r *rand.Rand) error {
	f.data = pattern(r.IntN(50000)+1, byte(f.turn))
	return on(f.path, unix.O_TRUNC, func(fd int) error { return writeAll(fd, f.data, 0) })
}

func (c *race) punch(f *raced, r *rand.Rand) error {
	return c.allocate(f, r, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE)
}

func (c *race) zero(f *raced, r *rand.Rand) error {
	return c.allocate(f, r, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE)
}

func (c *race) allocate(f *raced, r *rand.Rand, mode uint32) error {
	if len(f.data) == 0 {
		return nil
	}
	off := r.IntN(len(f.data))
	n := r.IntN(len(f.data)-off) + 1
	err := on(f.path, 0, func(fd int) error { return unix.Fallocate(fd, mode, int64(off), int64(n)) })
	f.data = bytes.Clone(f.data)
	clear(f.data[off : off+n])
	return err
}

func (c *race) renameAndBack(f *raced, _ *rand.Rand) error {
	return errors.Join(unix.Rename(f.path, f.path+".deleted"), unix.Rename(f.path+".deleted", f.path))
}

func (c *race) replace(f *raced, r *rand.Rand) error {
	f.racedInode = &racedInode{pattern(r.IntN(50000)+1, byte(f.turn))}
	return errors.Join(os.WriteFile(f.path+".swap", f.data, 0o644), unix.Rename(f.path+".swap", f.path))
}

// linkAndWrite writes through another name, which stays for that long only.
func (c *race) linkAndWrite(f *raced, r *rand.Rand) error {
	if err := unix.Link(f.path, f.path+".linked"); err != nil {
		return err
	}
	return errors.Join(c.overwriteAt(f, f.path+".linked", r), unix.Unlink(f.path+".linked"))
}

// linkAndUnlink takes the first of two names away and gives it to the second.
func (c *race) linkAndUnlink(f *raced, _ *rand.Rand) error {
	return errors.Join(unix.Link(f.path, f.path+".linked"), unix.Unlink(f.path), unix.Rename(f.path+".linked", f.path))
}

func (c *race) recreate(f *raced, r *rand.Rand) error {
	if f.racedInode != nil {
		if err := unix.Unlink(f.path); err != nil {
			return err
		}
	}
	f.racedInode = &racedInode{pattern(r.IntN(50000)+1, byte(f.turn))}
	return on(f.path, unix.O_CREAT|unix.O_EXCL, func(fd int) error { return writeAll(fd, f.data, 0) })
}

func (c *race) unlink(f *raced, _ *rand.Rand) error {
	f.racedInode = nil
	return unix.Unlink(f.path)
}

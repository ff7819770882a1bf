package fs

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// modelMap is a mapping that outlives the descriptor that it was made with.
type modelMap struct {
	mem   []byte
	inode *modelInode
}

func (m *model) mapped(h *modelHandle) error {
	size := len(h.inode.data)
	if size == 0 {
		return nil
	}
	mem, err := unix.Mmap(h.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	off, n := m.span(h, false)
	m.log("map %d %d+%d of %d", h.fd, off, n, size)
	if err = same(mem[off:off+n], h.inode.data[off:off+n], off); err == nil && m.rnd.IntN(2) == 0 {
		for i := off; i < off+n; i++ {
			mem[i] = byte(m.rnd.Uint32())
		}
		copy(h.inode.data[off:], mem[off:off+n])
	}
	if m.rnd.IntN(3) == 0 {
		err = errors.Join(err, unix.Msync(mem, unix.MS_SYNC))
	}
	return errors.Join(err, unix.Munmap(mem))
}

// mapForLong makes a mapping that stays while the file is closed, unlinked, evicted.
func (m *model) mapForLong(h *modelHandle) error {
	if len(h.inode.data) == 0 || len(m.maps) >= 5 {
		return m.unmap()
	}
	m.log("keep a mapping of %d", h.fd)
	mem, err := unix.Mmap(h.fd, 0, len(h.inode.data), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		m.maps = append(m.maps, &modelMap{mem, h.inode})
	}
	return err
}

func (m *model) unmap() error {
	if len(m.maps) == 0 {
		return nil
	}
	i := m.rnd.IntN(len(m.maps))
	mem := m.maps[i].mem
	m.log("unmap")
	m.maps = slices.Delete(m.maps, i, i+1)
	return unix.Munmap(mem)
}

// useMap reads or writes through an old mapping, as far as the file reaches now.
func (m *model) useMap(*modelHandle) error {
	if len(m.maps) == 0 {
		return nil
	}
	k := m.maps[m.rnd.IntN(len(m.maps))]
	size := min(len(k.mem), len(k.inode.data))
	off := m.rnd.IntN(size + 1)
	n := min(m.rnd.IntN(20<<10), size-off)
	m.log("use a mapping %d+%d of %d", off, n, len(k.inode.data))
	if m.rnd.IntN(2) == 0 {
		return same(k.mem[off:off+n], k.inode.data[off:off+n], int64(off))
	}
	for i := off; i < off+n; i++ {
		k.mem[i] = byte(m.rnd.Uint32())
	}
	copy(k.inode.data[off:], k.mem[off:off+n])
	return nil
}

// letGo closes and unmaps everything.
func (m *model) letGo() (err error) {
	for len(m.maps) > 0 {
		err = errors.Join(err, m.unmap())
	}
	for len(m.handles) > 0 {
		err = errors.Join(err, m.closeIt(m.handles[0]))
	}
	return err
}

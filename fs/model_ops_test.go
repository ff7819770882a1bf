package fs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

func (m *model) open() error {
	if len(m.handles) >= 12 {
		return m.closeIt(m.handles[m.rnd.IntN(len(m.handles))])
	}
	name := m.anyName()
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC
	h := &modelHandle{}
	if m.rnd.IntN(4) == 0 {
		flags, h.append = flags|unix.O_APPEND, true
	}
	if m.rnd.IntN(8) == 0 {
		flags |= unix.O_TRUNC
	}
	m.log("open %s %#x", name, flags)
	fd, err := unix.Open(m.path(name), flags, 0o644)
	if err != nil {
		return err
	}
	h.fd, h.inode = fd, m.names[name]
	if h.inode == nil {
		h.inode = &modelInode{links: 1}
		m.names[name] = h.inode
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		h.inode.ino = st.Ino
	}
	if flags&unix.O_TRUNC != 0 {
		h.inode.data = nil
	}
	m.handles = append(m.handles, h)
	return nil
}

func (m *model) closeIt(h *modelHandle) error {
	m.log("close %d", h.fd)
	m.handles = slices.DeleteFunc(m.handles, func(o *modelHandle) bool { return o == h })
	return unix.Close(h.fd)
}

// span is a range that lies in a file, or begins in it if grow.
func (m *model) span(h *modelHandle, grow bool) (off, size int64) {
	have := int64(len(h.inode.data))
	off = m.rnd.Int64N(have + 1)
	if m.rnd.IntN(3) == 0 {
		off &^= 4095
	}
	size = m.rnd.Int64N(40 << 10)
	if grow && m.rnd.IntN(5) == 0 {
		off += m.rnd.Int64N(20 << 10)
	}
	if !grow {
		size = min(size, have-off)
	}
	return off, max(min(size, modelMaxSize-off), 0)
}

func (i *modelInode) resize(size int64) {
	if size <= int64(len(i.data)) {
		i.data = i.data[:size:size]
		return
	}
	i.data = append(i.data, make([]byte, size-int64(len(i.data)))...)
}

func (m *model) write(h *modelHandle) error {
	off, size := m.span(h, true)
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(m.rnd.Uint32())
	}
	if h.append {
		off = int64(len(h.inode.data))
		if off+size > modelMaxSize {
			return nil
		}
	}
	m.log("write %d %d+%d of %d", h.fd, off, size, len(h.inode.data))
	n, err := unix.Pwrite(h.fd, p, off)
	if err != nil || int64(n) != size {
		return fmt.Errorf("wrote %d: %w", n, err)
	}
	if size > 0 {
		h.inode.resize(max(int64(len(h.inode.data)), off+size))
		copy(h.inode.data[off:], p)
	}
	return nil
}

func (m *model) read(h *modelHandle) error {
	off, size := m.span(h, true)
	m.log("read %d %d+%d of %d", h.fd, off, size, len(h.inode.data))
	p := make([]byte, size)
	n, err := unix.Pread(h.fd, p, off)
	if err != nil {
		return err
	}
	want := h.inode.data[min(off, int64(len(h.inode.data))):]
	return same(p[:n], want[:min(int64(len(want)), size)], off)
}

func same(got, want []byte, off int64) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d is %#x, want %#x (%d and %d bytes)", off+int64(i), got[i], want[i], len(got), len(want))
		}
	}
	return fmt.Errorf("got %d bytes at %d, want %d", len(got), off, len(want))
}

func (m *model) newSize(i *modelInode) int64 {
	switch m.rnd.IntN(4) {
	case 0:
		return 0
	case 1:
		return m.rnd.Int64N(modelMaxSize)
	}
	return m.rnd.Int64N(int64(len(i.data)) + 1)
}

func (m *model) ftruncate(h *modelHandle) error {
	size := m.newSize(h.inode)
	m.log("ftruncate %d to %d", h.fd, size)
	h.inode.resize(size)
	return unix.Ftruncate(h.fd, size)
}

func (m *model) truncate(name string) error {
	size := m.newSize(m.names[name])
	m.log("truncate %s to %d", name, size)
	m.names[name].resize(size)
	return unix.Truncate(m.path(name), size)
}

func (m *model) punch(h *modelHandle) error {
	off, n := m.span(h, false)
	if n == 0 {
		return nil
	}
	m.log("punch %d %d+%d", h.fd, off, n)
	clear(h.inode.data[off : off+n])
	return unix.Fallocate(h.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

func (m *model) zero(h *modelHandle) error {
	off, n := m.span(h, true)
	if n == 0 {
		return nil
	}
	m.log("zero %d %d+%d", h.fd, off, n)
	h.inode.resize(max(int64(len(h.inode.data)), off+n))
	clear(h.inode.data[off : off+n])
	return unix.Fallocate(h.fd, unix.FALLOC_FL_ZERO_RANGE, off, n)
}

func (m *model) allocate(h *modelHandle) error {
	off, n := m.span(h, true)
	if n == 0 {
		return nil
	}
	keep := m.rnd.IntN(2) == 0
	m.log("allocate %d %d+%d keep %v", h.fd, off, n, keep)
	if keep {
		return unix.Fallocate(h.fd, unix.FALLOC_FL_KEEP_SIZE, off, n)
	}
	h.inode.resize(max(int64(len(h.inode.data)), off+n))
	return unix.Fallocate(h.fd, 0, off, n)
}

func (m *model) copyRange(h *modelHandle) error {
	to, _ := m.someHandle()
	off, n := m.span(h, false)
	into, _ := m.span(to, false)
	if n = min(n, modelMaxSize-into); n <= 0 || to.append || to.inode == h.inode {
		return nil
	}
	m.log("copy %d %d+%d to %d at %d", h.fd, off, n, to.fd, into)
	data := bytes.Clone(h.inode.data[off : off+n])
	to.inode.resize(max(int64(len(to.inode.data)), into+n))
	copy(to.inode.data[into:], data)
	for n > 0 {
		done, err := unix.CopyFileRange(h.fd, &off, to.fd, &into, int(n), 0)
		if err != nil || done == 0 {
			return fmt.Errorf("copied %d: %w", done, err)
		}
		n -= int64(done)
	}
	return nil
}

func (m *model) sync(h *modelHandle) error {
	m.log("fsync %d", h.fd)
	return unix.Fsync(h.fd)
}

func (m *model) drop(h *modelHandle) error {
	m.log("drop the pages of %d", h.fd)
	return errors.Join(unix.Fsync(h.fd), unix.Fadvise(h.fd, 0, 0, unix.FADV_DONTNEED))
}

// seekHole: wherever a hole is found, there are zeros up to the next data.
func (m *model) seekHole(h *modelHandle) error {
	off, _ := m.span(h, false)
	if off >= int64(len(h.inode.data)) {
		return nil
	}
	m.log("seek %d from %d of %d", h.fd, off, len(h.inode.data))
	data, err := unix.Seek(h.fd, off, unix.SEEK_DATA)
	if err == unix.ENXIO {
		data, err = int64(len(h.inode.data)), nil
	}
	if err != nil {
		return err
	}
	if hole := h.inode.data[off:min(data, int64(len(h.inode.data)))]; !bytes.Equal(hole, make([]byte, len(hole))) {
		return fmt.Errorf("a hole at %d up to %d is none", off, data)
	}
	return nil
}

// rename moves a name: over another one, not over one, or both at once. What has an
// object cannot be exchanged.
func (m *model) rename(name string) error {
	to := m.anyName()
	flags := uint([]int{0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}[m.rnd.IntN(4)])
	m.log("rename %s to %s, flags %d", name, to, flags)
	err := unix.Renameat2(unix.AT_FDCWD, m.path(name), unix.AT_FDCWD, m.path(to), flags)
	old := m.names[to]
	switch {
	case flags == unix.RENAME_NOREPLACE && old != nil:
		return wantError("rename over a name", err, unix.EEXIST)
	case flags == unix.RENAME_EXCHANGE && old == nil:
		return wantError("exchange with nothing", err, unix.ENOENT)
	case flags == unix.RENAME_EXCHANGE && m.tiered && err == unix.EINVAL:
		return nil
	case err != nil:
		return err
	case old == m.names[name]: // one inode, or one name: nothing happens
		return nil
	case flags == unix.RENAME_EXCHANGE:
		m.names[to], m.names[name] = m.names[name], old
		return nil
	case old != nil:
		old.links--
	}
	m.names[to] = m.names[name]
	delete(m.names, name)
	return nil
}

func wantError(what string, got, want error) error {
	if got != want {
		return fmt.Errorf("%s: got %v, want %w", what, got, want)
	}
	return nil
}

func (m *model) link(name string) error {
	to := m.anyName()
	m.log("link %s to %s", name, to)
	err := unix.Link(m.path(name), m.path(to))
	if m.names[to] != nil {
		return wantError("link over a name", err, unix.EEXIST)
	}
	if err == nil {
		m.names[to] = m.names[name]
		m.names[to].links++
	}
	return err
}

func (m *model) unlink(name string) error {
	m.log("unlink %s", name)
	m.names[name].links--
	delete(m.names, name)
	return unix.Unlink(m.path(name))
}

func (m *model) chmod(name string) error {
	m.log("chmod %s", name)
	return unix.Chmod(m.path(name), 0o600+uint32(m.rnd.IntN(0o100)))
}

func (m *model) stat(name string) error {
	m.log("stat %s", name)
	var st unix.Stat_t
	if err := unix.Stat(m.path(name), &st); err != nil {
		return err
	}
	i := m.names[name]
	if st.Size != int64(len(i.data)) || int(st.Nlink) != i.links || st.Ino != i.ino {
		return fmt.Errorf("size %d, links %d, inode %d; want %d, %d, %d", st.Size, st.Nlink, st.Ino, len(i.data), i.links, i.ino)
	}
	return nil
}

func (m *model) readWhole(name string) error {
	m.log("read %s", name)
	got, err := os.ReadFile(m.path(name))
	if err != nil {
		return err
	}
	return same(got, m.names[name].data, 0)
}

func (m *model) compareAll() error {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if m.names[e.Name()] != nil {
			err = errors.Join(err, m.stat(e.Name()), m.readWhole(e.Name()))
		}
	}
	if want := slices.Sorted(maps.Keys(m.names)); !slices.Equal(names, want) {
		err = errors.Join(err, fmt.Errorf("names %q, want %q", names, want))
	}
	return err
}

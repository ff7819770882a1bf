package upload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/tier"
)

// What a broker's system calls become, each as package fs does it.

// in opens a directory for one use.
func (m *life) in(path string, use func(d tier.Dir) error) error {
	fd := m.root
	if path != "" {
		var err error
		fd, err = unix.Openat(m.root, path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	h, err := handle.At(fd, "")
	if err != nil {
		return err
	}
	return use(tier.Dir{FD: fd, Handle: h})
}

func (m *life) mkdir(path string) {
	m.must("mkdir", unix.Mkdirat(m.root, path, 0o755))
	m.tree[path] = &lifeDir{files: map[string]*lifeFile{}}
}

// create makes a file with bytes and leaves it open if it is a segment.
func (m *life) create(dir, name string, f *lifeFile) {
	empty, data := *f, f.data
	empty.data = nil
	*f = empty
	m.do("create", func() error {
		return m.in(dir, func(d tier.Dir) error {
			fd, e, err := m.v.Create(d, name, unix.O_RDWR, 0o644)
			if err != nil {
				return err
			}
			e.File.Opened(true)
			m.handles = append(m.handles, &lifeHandle{fd, e.File, f})
			return nil
		})
	}, func() {
		m.tree[dir].add(name, f)
		if strings.Contains(name, ".cleaned") || strings.HasSuffix(name, ".swap") {
			m.tree[dir].never = true
		}
	})
	h := m.handles[len(m.handles)-1]
	if len(data) > 0 {
		m.write(h, 0, data)
	}
	if !strings.HasSuffix(name, ".log") {
		m.close(h)
	}
}

// handle opens a file, if it is not open.
func (m *life) handle(dir, name string) *lifeHandle {
	f := m.tree[dir].files[name]
	for _, h := range m.handles {
		if h.inode == f {
			return h
		}
	}
	return m.open(dir, name)
}

func (m *life) open(dir, name string) *lifeHandle {
	h := &lifeHandle{inode: m.tree[dir].files[name]}
	m.must("open", m.in(dir, func(d tier.Dir) error {
		e, err := m.v.Lookup(d, name)
		if err != nil {
			return err
		}
		if h.fd, err = e.Handle.Open(m.root, unix.O_RDWR); err != nil {
			e.File.Release()
			return err
		}
		h.file = e.File
		h.file.Opened(true)
		return nil
	}))
	m.handles = append(m.handles, h)
	return h
}

func (m *life) close(h *lifeHandle) {
	m.handles = slices.DeleteFunc(m.handles, func(o *lifeHandle) bool { return o == h })
	m.must("close", unix.Close(h.fd))
	h.file.Synced()
	h.file.Closed(true)
	h.file.Release()
}

// mutate is a change of a file's bytes. It may fail while the store does.
func (m *life) mutate(what string, h *lifeHandle, kind tier.Mutation, change func() error, after func()) error {
	if h.file.State() == tier.Remote {
		m.seen[what+" into a remote segment"]++
	}
	err := m.try(what, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), lifeStep)
		defer cancel()
		done, err := h.file.Mutate(ctx, kind)
		if err != nil {
			return err
		}
		defer done()
		return change()
	}, after)
	if err != nil && (m.weather == fair || !errors.Is(err, context.DeadlineExceeded)) {
		m.must(what, err)
	}
	return err
}

func (m *life) write(h *lifeHandle, off int, b []byte) error {
	return m.mutate("write", h, tier.Mutation{Kind: tier.Write}, func() error {
		_, err := unix.Pwrite(h.fd, b, int64(off))
		return err
	}, func() {
		data := append(bytes.Clone(h.inode.data[:min(off, len(h.inode.data))]), b...)
		if len(data) < len(h.inode.data) {
			data = append(data, h.inode.data[len(data):]...)
		}
		h.inode.put(data)
	})
}

func (m *life) shorten(h *lifeHandle, size int) error {
	return m.mutate("truncate", h, tier.Mutation{Kind: tier.Truncate, Size: int64(size)}, func() error {
		return unix.Ftruncate(h.fd, int64(size))
	}, func() { h.inode.cut(size) })
}

func (m *life) unlink(dir, name string) {
	m.do("unlink", func() error {
		return m.in(dir, func(d tier.Dir) error { return m.v.Unlink(d, name) })
	}, func() { m.tree[dir].remove(name) })
}

// rename moves a file in its directory. Over another one it may, when it is killed,
// leave that one gone and the file where it was.
func (m *life) rename(dir, from, to string) {
	d := m.tree[dir]
	moved := func() {
		f := d.files[from]
		if d.files[to] == f {
			return
		}
		d.remove(to)
		d.files[to] = f
		delete(d.files, from)
	}
	m.do("rename", func() error {
		return m.in(dir, func(d tier.Dir) error { return m.v.Rename(d, from, d, to, 0) })
	}, moved, func() { d.remove(to) })
}

func (m *life) renameDir(from, to string) {
	m.do("rename of a directory", func() error {
		return m.in("", func(d tier.Dir) error { return m.v.Rename(d, from, d, to, 0) })
	}, func() {
		m.tree[to] = m.tree[from]
		delete(m.tree, from)
	})
}

func (m *life) rmdir(path string) {
	m.do("rmdir", func() error {
		return m.in("", func(d tier.Dir) error { return m.v.Rmdir(d, path) })
	}, func() { delete(m.tree, path) })
}

func (m *life) hardLink(dir, from, to string) {
	m.do("link", func() error {
		return m.in(dir, func(d tier.Dir) error {
			e, err := m.v.Lookup(d, from)
			if err != nil {
				return err
			}
			defer e.File.Release()
			l, err := m.v.Link(e.File, d, to)
			if err == nil {
				l.File.Release()
			}
			return err
		})
	}, func() { m.tree[dir].add(to, m.tree[dir].files[from]) })
}

// read reads a whole file through a descriptor of it.
func (m *life) read(f *tier.File, fd int, size int) ([]byte, error) {
	src := f.Source()
	defer src.Release()
	b := make([]byte, size+10)
	if src.Local() {
		n, err := unix.Pread(fd, b, 0)
		return b[:max(n, 0)], err
	}
	n, err := src.ReadAt(context.Background(), b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

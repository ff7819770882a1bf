package dirstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"golang.org/x/sys/unix"
)

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := checkKey(key); err != nil {
		return objstore.Info{}, err
	}
	if ctx.Err() != nil {
		return objstore.Info{}, fmt.Errorf("head %s: %w", key, context.Cause(ctx))
	}
	fd, st, err := s.openFile(key)
	if err != nil {
		return objstore.Info{}, s.failure("head", key, err)
	}
	defer unix.Close(fd)
	info := objstore.Info{Key: key, Size: st.Size, Modified: modified(&st)}
	if err := readAttribute(fd, &info); err != nil {
		return objstore.Info{}, fmt.Errorf("head %s: %w", key, err)
	}
	return info, nil
}

func modified(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }

// GetRange implements objstore.Store. A reader goes on reading the object that it
// was opened on, also when that is replaced or deleted.
func (s *Store) GetRange(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if err := objstore.CheckRange(key, off, n); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("get %s: %w", key, context.Cause(ctx))
	}
	fd, st, err := s.openFile(key)
	if err != nil {
		return nil, s.failure("get", key, err)
	}
	if off+n > st.Size {
		unix.Close(fd)
		return nil, fmt.Errorf("get %s: %w: %d bytes at %d of %d", key, objstore.ErrRange, n, off, st.Size)
	}
	return &reader{s: s, ctx: ctx, key: key, fd: fd, off: off, rest: n}, nil
}

type reader struct {
	s         *Store
	ctx       context.Context
	key       string
	fd        int // -1 when closed
	off, rest int64
}

func (r *reader) Read(p []byte) (int, error) {
	if r.fd < 0 {
		return 0, fmt.Errorf("get %s: %w: read of a closed body", r.key, objstore.ErrInvalid)
	}
	if r.ctx.Err() != nil {
		return 0, fmt.Errorf("get %s: %w", r.key, context.Cause(r.ctx))
	}
	if r.rest == 0 {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := unix.Pread(r.fd, p[:min(int64(len(p)), r.rest)], r.off)
	for err == unix.EINTR {
		n, err = unix.Pread(r.fd, p[:min(int64(len(p)), r.rest)], r.off)
	}
	switch {
	case err != nil:
		return 0, r.s.failure("get", r.key, err)
	case n == 0:
		return 0, fmt.Errorf("get %s: %w: %d bytes missing: %w", r.key, objstore.ErrShort, r.rest, io.ErrUnexpectedEOF)
	}
	r.off, r.rest = r.off+int64(n), r.rest-int64(n)
	return n, nil
}

func (r *reader) Close() error {
	if r.fd < 0 {
		return nil
	}
	fd := r.fd
	r.fd = -1
	return unix.Close(fd)
}

// prepare makes .tierfs-tmp, tries what a Put needs of the file system, and
// removes leftovers.
func (s *Store) prepare() error {
	if err := unix.Mkdirat(s.root, tmpDir, 0o700); err != nil && err != unix.EEXIST {
		return fmt.Errorf("make %s: %w", tmpDir, err)
	}
	fd, err := unix.Openat(s.root, tmpDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", tmpDir, err)
	}
	s.tmp = fd
	if err := unix.Fsync(s.root); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := s.tryOut(); err != nil {
		return err
	}
	return s.sweep()
}

func (s *Store) tryOut() error {
	t, err := s.createTemp()
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	defer t.remove()
	if err := t.finish(objstore.BytesBody(nil), objstore.PutOptions{}); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			return errors.New("its file system has no extended attributes (user.*), which the store keeps metadata in")
		}
		return fmt.Errorf("write: %w", err)
	}
	link := t.name + ".link"
	if err := unix.Linkat(s.tmp, t.name, s.tmp, link, 0); err != nil {
		return fmt.Errorf("its file system has no hard links: %w", err)
	}
	return unix.Unlinkat(s.tmp, link, 0)
}

// sweep removes temporary files that no living writer has locked.
func (s *Store) sweep() error {
	entries, err := readDir(s.tmp)
	if err != nil {
		return fmt.Errorf("read %s: %w", tmpDir, err)
	}
	for _, e := range entries {
		fd, err := unix.Openat(s.tmp, e.name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // gone, or none of ours
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			unix.Unlinkat(s.tmp, e.name, 0) // what fails here is tried at the next start
		}
		unix.Close(fd)
	}
	return nil
}

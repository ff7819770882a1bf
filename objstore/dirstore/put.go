package dirstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/minio/crc64nvme"
	"github.com/tierfs/tierfs/objstore"
	"golang.org/x/sys/unix"
)

// maxRaces bounds how often a Put starts over because its directory was removed
// by a Delete, or its key came and went, under its hands.
const maxRaces = 1000

// attribute is the value of the extended attribute.
type attribute struct {
	CRC64NVME string            `json:"crc64nvme"`
	Metadata  map[string]string `json:"metadata,omitempty"`
}

// Put implements objstore.Store. The storage class is ignored.
func (s *Store) Put(ctx context.Context, key string, body objstore.Body, opts objstore.PutOptions) error {
	if err := objstore.CheckPut(key, body, opts); err != nil {
		return err
	}
	if err := checkKey(key); err != nil {
		return err
	}
	tmp, err := s.createTemp()
	if err != nil {
		return s.failure("put", key, err)
	}
	defer tmp.remove()
	if err := copyBody(ctx, tmp.fd, body); err != nil {
		if errno, ok := errors.AsType[writeError](err); ok {
			return s.failure("put", key, errno.error)
		}
		return fmt.Errorf("put %s: %w", key, err)
	}
	if err := tmp.finish(body, opts); err != nil {
		return s.failure("put", key, err)
	}
	return s.publish(ctx, tmp, key, body, opts.IfAbsent)
}

// publish gives the finished temporary file its name.
func (s *Store) publish(ctx context.Context, tmp *temp, key string, body objstore.Body, ifAbsent bool) error {
	dirs, name := split(key)
	for range maxRaces {
		if ctx.Err() != nil {
			return fmt.Errorf("put %s: %w", key, context.Cause(ctx))
		}
		err := s.place(tmp, dirs, name, ifAbsent)
		switch err {
		case nil:
			return nil
		case unix.ENOENT:
			var st unix.Stat_t
			if err := unix.Fstat(s.root, &st); err != nil || st.Nlink == 0 {
				return s.failure("put", key, unix.ENOENT)
			}
		case unix.EEXIST:
			same, err := objstore.Same(ctx, s, key, body)
			if same {
				return s.syncExisting(key, dirs)
			}
			if err == nil {
				return fmt.Errorf("put %s: %w", key, objstore.ErrExists)
			}
			if !errors.Is(err, objstore.ErrNotFound) {
				return err
			}
			if s.isDir(dirs, name) {
				return s.failure("put", key, unix.EISDIR)
			}
		default:
			return s.failure("put", key, err)
		}
	}
	return fmt.Errorf("put %s: %w: its directory does not stay", key, objstore.ErrTransient)
}

// place does one try: the directories, the link or the rename, and their sync.
func (s *Store) place(tmp *temp, dirs []string, name string, ifAbsent bool) error {
	c, err := s.descend(dirs, true)
	if err != nil {
		return err
	}
	defer c.close()
	if ifAbsent {
		err = unix.Linkat(s.tmp, tmp.name, c.leaf(), name, 0)
	} else if err = unix.Renameat(s.tmp, tmp.name, c.leaf(), name); err == nil {
		tmp.name = "" // it is the object now
	}
	if err != nil {
		return err
	}
	return c.sync()
}

// syncExisting makes an object durable that another writer has linked but perhaps
// not synced yet: its bytes were synced before the link.
func (s *Store) syncExisting(key string, dirs []string) error {
	c, err := s.descend(dirs, false)
	if err != nil {
		return s.failure("put", key, err)
	}
	defer c.close()
	return s.failure("put", key, c.sync())
}

func (s *Store) isDir(dirs []string, name string) bool {
	c, err := s.descend(dirs, false)
	if err != nil {
		return false
	}
	defer c.close()
	var st unix.Stat_t
	err = unix.Fstatat(c.leaf(), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG
}

// writeError is a failure of the store's file system, not of the body.
type writeError struct{ error }

// copyBody writes the body to fd and compares its checksum.
func copyBody(ctx context.Context, fd int, body objstore.Body) error {
	r, sum, buf := body.Reader(), crc64nvme.New(), make([]byte, min(body.Size+1, 1<<20))
	for off := int64(0); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			sum.Write(buf[:n])
			if werr := pwriteAll(fd, buf[:n], off); werr != nil {
				return writeError{werr}
			}
			off += int64(n)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if got := sum.Sum64(); got != body.CRC64NVME {
		return fmt.Errorf("%w: body has CRC-64 %016x, not %016x", objstore.ErrChecksum, got, body.CRC64NVME)
	}
	return nil
}

func pwriteAll(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// temp is a file in .tierfs-tmp, locked while its writer lives.
type temp struct {
	s    *Store
	fd   int
	name string // "" when it has been renamed away
}

func (s *Store) createTemp() (*temp, error) {
	for range maxRaces {
		t := &temp{s: s, name: rand.Text()}
		fd, err := unix.Openat(s.tmp, t.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		t.fd = fd
		var st unix.Stat_t
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			if err := unix.Fstat(fd, &st); err == nil && st.Nlink == 1 {
				return t, nil
			}
		} else if err != unix.EWOULDBLOCK {
			t.remove()
			return nil, err
		}
		t.remove() // a sweep took it for a leftover before it was locked
	}
	return nil, unix.EAGAIN
}

// finish writes the attribute and syncs the file.
func (t *temp) finish(body objstore.Body, opts objstore.PutOptions) error {
	value, err := attribute{CRC64NVME: fmt.Sprintf("%016x", body.CRC64NVME), Metadata: opts.Metadata}.encode()
	if err != nil {
		return err
	}
	if err := unix.Fsetxattr(t.fd, xattr, value, 0); err != nil {
		return err
	}
	return unix.Fsync(t.fd)
}

func (t *temp) remove() {
	if t.name != "" {
		unix.Unlinkat(t.s.tmp, t.name, 0) // what fails here is swept at the next start
	}
	unix.Close(t.fd)
}

// readAttribute fills in what Put wrote; a file without it has neither.
func readAttribute(fd int, info *objstore.Info) error {
	buf := make([]byte, 8<<10)
	n, err := unix.Fgetxattr(fd, xattr, buf)
	if err == unix.ENODATA || err == unix.EOPNOTSUPP {
		return nil
	}
	if err != nil {
		return err
	}
	return parseAttribute(buf[:n], info)
}

// parseAttribute fills in what the value of the attribute says.
func parseAttribute(value []byte, info *objstore.Info) error {
	var a attribute
	if err := json.Unmarshal(value, &a); err != nil {
		return fmt.Errorf("extended attribute %s: %w", xattr, err)
	}
	crc, err := strconv.ParseUint(a.CRC64NVME, 16, 64)
	if err != nil {
		return fmt.Errorf("extended attribute %s: %w", xattr, err)
	}
	info.Metadata, info.CRC64NVME, info.HasCRC = a.Metadata, crc, true
	return nil
}

// encode returns the value of the attribute. It is no longer than it must be: the file system bounds it.
func (a attribute) encode() ([]byte, error) {
	var value bytes.Buffer
	enc := json.NewEncoder(&value)
	enc.SetEscapeHTML(false)
	err := enc.Encode(a)
	return bytes.TrimSpace(value.Bytes()), err
}

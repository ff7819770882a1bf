package dirstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tierfs/tierfs/objstore"
	"golang.org/x/sys/unix"
)

// checkKey refuses what is no key, and the store's own directory.
func checkKey(key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if first, _, _ := strings.Cut(key, "/"); first == tmpDir {
		return fmt.Errorf("%w: key %q is reserved", objstore.ErrInvalid, key)
	}
	return nil
}

// chain is the open directories from the store's top down to where a key's file
// is: fds[0] is the top, fds[i] is names[i-1] in fds[i-1]. The top stays open.
type chain struct {
	fds   []int
	names []string
}

func (c *chain) leaf() int { return c.fds[len(c.fds)-1] }

func (c *chain) close() {
	for _, fd := range c.fds[1:] {
		unix.Close(fd)
	}
}

// split returns the directories of key and the name of its file.
func split(key string) (dirs []string, name string) {
	parts := strings.Split(key, "/")
	return parts[:len(parts)-1], parts[len(parts)-1]
}

// descend opens the directories dirs below the top, and makes those that are
// missing if it may. No symbolic link is followed.
func (s *Store) descend(dirs []string, create bool) (*chain, error) {
	c := &chain{fds: []int{s.root}}
	for _, name := range dirs {
		if create {
			if err := unix.Mkdirat(c.leaf(), name, 0o700); err != nil && err != unix.EEXIST {
				c.close()
				return nil, err
			}
		}
		fd, err := unix.Openat(c.leaf(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			c.close()
			return nil, err
		}
		c.fds, c.names = append(c.fds, fd), append(c.names, name)
	}
	return c, nil
}

// sync makes the whole chain durable, from the leaf up: each directory may have
// been made just now, by us or by another writer that has not synced it yet.
func (c *chain) sync() error {
	for i := len(c.fds) - 1; i >= 0; i-- {
		if err := unix.Fsync(c.fds[i]); err != nil {
			return err
		}
	}
	return nil
}

// prune removes directories that became empty, from the leaf up. A writer that
// is about to use one finds it gone and makes it again.
func (c *chain) prune() {
	for i := len(c.names) - 1; i >= 0; i-- {
		err := unix.Unlinkat(c.fds[i], c.names[i], unix.AT_REMOVEDIR)
		if err != nil && err != unix.ENOENT {
			return
		}
	}
}

// openFile opens an object's file for reading; ENOENT when there is none.
func (s *Store) openFile(key string) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	dirs, name := split(key)
	c, err := s.descend(dirs, false)
	if err != nil {
		return -1, st, missing(err)
	}
	defer c.close()
	fd, err := unix.Openat(c.leaf(), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, st, missing(err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, st, unix.ENOENT
	}
	return fd, st, nil
}

// missing turns the ways in which a path cannot lead to a file into ENOENT.
func missing(err error) error {
	if err == unix.ENOTDIR || err == unix.ELOOP || err == unix.ENXIO {
		return unix.ENOENT
	}
	return err
}

// failure wraps an error of a system call on the store's files.
func (s *Store) failure(op, key string, err error) error {
	if err == nil {
		return nil
	}
	kind := objstore.ErrTransient
	switch {
	case errors.Is(err, unix.ENOENT):
		var st unix.Stat_t
		if unix.Fstat(s.root, &st) == nil && st.Nlink > 0 {
			return fmt.Errorf("%s %s: %w", op, key, objstore.ErrNotFound)
		}
		err = errors.New("the store's directory was removed")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		kind = objstore.ErrAuth
	case errors.Is(err, unix.ENAMETOOLONG):
		kind = objstore.ErrInvalid
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTEMPTY):
		return fmt.Errorf("%s %s: %w: a key cannot be the directory of another in a file system: %w", op, key, objstore.ErrInvalid, err)
	}
	return fmt.Errorf("%s %s: %w: %w", op, key, kind, err)
}

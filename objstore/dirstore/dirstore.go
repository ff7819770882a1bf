// Package dirstore is the backend fs: an object store in a directory of a local
// or network file system.
//
// On disk, below the store's directory:
//
//	KEY            one regular file for each object, at its key: a slash in the
//	               key is a directory. The file holds exactly the object's bytes.
//	               Its extended attribute user.tierfs holds, as JSON, the object's
//	               checksum and metadata:
//	               {"crc64nvme":"0011223344556677","metadata":{"endoffset":"41"}}
//	.tierfs-tmp/   objects that are being written, under random names, each with
//	               an flock of its writer. What nobody locks is a leftover of a
//	               crash, and removed when a store is opened.
//
// A copy that is made for a restore must keep extended attributes (cp -a,
// rsync -X, tar --xattrs); a file without the attribute is an object without
// checksum and metadata.
//
// A Put writes and syncs the file in .tierfs-tmp, links it to its name (link(2)
// is the exclusive step of IfAbsent; an overwrite renames) and syncs the
// directories up to the top, so an object is never half there. A Delete removes
// directories that became empty. Several processes may use one directory.
//
// Everything is reached from the directory's file descriptor, so a mount that
// covers its path changes nothing. Symbolic links are not followed. One key
// cannot be the directory of another ("a" and "a/b"): the later Put is ErrInvalid.
package dirstore

import (
	"fmt"

	"github.com/tierfs/tierfs/objstore"
	"golang.org/x/sys/unix"
)

const (
	tmpDir = ".tierfs-tmp"
	xattr  = "user.tierfs"
)

// Store is an objstore.Store in a directory.
type Store struct {
	root int // the directory, open for reading
	tmp  int // .tierfs-tmp
}

var _ objstore.Store = (*Store)(nil)

// Open opens the directory at path, which must exist; see New.
func Open(path string) (*Store, error) {
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", path, err)
	}
	defer unix.Close(fd)
	s, err := New(fd)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", path, err)
	}
	return s, nil
}

// New returns the store in the directory dir, a file descriptor that stays the
// caller's. It fails when the file system cannot hold the store (read only, no
// extended attributes, no hard links), and removes what a crash left.
func New(dir int) (*Store, error) {
	root, err := unix.Openat(dir, ".", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	s := &Store{root: root, tmp: -1}
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close lets go of the directory. No call may be under way.
func (s *Store) Close() error {
	if s.tmp >= 0 {
		unix.Close(s.tmp)
	}
	return unix.Close(s.root)
}

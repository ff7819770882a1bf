package dirstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tierfs/tierfs/objstore"
	"golang.org/x/sys/unix"
)

// Delete implements objstore.Store. Keys of one directory are deleted together,
// with one sync.
func (s *Store) Delete(ctx context.Context, keys ...string) error {
	byDir := map[string][]string{}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return err
		}
		dir := key[:strings.LastIndexByte(key, '/')+1]
		byDir[dir] = append(byDir[dir], key)
	}
	for _, group := range byDir {
		if err := s.deleteGroup(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) deleteGroup(ctx context.Context, keys []string) error {
	dirs, _ := split(keys[0])
	c, err := s.descend(dirs, false)
	if missing(err) == unix.ENOENT {
		return s.rootThere(keys[0])
	}
	if err != nil {
		return s.failure("delete", keys[0], err)
	}
	defer c.close()
	for _, key := range slices.Compact(keys) {
		if ctx.Err() != nil {
			return fmt.Errorf("delete %s: %w", key, context.Cause(ctx))
		}
		_, name := split(key)
		err := unix.Unlinkat(c.leaf(), name, 0)
		if err != nil && err != unix.ENOENT && err != unix.EISDIR {
			return s.failure("delete", key, err)
		}
	}
	if err := unix.Fsync(c.leaf()); err != nil {
		return s.failure("delete", keys[0], err)
	}
	c.prune()
	return s.rootThere(keys[0])
}

// rootThere tells a missing key from a store whose directory was removed.
func (s *Store) rootThere(key string) error {
	var st unix.Stat_t
	if err := unix.Fstat(s.root, &st); err != nil {
		return s.failure("delete", key, err)
	}
	if st.Nlink == 0 {
		return fmt.Errorf("delete %s: %w: the store's directory was removed", key, objstore.ErrTransient)
	}
	return nil
}

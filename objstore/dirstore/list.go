package dirstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/tierfs/tierfs/objstore"
	"golang.org/x/sys/unix"
)

// List implements objstore.Store. It reads only directories that can hold keys of
// the page, each of them whole: a page costs in time and memory what the largest
// of them holds in names.
func (s *Store) List(ctx context.Context, prefix, after string) (objstore.Page, error) {
	l := &lister{ctx: ctx, prefix: prefix, after: after}
	root, err := unix.Openat(s.root, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = l.dir(root, "") // closes root
	}
	if ctx.Err() != nil {
		return objstore.Page{}, fmt.Errorf("list %s: %w", prefix, context.Cause(ctx))
	}
	if err != nil {
		return objstore.Page{}, s.failure("list", prefix, err)
	}
	if len(l.page.Objects) == 0 {
		if err := s.rootThere(prefix); err != nil {
			return objstore.Page{}, err
		}
	}
	return l.page, nil
}

type lister struct {
	ctx           context.Context
	prefix, after string
	page          objstore.Page
}

// dir lists what is below the directory fd, whose path is path (with a slash at
// its end, or ""), and closes fd. A directory sorts by its name and a slash: so
// the walk meets the keys in byte order.
func (l *lister) dir(fd int, path string) error {
	defer unix.Close(fd)
	entries, err := readDir(fd)
	if err == unix.ENOENT {
		return nil // deleted meanwhile
	}
	if err != nil {
		return err
	}
	for i := range entries {
		if err := entries[i].resolve(fd); err != nil {
			return err
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range entries {
		if l.page.More || l.ctx.Err() != nil {
			return nil
		}
		switch e.kind {
		case unix.DT_REG:
			err = l.file(fd, e.name, path+e.name)
		case unix.DT_DIR:
			err = l.subdir(fd, strings.TrimSuffix(e.name, "/"), path+e.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) file(dir int, name, key string) error {
	if key <= l.after || !strings.HasPrefix(key, l.prefix) || checkKey(key) != nil {
		return nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT {
		return nil // deleted meanwhile
	}
	if err != nil {
		return err
	}
	if len(l.page.Objects) == objstore.PageSize {
		l.page.More = true
		return nil
	}
	l.page.Objects = append(l.page.Objects, objstore.Info{Key: key, Size: st.Size, Modified: modified(&st)})
	return nil
}

// subdir goes into a directory if keys below it can be in the page. All of them
// start with path, so they are all on the same side of after unless that does too.
func (l *lister) subdir(dir int, name, path string) error {
	if !strings.HasPrefix(path, l.prefix) && !strings.HasPrefix(l.prefix, path) {
		return nil
	}
	if path < l.after && !strings.HasPrefix(l.after, path) || path == tmpDir+"/" {
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if missing(err) == unix.ENOENT {
		return nil // deleted meanwhile
	}
	if err != nil {
		return err
	}
	return l.dir(fd, path)
}

// entry is a name in a directory and its type, DT_….
type entry struct {
	name string // a directory's has a slash at its end once resolved
	kind uint8
}

// resolve finds out the type where readdir did not tell, and marks directories.
func (e *entry) resolve(dir int) error {
	if e.kind == unix.DT_UNKNOWN {
		var st unix.Stat_t
		err := unix.Fstatat(dir, e.name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && err != unix.ENOENT {
			return err
		}
		e.kind = uint8(st.Mode & unix.S_IFMT >> 12)
	}
	if e.kind == unix.DT_DIR {
		e.name += "/"
	}
	return nil
}

// readDir reads a whole directory from its start. (os.File.ReadDir goes by the
// directory's path where the file system does not tell types.)
func readDir(fd int) ([]entry, error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, err
	}
	var entries []entry
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return entries, nil
		}
		entries = appendEntries(entries, buf[:n])
	}
}

// appendEntries decodes struct linux_dirent64: inode 8, offset 8, length 2,
// type 1, name and zeros.
func appendEntries(entries []entry, buf []byte) []entry {
	const header = 19
	for len(buf) >= header {
		length := int(binary.NativeEndian.Uint16(buf[16:]))
		if length < header || length > len(buf) {
			return entries
		}
		name, _, _ := strings.Cut(string(buf[header:length]), "\x00")
		if name != "." && name != ".." {
			entries = append(entries, entry{name, buf[18]})
		}
		buf = buf[length:]
	}
	return entries
}

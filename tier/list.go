package tier

import (
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
)

// ListEntry is one entry of a directory as the broker sees it.
type ListEntry struct {
	Name string
	Type uint32 // S_IFREG and so on
	Ino  uint64
}

// List reads a whole directory as the broker sees it, in no order. An eviction
// renames a file below; the listing is taken between two of those, so that no
// segment is seen twice or not at all.
func (v *Volume) List(d Dir) ([]ListEntry, error) {
	fd, err := openat(d.FD, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	raw, err := v.rawList(fd, d.Handle)
	if err != nil {
		return nil, err
	}
	out := make([]ListEntry, 0, len(raw))
	remote := map[string]int{}
	for _, e := range raw {
		name, ok := Visible(e.Name)
		if !ok {
			continue
		}
		if name != e.Name {
			if e.Type == unix.S_IFDIR {
				continue // no marker, and a name that the broker cannot use
			}
			remote[name] = len(out)
			e.Name = name
		}
		out = append(out, e)
	}
	return withoutTwins(out, remote), nil
}

// withoutTwins leaves out remote entries that have a local file of the same name.
func withoutTwins(entries []ListEntry, remote map[string]int) []ListEntry {
	if len(remote) == 0 {
		return entries
	}
	twins := map[int]bool{}
	for i, e := range entries {
		if j, ok := remote[e.Name]; ok && j != i {
			twins[j] = true
		}
	}
	if len(twins) == 0 {
		return entries
	}
	out := entries[:0]
	for i, e := range entries {
		if !twins[i] {
			out = append(out, e)
		}
	}
	return out
}

// rawList reads the directory's entries between two swaps.
func (v *Volume) rawList(fd int, dir handle.Handle) ([]ListEntry, error) {
	mu := v.swaps.lock(dir)
	mu.RLock()
	defer mu.RUnlock()
	var out []ListEntry
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, pathError("getdents", "", err)
		}
		if n == 0 {
			return out, nil
		}
		out = appendDirents(out, buf[:n])
	}
}

// appendDirents decodes linux_dirent64 records (getdents64(2)): inode u64@0,
// offset u64@8, record length u16@16, type u8@18, name@19 to a NUL.
func appendDirents(out []ListEntry, b []byte) []ListEntry {
	for len(b) > 19 {
		length := int(b[16]) | int(b[17])<<8
		if length < 20 || length > len(b) {
			return out
		}
		rec := b[:length]
		b = b[length:]
		name := rec[19:]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		if s := string(name); s != "." && s != ".." {
			var ino uint64
			for i := 7; i >= 0; i-- {
				ino = ino<<8 | uint64(rec[i])
			}
			out = append(out, ListEntry{Name: s, Type: uint32(rec[18]) << 12, Ino: ino})
		}
	}
	return out
}

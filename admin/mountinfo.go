package admin

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// FSType is the type of a tierfs mount in the kernel's tables.
const FSType = "fuse.tierfs"

// Mount is one line of /proc/self/mountinfo (its format: proc_pid_mountinfo(5)).
type Mount struct {
	Device string // "0:57"
	Point  string // mount point
	Type   string // file system type
	Source string // mount source: of a tierfs mount, the volume id
}

// Mounts reads the mounts that this process sees, in the kernel's order: of
// several on one point the last is on top.
func Mounts() ([]Mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list of mounts: %w", err)
	}
	defer f.Close()
	return parseMounts(f)
}

func parseMounts(r io.Reader) ([]Mount, error) {
	var mounts []Mount
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// id, parent, major:minor, root, mount point, options, any number of
		// optional fields, "-", type, source, options of the super block
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields, rest := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 6 || len(rest) < 2 {
			continue
		}
		mounts = append(mounts, Mount{
			Device: fields[2],
			Point:  unescape(fields[4]),
			Type:   rest[0],
			Source: unescape(rest[1]),
		})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list of mounts: %w", err)
	}
	return mounts, nil
}

// unescape turns the octal escapes of the kernel's tables ("\040") back.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// MountAt returns what is mounted on top at a path, if anything is. It touches
// only the directories above: a dead mount answers nobody.
func MountAt(path string) (Mount, bool, error) {
	mounts, err := Mounts()
	if err != nil {
		return Mount{}, false, err
	}
	path, err = CleanPath(path)
	if err != nil {
		return Mount{}, false, err
	}
	m, ok := topmost(mounts, path)
	return m, ok, nil
}

func topmost(mounts []Mount, point string) (Mount, bool) {
	for i := len(mounts) - 1; i >= 0; i-- {
		if mounts[i].Point == point {
			return mounts[i], true
		}
	}
	return Mount{}, false
}

// FindMount returns the tierfs mount in which path lies, and the path below its
// mount point ("" for the mount point itself).
func FindMount(path string) (Mount, string, error) {
	mounts, err := Mounts()
	if err != nil {
		return Mount{}, "", err
	}
	clean, err := CleanPath(path)
	if err != nil {
		return Mount{}, "", err
	}
	for at := clean; ; at = filepath.Dir(at) {
		if m, ok := topmost(mounts, at); ok {
			if m.Type != FSType {
				break
			}
			below, err := filepath.Rel(at, clean)
			if below == "." {
				below = ""
			}
			return m, below, err
		}
		if at == "/" {
			break
		}
	}
	return Mount{}, "", fmt.Errorf("%s: no tierfs is mounted there; `findmnt -t %s` lists the mounts", path, FSType)
}

// CleanPath is the absolute path without symbolic links above its last
// component. The last one is resolved only where that touches no tierfs mount.
func CleanPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if abs == "/" {
		return abs, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return abs, nil // below a dead mount, or not there: the names have to do
	}
	clean := filepath.Join(dir, filepath.Base(abs))
	if target, err := os.Readlink(clean); err == nil {
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		return CleanPath(target)
	}
	return clean, nil
}

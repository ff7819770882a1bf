// Package mountinfo finds mounts in the kernel's table of them,
// /proc/self/mountinfo, so that nothing has to touch a mount to learn of it: a
// dead one answers nobody, and a daemon must not wait for itself.
//
// It promises:
//   - A path that names a mount point leads to its mount, and to nothing in it:
//     only what is above the last component is looked up.
//   - Of several mounts on one point, the one on top is found.
//
// A line of the table (proc_pid_mountinfo(5)), fields separated by blanks:
//
//	id, parent, major:minor, root, mount point, options, any number of optional
//	fields, "-", type, source, options of the super block
//
// Blanks and backslashes inside a field are written as octal escapes ("\040").
//
// All functions may be called in parallel.
package mountinfo

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// FSType is the type of a tierfs mount.
const FSType = "fuse.tierfs"

// Mount is one line of the table.
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
	return parse(f)
}

func parse(r io.Reader) ([]Mount, error) {
	var mounts []Mount
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
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

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// inode identifies a file by device and number, as statx has them.
type inode struct {
	major, minor uint32
	number       uint64
}

// user is a process that has something open.
type user struct {
	pid     int
	command string
	path    string // what it has open, as the kernel names it for that process
}

func (u user) String() string {
	return fmt.Sprintf("process %d (%s) has %s", u.pid, u.command, u.path)
}

// regularFiles collects the regular files below a directory, on its own file
// system.
func regularFiles(root string) (map[inode]bool, error) {
	files := make(map[inode]bool)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		id, _, err := statx(path, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		files[id] = true
		return err
	})
	return files, err
}

// statx asks for what the kernel knows: it never waits for a FUSE daemon.
func statx(path string, flags int) (inode, uint16, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, flags|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO, &st)
	if err != nil {
		return inode{}, 0, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return inode{st.Dev_major, st.Dev_minor, st.Ino}, st.Mode & unix.S_IFMT, nil
}

// whoHas returns a process other than this one that has an inode open or
// mapped for which wanted is true, if there is one.
func whoHas(links []string, wanted func(id inode, kind uint16) bool) (user, bool, error) {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return user{}, false, fmt.Errorf("list of processes: %w", err)
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		switch path, ok, err := findLinks(pid, links, wanted); {
		case err != nil:
			return user{}, false, err
		case ok:
			return user{pid, commandOf(pid), path}, true, nil
		}
	}
	return user{}, false, nil
}

// stuckAfter is how long a look at one process may take.
const stuckAfter = 5 * time.Second

// findLinks looks at links of one process. A process that is stuck in the kernel, on a disk
// that hangs for instance, can keep whoever looks at it waiting for as long: then there
// is an error, and the look ends with that process or with this one.
func findLinks(pid int, links []string, wanted func(id inode, kind uint16) bool) (path string, ok bool, err error) {
	found := make(chan string, 1)
	go func() {
		for _, link := range links {
			if path, ok := findLink(filepath.Join("/proc", strconv.Itoa(pid), link), wanted); ok {
				found <- path
				return
			}
		}
		close(found)
	}()
	late := time.NewTimer(stuckAfter)
	defer late.Stop()
	select {
	case path, ok = <-found:
		return path, ok, nil
	case <-late.C:
		return "", false, fmt.Errorf("process %d (%s) is stuck in the kernel, and what it has open cannot be seen; end what it waits for, and try again", pid, commandOf(pid))
	}
}

// findLink looks at one link of /proc/PID, or at all links of a directory
// there. A process that ends meanwhile has nothing open.
func findLink(path string, wanted func(id inode, kind uint16) bool) (target string, ok bool) {
	links := []string{path}
	if isProcDir(path) {
		entries, err := os.ReadDir(path)
		if err != nil {
			return "", false
		}
		links = links[:0]
		for _, e := range entries {
			links = append(links, filepath.Join(path, e.Name()))
		}
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, "/") { // pipes and sockets
			continue
		}
		if id, kind, err := statx(link, 0); err == nil && wanted(id, kind) {
			return target, true
		}
	}
	return "", false
}

// isProcDir says whether a name below /proc/PID is a directory of links: cwd
// and root are links to directories, which may be in a mount that does not answer,
// or in our own.
func isProcDir(path string) bool {
	base := filepath.Base(path)
	return base == "fd" || base == "map_files"
}

// commandOf is the name of a process for people.
func commandOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// whoUsesSource returns a process that has a regular file of a source
// directory open or mapped.
func whoUsesSource(source string) (user, bool, error) {
	files, err := regularFiles(source)
	if err != nil {
		return user{}, false, fmt.Errorf("list of the source's files: %w", err)
	}
	return whoHas([]string{"fd", "map_files"}, func(id inode, kind uint16) bool {
		return kind == unix.S_IFREG && files[id]
	})
}

// whoIsIn returns a process that keeps a mount busy, by the mount's device.
func whoIsIn(device string) (user, bool, error) {
	return whoHas([]string{"cwd", "root", "fd", "map_files", "exe"}, func(id inode, _ uint16) bool {
		return deviceName(id) == device
	})
}

// deviceName writes a device as /proc/self/mountinfo does.
func deviceName(id inode) string { return fmt.Sprintf("%d:%d", id.major, id.minor) }

package fs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// hiddenNames are all kinds of names that do not exist through the mount.
var hiddenNames = []string{
	".tierfs", ".tierfs-partition", ".tierfs-tmp-1", "00000000000000000042.remote", "00000000000000000042.uploaded", "x.remote",
}

func TestHiddenNames(t *testing.T) {
	m := mountTest(t, func(c *mountConfig) {
		c.prepare = func(src string) { // as found in a source that has been mounted before
			check(t, os.WriteFile(src+"/.tierfs-partition", nil, 0o600))
		}
	})
	check(t, os.WriteFile(m.path("plain"), nil, 0o644))
	check(t, os.Mkdir(m.path("dir"), 0o755))
	for _, name := range hiddenNames {
		t.Run(name, func(t *testing.T) {
			p := m.path(name)
			var st unix.Stat_t
			wantErrno(t, "stat", unix.Stat(p, &st), unix.ENOENT)
			_, err := unix.Open(p, unix.O_RDONLY, 0)
			wantErrno(t, "open", err, unix.ENOENT)
			_, err = unix.Open(p, unix.O_CREAT|unix.O_RDWR, 0o644)
			wantErrno(t, "create", err, unix.EPERM)
			wantErrno(t, "mkdir", unix.Mkdir(p, 0o755), unix.EPERM)
			wantErrno(t, "symlink", unix.Symlink("x", p), unix.EPERM)
			wantErrno(t, "mknod", unix.Mknod(p, unix.S_IFIFO|0o600, 0), unix.EPERM)
			wantErrno(t, "mknod of a file", unix.Mknod(p, unix.S_IFREG|0o600, 0), unix.EPERM)
			wantErrno(t, "link", unix.Link(m.path("plain"), p), unix.EPERM)
			wantErrno(t, "rename of a file", unix.Rename(m.path("plain"), p), unix.EPERM)
			wantErrno(t, "rename of a directory", unix.Rename(m.path("dir"), p), unix.EPERM)
			wantErrno(t, "rename from", unix.Rename(p, m.path("other")), unix.ENOENT)
			wantErrno(t, "unlink", unix.Unlink(p), unix.ENOENT)
			wantErrno(t, "rmdir", unix.Rmdir(p), unix.ENOENT)
		})
	}
	if got := listNames(t, m.mnt); !slices.Equal(got, []string{"dir", "plain"}) {
		t.Errorf("listing: %q", got)
	}
}

func TestRmdirWithHiddenFiles(t *testing.T) {
	m := mountTest(t)
	check(t, os.Mkdir(m.path("topic-0"), 0o755))
	check(t, os.WriteFile(m.below("topic-0", ".tierfs-partition"), []byte("{}"), 0o600))
	check(t, os.WriteFile(m.path("topic-0", "visible"), nil, 0o644))
	wantErrno(t, "with a visible file", unix.Rmdir(m.path("topic-0")), unix.ENOTEMPTY)
	check(t, os.Remove(m.path("topic-0", "visible")))
	check(t, unix.Rmdir(m.path("topic-0")))
	if _, err := os.Lstat(m.below("topic-0")); !os.IsNotExist(err) {
		t.Errorf("below: %v", err)
	}
}

func listNames(t *testing.T, dir string) []string {
	t.Helper()
	d, err := os.Open(dir)
	check(t, err)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	check(t, err)
	slices.Sort(names)
	return names
}

func TestLargeDirectory(t *testing.T) {
	const files = 20000
	want := make([]string, files)
	m := mountTest(t, func(c *mountConfig) {
		c.prepare = func(src string) {
			check(t, os.Mkdir(src+"/d", 0o755))
			for i := range want {
				want[i] = fmt.Sprintf("file-%020d", i)
				check(t, os.WriteFile(src+"/d/"+want[i], nil, 0o644))
			}
		}
	})
	t.Run("names", func(t *testing.T) {
		if got := listNames(t, m.path("d")); !slices.Equal(got, want) {
			t.Errorf("got %d names, want %d", len(got), len(want))
		}
	})
	t.Run("with attributes", func(t *testing.T) {
		if got := m.sh("ls -l d | grep -c file-"); got != fmt.Sprint(files) {
			t.Errorf("ls -l: %s files", got)
		}
	})
	t.Run("seekdir", func(t *testing.T) { seekEverywhere(t, m.path("d"), files) })
	t.Run("removed while it is read", func(t *testing.T) {
		d, err := os.Open(m.path("d"))
		check(t, err)
		defer d.Close()
		removed := 0
		for {
			names, _ := d.Readdirnames(500)
			if len(names) == 0 {
				break
			}
			for _, name := range names {
				check(t, os.Remove(m.path("d", name)))
				removed++
			}
		}
		if removed != files {
			t.Errorf("removed %d of %d", removed, files)
		}
	})
}

type dirent struct {
	name string
	off  int64 // after it
}

// readDirents reads one buffer of names.
func readDirents(t *testing.T, fd int, size int) []dirent {
	t.Helper()
	buf := make([]byte, size)
	n, err := unix.Getdents(fd, buf)
	check(t, err)
	var out []dirent
	for buf = buf[:n]; len(buf) > 0; {
		length := int(buf[16]) | int(buf[17])<<8
		var off int64
		for i := 15; i >= 8; i-- {
			off = off<<8 | int64(buf[i])
		}
		name, _, _ := strings.Cut(string(buf[19:length]), "\x00")
		out = append(out, dirent{name, off})
		buf = buf[length:]
	}
	return out
}

func seekEverywhere(t *testing.T, dir string, files int) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	var all []dirent
	for {
		some := readDirents(t, fd, 32<<10)
		if len(some) == 0 {
			break
		}
		all = append(all, some...)
	}
	if len(all) != files+2 {
		t.Fatalf("%d entries, want %d and two", len(all), files)
	}
	for _, i := range []int{0, 1, 2, 3, 100, files / 2, files - 1, files, files + 1, 7} {
		_, err := unix.Seek(fd, all[i].off, unix.SEEK_SET)
		check(t, err)
		got := readDirents(t, fd, 4096)
		if i+1 == len(all) {
			if len(got) != 0 {
				t.Errorf("behind the end: %v", got)
			}
			continue
		}
		if len(got) == 0 || got[0] != all[i+1] {
			t.Errorf("after entry %d: got %v, want %v", i, got, all[i+1])
		}
	}
	_, err = unix.Seek(fd, 0, unix.SEEK_SET)
	check(t, err)
	if got := readDirents(t, fd, 4096); len(got) < 2 || got[0].name != "." || got[1].name != ".." {
		t.Errorf("from the start: %v", got)
	}
}

func TestHardLinks(t *testing.T) {
	m := mountTest(t)
	check(t, os.Mkdir(m.path("d"), 0o755))
	check(t, os.WriteFile(m.path("a"), []byte("one"), 0o644))
	check(t, os.Link(m.path("a"), m.path("d", "b")))
	a, b := stat(t, m.path("a")), stat(t, m.path("d", "b"))
	if a.Ino != b.Ino || a.Nlink != 2 || b.Nlink != 2 || a.Ino != stat(t, m.below("a")).Ino {
		t.Errorf("inode %d and %d, links %d and %d", a.Ino, b.Ino, a.Nlink, b.Nlink)
	}
	if n := m.server.fs.inodes.size(); n != 3 { // the root, d, and one for both names
		t.Errorf("%d inodes", n)
	}
	check(t, os.WriteFile(m.path("d", "b"), []byte("other"), 0o644))
	if got, _ := os.ReadFile(m.path("a")); string(got) != "other" {
		t.Errorf("through the other name: %q", got)
	}
	check(t, os.Remove(m.path("a")))
	if st := stat(t, m.path("d", "b")); st.Nlink != 1 {
		t.Errorf("links after unlink: %d", st.Nlink)
	}
	wantErrno(t, "link over a name", os.Link(m.path("d", "b"), m.path("d", "b")), unix.EEXIST)
}

func TestSpecialFiles(t *testing.T) {
	m := mountTest(t)
	check(t, unix.Symlink("some/target", m.path("link")))
	check(t, unix.Mknod(m.path("fifo"), unix.S_IFIFO|0o640, 0))
	check(t, unix.Mknod(m.path("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	check(t, unix.Mknod(m.path("file"), unix.S_IFREG|0o604, 0))
	check(t, unix.Link(m.path("fifo"), m.path("fifo2")))
	check(t, unix.Link(m.path("link"), m.path("link2")))

	if to, err := os.Readlink(m.path("link2")); to != "some/target" || err != nil {
		t.Errorf("readlink: %q, %v", to, err)
	}
	for name, mode := range map[string]uint32{
		"link": unix.S_IFLNK | 0o777, "fifo2": unix.S_IFIFO | 0o640, "null": unix.S_IFCHR | 0o644, "file": unix.S_IFREG | 0o604,
	} {
		if st := stat(t, m.path(name)); st.Mode != mode {
			t.Errorf("%s: mode %o, want %o", name, st.Mode, mode)
		}
	}
	if st := stat(t, m.path("null")); st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("device %#x", st.Rdev)
	}
	check(t, unix.Chmod(m.path("fifo"), 0o600))
	check(t, unix.Lchown(m.path("link"), 7, 8))
	if st := stat(t, m.path("fifo2")); st.Mode&0o777 != 0o600 {
		t.Errorf("chmod of a fifo: %o", st.Mode)
	}
	if st := stat(t, m.path("link")); st.Uid != 7 || st.Gid != 8 {
		t.Errorf("chown of a symlink: %d:%d", st.Uid, st.Gid)
	}
	if out := m.sh("(echo hello > fifo &) ; cat fifo2"); out != "hello" {
		t.Errorf("through the fifo: %q", out)
	}
	_, err := unix.Open(m.path("null"), unix.O_RDONLY, 0)
	wantErrno(t, "open of a device", err, unix.EACCES)
}

func TestRename(t *testing.T) {
	m := mountTest(t)
	write := func(name string) { check(t, os.WriteFile(m.path(name), []byte(name), 0o644)) }
	read := func(name string) string { b, _ := os.ReadFile(m.path(name)); return string(b) }
	rename := func(from, to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, m.path(from), unix.AT_FDCWD, m.path(to), flags)
	}
	check(t, os.Mkdir(m.path("d"), 0o755))
	write("a")
	write("b")
	write("d/c")
	wantErrno(t, "NOREPLACE", rename("a", "b", unix.RENAME_NOREPLACE), unix.EEXIST)
	check(t, rename("a", "d/c", unix.RENAME_EXCHANGE))
	if read("a") != "d/c" || read("d/c") != "a" {
		t.Errorf("after the exchange: %q, %q", read("a"), read("d/c"))
	}
	check(t, rename("a", "b", 0))
	if read("b") != "d/c" {
		t.Errorf("after the replacement: %q", read("b"))
	}
	wantErrno(t, "WHITEOUT", rename("b", "w", unix.RENAME_WHITEOUT), unix.EINVAL)
	check(t, rename("d", "e", unix.RENAME_NOREPLACE))
	if read("e/c") != "a" {
		t.Errorf("in the renamed directory: %q", read("e/c"))
	}
	wantErrno(t, "directory into itself", rename("e", "e/x", 0), unix.EINVAL)
	wantErrno(t, "file over a directory", rename("b", "e", 0), unix.EISDIR)
	wantErrno(t, "directory over a file", rename("e", "b", 0), unix.ENOTDIR)
	check(t, os.Mkdir(m.path("f"), 0o755))
	wantErrno(t, "over a full directory", rename("f", "e", 0), unix.ENOTEMPTY)
}

// A file without a name gets its first one by link.
func TestNameForNamelessFile(t *testing.T) {
	m := mountTest(t)
	make := func(flags int) int {
		fd, err := unix.Open(m.mnt, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC|flags, 0o640)
		check(t, err)
		t.Cleanup(func() { check(t, unix.Close(fd)) })
		_, err = unix.Write(fd, []byte("content"))
		check(t, err)
		return fd
	}
	name := func(fd int) error {
		return unix.Linkat(unix.AT_FDCWD, procPath(fd), unix.AT_FDCWD, m.path("name"), unix.AT_SYMLINK_FOLLOW)
	}
	wantErrno(t, "with O_EXCL", name(make(unix.O_EXCL)), unix.ENOENT)
	check(t, name(make(0)))
	if got, err := os.ReadFile(m.path("name")); string(got) != "content" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if st := stat(t, m.below("name")); st.Mode != unix.S_IFREG|0o640 || st.Nlink != 1 {
		t.Errorf("mode %o, %d links", st.Mode, st.Nlink)
	}
}

// A file system that is mounted below the source has other inodes under the same
// numbers and handles: it is not shown.
func TestOtherFileSystemBelow(t *testing.T) {
	m := mountTest(t)
	check(t, os.Mkdir(m.below("other"), 0o755))
	check(t, unix.Mount("tmpfs", m.below("other"), "tmpfs", 0, ""))
	defer func() { check(t, unix.Unmount(m.below("other"), 0)) }()
	var st unix.Stat_t
	wantErrno(t, "stat", unix.Stat(m.path("other"), &st), unix.EXDEV)
}

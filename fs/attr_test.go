package fs

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
)

const nobody, nogroup = 65534, 65534

func TestOwnership(t *testing.T) {
	kept := make(chan RootAttr, 10)
	m := mountTest(t, func(c *mountConfig) {
		c.fs.RootAttr = RootAttr{Mode: 0o755, UID: nobody, GID: nogroup}
		c.fs.SetRootAttr = func(a RootAttr) error { kept <- a; return nil }
		c.prepare = func(src string) { check(t, os.Chmod(src, 0o700)) }
	})
	out, err := m.as(nobody, nogroup, `umask 027 && echo x >file && mkdir dir && ln -s file link && mkfifo fifo && umask 0 && echo y >open && stat -c '%n %A %u:%g' *`)
	want := strings.Join([]string{
		"dir drwxr-x--- 65534:65534", "fifo prw-r----- 65534:65534", "file -rw-r----- 65534:65534",
		"link lrwxrwxrwx 65534:65534", "open -rw-rw-rw- 65534:65534",
	}, "\n")
	if err != nil || out != want {
		t.Errorf("%v\n%s", err, out)
	}
	if st := stat(t, m.below("file")); st.Uid != nobody || st.Mode&0o777 != 0o640 {
		t.Errorf("below: %d %o", st.Uid, st.Mode)
	}
	if out, err := m.as(1000, 1000, "cat file"); err == nil {
		t.Errorf("another user reads it: %q", out)
	}
	if out, err := m.as(1000, 1000, "echo z >>file"); err == nil {
		t.Errorf("another user writes it: %q", out)
	}
	if out, err := m.as(1000, 1000, "echo z >new"); err == nil {
		t.Errorf("another user makes a file: %q", out)
	}
	if out, err := m.as(nobody, nogroup, "cat file && chmod 700 . && chmod 600 file && stat -c %a . file"); err != nil || out != "x\n700\n600" {
		t.Errorf("%v: %q", err, out)
	}
	if got, want := <-kept, (RootAttr{Mode: 0o700, UID: nobody, GID: nogroup}); got != want {
		t.Errorf("kept %+v", got)
	}
	if st := stat(t, m.src); st.Uid != 0 || st.Mode&0o777 != 0o700 {
		t.Errorf("the root below: %d %o", st.Uid, st.Mode)
	}
}

func TestSetGroupDirectory(t *testing.T) {
	for _, c := range []struct{ name, dir string }{{"root", "."}, {"directory", "d"}} {
		t.Run(c.name, func(t *testing.T) {
			m := mountTest(t, func(c *mountConfig) { c.fs.RootAttr = RootAttr{Mode: 0o777, UID: 0, GID: 0} })
			m.sh("mkdir -p " + c.dir + " && chgrp 50 " + c.dir + " && chmod 2777 " + c.dir)
			out, err := m.as(nobody, nogroup, "cd "+c.dir+" && echo x >file && mkdir sub && stat -c '%A %g' file sub")
			if want := "-rw-r--r-- 50\ndrwxr-sr-x 50"; err != nil || out != want {
				t.Errorf("%v: %q", err, out)
			}
		})
	}
}

func TestSetIDBits(t *testing.T) {
	m := mountTest(t, func(c *mountConfig) { c.fs.RootAttr = RootAttr{Mode: 0o777} })
	for _, c := range []struct{ name, change, before, after string }{
		{"write", "printf x >>file", "6777", "777"},
		{"write without group execution", "printf x >>file", "6767", "2767"},
		{"truncate", "truncate -s 1 file", "6777", "777"},
		{"truncating open", "printf x >file", "6777", "777"},
		{"chown", "chgrp 65534 file", "6777", "777"},
		{"chown that leaves both ids", "chown : file && chown 65534 file", "6777", "777"},
		{"fallocate", "fallocate -l 100 file", "6777", "777"},
		{"copy", "echo abcdef >from && dd if=from of=file conv=notrunc status=none", "6777", "777"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := m.as(nobody, nogroup, "rm -f file && echo 123 >file && chmod "+c.before+" file && "+c.change+" && stat -c %a file")
			if err != nil || out != c.after {
				t.Errorf("%v: %q", err, out)
			}
		})
	}
	t.Run("root keeps them", func(t *testing.T) {
		if out := m.sh("chmod 6777 file && printf x >>file && stat -c %a file"); out != "6777" {
			t.Error(out)
		}
	})
	t.Run("made with them", func(t *testing.T) {
		fd, err := unix.Open(m.path("made"), unix.O_CREAT|unix.O_RDWR, 0o4711)
		check(t, err)
		check(t, unix.Close(fd))
		if st := stat(t, m.path("made")); st.Mode&0o7777 != 0o4711 {
			t.Errorf("%o", st.Mode)
		}
	})
}

func TestTimes(t *testing.T) {
	m := mountTest(t)
	for _, name := range []string{"file", "dir", "link", "fifo", "."} {
		t.Run(name, func(t *testing.T) {
			p := m.path(name)
			switch name {
			case "file":
				check(t, os.WriteFile(p, nil, 0o644))
			case "dir":
				check(t, os.Mkdir(p, 0o755))
			case "link":
				check(t, os.Symlink("nowhere", p))
			case "fifo":
				check(t, unix.Mkfifo(p, 0o644))
			}
			set := func(atime, mtime unix.Timespec) unix.Stat_t {
				check(t, unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{atime, mtime}, unix.AT_SYMLINK_NOFOLLOW))
				return stat(t, p)
			}
			a, b := unix.Timespec{Sec: 1000, Nsec: 123456789}, unix.Timespec{Sec: 2000, Nsec: 987654321}
			if st := set(a, b); st.Atim != a || st.Mtim != b {
				t.Errorf("set: %v %v", st.Atim, st.Mtim)
			}
			if st := set(unix.Timespec{Nsec: timeOmit}, unix.Timespec{Sec: -5}); st.Atim != a || st.Mtim.Sec != -5 {
				t.Errorf("omit: %v %v", st.Atim, st.Mtim)
			}
			now := time.Now().Add(-time.Second).Unix()
			if st := set(unix.Timespec{Nsec: timeNow}, unix.Timespec{Nsec: timeOmit}); st.Atim.Sec < now || st.Mtim.Sec != -5 {
				t.Errorf("now: %v %v", st.Atim, st.Mtim)
			}
		})
	}
}

func TestStatx(t *testing.T) {
	m := mountTest(t)
	check(t, os.WriteFile(m.path("file"), []byte("12345"), 0o640))
	var got, below unix.Statx_t
	check(t, unix.Statx(unix.AT_FDCWD, m.path("file"), 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &got))
	check(t, unix.Statx(unix.AT_FDCWD, m.below("file"), 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &below))
	if got.Mask&unix.STATX_BTIME == 0 || got.Btime != below.Btime || got.Size != 5 || got.Mode != below.Mode ||
		got.Ino != below.Ino || got.Mtime != below.Mtime && !m.cfg.gather || got.Blocks != below.Blocks {
		t.Errorf("got  %+v\nwant %+v", got, below)
	}
	if m.count(metrics.OpStatx) == 0 {
		t.Error("not asked")
	}
}

func TestXAttr(t *testing.T) {
	m := mountTest(t)
	check(t, os.WriteFile(m.path("file"), nil, 0o644))
	check(t, os.Mkdir(m.path("dir"), 0o755))
	check(t, os.Symlink("file", m.path("link")))
	for name, attr := range map[string]string{"file": "user.a", "dir": "user.b", "link": "trusted.c", ".": "user.d"} {
		t.Run(name, func(t *testing.T) {
			p := m.path(name)
			check(t, unix.Lsetxattr(p, attr, []byte("value"), unix.XATTR_CREATE))
			wantErrno(t, "create again", unix.Lsetxattr(p, attr, []byte("v"), unix.XATTR_CREATE), unix.EEXIST)
			wantErrno(t, "replace a missing one", unix.Lsetxattr(p, attr+"x", []byte("v"), unix.XATTR_REPLACE), unix.ENODATA)
			buf := make([]byte, 100)
			n, err := unix.Lgetxattr(p, attr, buf)
			if string(buf[:max(n, 0)]) != "value" || err != nil {
				t.Errorf("get: %q, %v", buf[:n], err)
			}
			_, err = unix.Lgetxattr(p, attr, make([]byte, 2))
			wantErrno(t, "small buffer", err, unix.ERANGE)
			n, err = unix.Llistxattr(p, buf)
			if string(buf[:max(n, 0)]) != attr+"\x00" || err != nil {
				t.Errorf("list: %q, %v", buf[:n], err)
			}
			_, err = unix.Llistxattr(p, make([]byte, 2))
			wantErrno(t, "small list", err, unix.ERANGE)
			check(t, unix.Lremovexattr(p, attr))
			wantErrno(t, "remove again", unix.Lremovexattr(p, attr), unix.ENODATA)
		})
	}
	t.Run("no ACLs", func(t *testing.T) {
		check(t, unix.Setxattr(m.below("file"), "user.kept", nil, 0))
		acl := []byte{2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 3, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
			16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255}
		check(t, unix.Setxattr(m.below("file"), "system.posix_acl_access", acl, 0))
		wantErrno(t, "set", unix.Setxattr(m.path("file"), "system.posix_acl_access", acl, 0), unix.EOPNOTSUPP)
		_, err := unix.Getxattr(m.path("file"), "system.posix_acl_access", nil)
		wantErrno(t, "get", err, unix.EOPNOTSUPP)
		buf := make([]byte, 100)
		n, err := unix.Listxattr(m.path("file"), buf)
		if string(buf[:max(n, 0)]) != "user.kept\x00" || err != nil {
			t.Errorf("list: %q, %v", buf[:n], err)
		}
	})
}

func TestStatFs(t *testing.T) {
	m := mountTest(t)
	var got, below unix.Statfs_t
	check(t, unix.Statfs(m.mnt, &got))
	check(t, unix.Statfs(m.src, &below))
	if got.Blocks != below.Blocks || got.Bsize != below.Bsize || got.Namelen != below.Namelen || got.Files != below.Files {
		t.Errorf("got  %+v\nwant %+v", got, below)
	}
}

package fs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/metrics"
)

// After a request that failed half way the kernel's idea of names and attributes may
// be wrong, so it has to ask again.
func TestAskedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		swapped string // what becomes a directory behind the mount's back, so that the request fails
		fail    func(path string) error
	}{
		"unlink":  {"file", unix.Unlink},
		"rename":  {"file.deleted", func(path string) error { return unix.Rename(path, path+".deleted") }},
		"replace": {"file", func(path string) error { return unix.Rename(path+".tmp", path) }},
	} {
		t.Run(name, func(t *testing.T) {
			m := mountTest(t)
			path := m.path("file")
			check(t, os.WriteFile(path, []byte("old"), 0o644))
			check(t, os.WriteFile(path+".tmp", []byte("new"), 0o644))
			m.waitFor("all handles are released", func() bool { return m.server.fs.handles.size() == 0 })
			stat(t, path)
			_, err := os.Lstat(path + ".deleted") // a name that is missing is remembered, too
			wantErrno(t, "stat", err, unix.ENOENT)
			check(t, os.RemoveAll(m.below(tc.swapped)))
			check(t, os.Mkdir(m.below(tc.swapped), 0o755))
			wantErrno(t, name, tc.fail(path), unix.EISDIR)
			m.waitFor("the kernel asks again", func() bool {
				info, err := os.Lstat(m.path(tc.swapped))
				return err == nil && info.IsDir()
			})
		})
	}
	t.Run("attributes", func(t *testing.T) {
		m := mountTest(t, func(c *mountConfig) { c.fs.SetRootAttr = func(RootAttr) error { return unix.ENOSPC } })
		stat(t, m.mnt)
		wantErrno(t, "chmod", os.Chmod(m.mnt, 0o700), unix.ENOSPC)
		before := m.count(metrics.OpGetAttr)
		m.waitFor("the kernel asks again", func() bool {
			stat(t, m.mnt)
			return m.count(metrics.OpGetAttr) > before
		})
	})
}

// A request holds the lock of its directory. What the kernel is told of names must not
// wait for it: a daemon that is killed in that wait could not die, and the request would
// wait for its successor.
func TestToldOfNamesUnderLock(t *testing.T) {
	const opMkdir = 9
	held, release := make(chan struct{}), make(chan struct{})
	m := mountTest(t, func(c *mountConfig) {
		c.fs.before = func(operation uint32) {
			if operation == opMkdir {
				close(held)
				<-release
			}
		}
	})
	stat(t, m.mnt)
	made := make(chan error)
	go func() { made <- os.Mkdir(m.path("dir"), 0o755) }()
	<-held
	defer func() {
		close(release)
		check(t, <-made)
	}()
	m.server.fs.failedName()
	root, err := handle.At(m.root, "")
	check(t, err)
	before := m.count(metrics.OpGetAttr)
	m.waitFor("the kernel is told of something else", func() bool {
		m.server.fs.notify.changed(root)
		stat(t, m.mnt)
		return m.count(metrics.OpGetAttr) > before
	})
}

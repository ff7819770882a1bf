package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/mountinfo"
	"github.com/tierfs/tierfs/tier"
)

// source is the source directory, opened before a mount may cover it, and
// locked against another `tierfs mount` that starts at the same time.
type source struct {
	fd     int
	known  bool        // has been mounted by tierfs before
	bare   bool        // had no .tierfs when it was locked
	before unix.Stat_t // of the directory, as it was found
}

// openSource looks whether the source can be mounted now, and changes nothing
// on disk: the mount points, the processes that use the source, another tierfs.
func openSource(c *config.Config, log *slog.Logger) (*source, error) {
	for _, point := range []string{c.Mount.Mountpoint, c.Mount.Source} {
		if err := clearMount(point, log); err != nil {
			return nil, err
		}
		if err := mustBeDirectory(point); err != nil {
			return nil, err
		}
	}
	fd, err := unix.Open(c.Mount.Source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: c.Mount.Source, Err: err}
	}
	s := &source{fd: fd}
	if err := s.free(c.Mount.Source); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return s, nil
}

// inheritSource is the source of a mount that is taken over: its directory is what the
// predecessor had open, its path leads into the mount.
func inheritSource(keep *holder.Keeper, path string) (*source, error) {
	fd, err := inherit(keep, keptSource)
	if err != nil {
		return nil, err
	}
	s := &source{fd: fd, known: true}
	if err := unix.Fstat(fd, &s.before); err != nil {
		return nil, errors.Join(&os.PathError{Op: "stat", Path: path, Err: err}, unix.Close(fd))
	}
	return s, nil
}

// release gives the source up. One that was not mounted after all is left as it was
// found, so that the broker can start on it.
func (s *source) release(mounted bool) error {
	var err error
	if !mounted {
		err = s.putBack()
	}
	return errors.Join(err, unix.Close(s.fd))
}

// putBack removes what this start has made of a source that had nothing of tierfs,
// and opens the directory again for whom it was open.
func (s *source) putBack() error {
	var st unix.Stat_t
	if s.bare && !errors.Is(unix.Fstatat(s.fd, ".tierfs", &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
		if err := os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/.tierfs", s.fd)); err != nil {
			return err
		}
	}
	var now unix.Stat_t
	if err := unix.Fstat(s.fd, &now); err != nil {
		return fmt.Errorf("stat of the source: %w", err)
	}
	if now.Uid != s.before.Uid || now.Gid != s.before.Gid {
		if err := unix.Fchown(s.fd, int(s.before.Uid), int(s.before.Gid)); err != nil {
			return fmt.Errorf("chown of the source: %w", err)
		}
	}
	if now.Mode != s.before.Mode {
		if err := unix.Fchmod(s.fd, s.before.Mode&0o7777); err != nil {
			return fmt.Errorf("chmod of the source: %w", err)
		}
	}
	return nil
}

// free says who uses the source, if anybody does.
func (s *source) free(path string) error {
	if err := s.lock(path); err != nil {
		return err
	}
	u, used, err := whoUsesSource(path)
	if used {
		return fmt.Errorf("%s is in use: %s open; stop it, mount, and start it again", path, u)
	}
	return err
}

// lock keeps others from starting on the same source, sees whether one has it
// already, and notes how the source is found.
func (s *source) lock(path string) (err error) {
	if err := unix.Flock(s.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return inUse(path)
	}
	if s.known, err = tier.Known(s.fd); err != nil {
		return fmt.Errorf("%s/.tierfs: %w", path, err)
	}
	if err := unix.Fstat(s.fd, &s.before); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	var st unix.Stat_t
	s.bare = errors.Is(unix.Fstatat(s.fd, ".tierfs", &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT)
	lock, err := unix.Openat(s.fd, ".tierfs/lock", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s/.tierfs/lock: %w", path, err)
	}
	defer unix.Close(lock)
	if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return inUse(path)
	}
	return nil
}

func inUse(path string) error {
	return fmt.Errorf("%s: another tierfs serves this source; `findmnt -t %s` shows where, `tierfs unmount` ends it", path, mountinfo.FSType)
}

// mustBeDirectory says in one line why a path cannot be mounted.
func mustBeDirectory(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: there is no such directory; make it, or correct the path", path)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s: not a directory; name the directory that the broker writes to", path)
	}
	return nil
}

// answerGrace is how long a mount may take to answer before it counts as stuck.
const answerGrace = 10 * time.Second

// clearMount detaches dead tierfs mounts from a path, and refuses living ones.
func clearMount(path string, log *slog.Logger) error {
	for {
		m, ok, err := mountinfo.At(path)
		if err != nil {
			return err
		}
		if !ok || m.Type != mountinfo.FSType {
			return nil
		}
		alive, err := answers(m.Point)
		if err != nil {
			return err
		}
		if alive {
			return fmt.Errorf("%s is mounted by tierfs already; `tierfs unmount %[1]s` ends that mount, `tierfs upgrade %[1]s` hands it over to this binary", m.Point)
		}
		log.Warn("replacing a dead tierfs mount", "mountpoint", m.Point, "volume", m.Source)
		if err := unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("detach the dead mount on %s: %w", m.Point, err)
		}
	}
}

// answers says whether the daemon of a mount lives. statfs always asks it.
func answers(point string) (bool, error) {
	result := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		result <- unix.Statfs(point, &st)
	}()
	timer := time.NewTimer(answerGrace)
	defer timer.Stop()
	select {
	case err := <-result:
		if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) {
			return false, nil
		}
		return true, nil // an error of a daemon is an answer
	case <-timer.C: // the goroutine ends with this process, which ends now
		return false, fmt.Errorf("the tierfs mount on %s does not answer; end its process, then mount again", filepath.Clean(point))
	}
}

// raiseFileLimit lets this process open as many files as it may.
func raiseFileLimit(log *slog.Logger) {
	limit, err := holder.RaiseFileLimit()
	switch {
	case err != nil:
		log.Warn("the limit of open files stays as it is", "err", err)
	case limit < 65536:
		log.Warn("the limit of open files is low for a broker; raise LimitNOFILE", "limit", limit)
	}
}

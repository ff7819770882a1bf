package tier

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
)

// On a disk without a free block or inode, uploads and evictions are what makes
// room, and both need a little themselves: an intent, a record, a directory that
// grows. The reserve keeps that much for them: small files of tierfs in
// .tierfs/reserve, of which one is removed when a durable step meets ENOSPC, which is
// then tried again. They are made anew when there is room.
const (
	reserveDir   = "reserve"
	reserveFiles = 8
	reserveBytes = 32 << 10 // of each
	// reserveTries is how many files one step may use up: another process may be
	// faster than the step, and one step is not to spend it all on that.
	reserveTries = 3
	// reserveRoom is how much of the disk must be free, in bytes, before the reserve
	// takes anything.
	reserveRoom = 4 * reserveFiles * reserveBytes
)

// reserve is safe for use in parallel. Its lock is a leaf.
type reserve struct {
	log   *slog.Logger
	point func(name string, do func() error) error

	mu   sync.Mutex
	dir  int              // -1: there is none
	have map[int]struct{} // numbers of the files that are there
}

// open finds what is there. A volume without a reserve works as long as the disk has
// room, so nothing that goes wrong here is an error.
func (r *reserve) open(state int) {
	r.dir, r.have = -1, map[int]struct{}{}
	dir, err := durable.Mkdir(state, reserveDir, 0o700)
	if err != nil {
		r.log.Warn("there is no reserve: uploads and evictions stop if the disk is full to the last block", "err", err)
		return
	}
	r.dir = dir
	for i := range reserveFiles {
		var st unix.Stat_t
		if err := fstatat(dir, reserveFile(i), &st); err != nil {
			continue
		}
		if st.Blocks*512 < reserveBytes { // one that a crash cut short
			_ = unlinkat(dir, reserveFile(i), 0) // or take finds it
			continue
		}
		r.have[i] = struct{}{}
	}
}

func (r *reserve) close() {
	if r.dir >= 0 {
		_ = unix.Close(r.dir)
	}
}

func reserveFile(i int) string { return fmt.Sprintf("%02d", i) }

// during runs a durable step; where the disk has no room for it, it is tried again
// with what the reserve gives back.
func (r *reserve) during(do func() error) error {
	for tries := 0; ; tries++ {
		err := do()
		if !errors.Is(err, unix.ENOSPC) || tries == reserveTries || !r.give() {
			return err
		}
	}
}

// any reports whether there is something to give back.
func (r *reserve) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.have) > 0
}

// give removes one file; false: there is none. What the file had is free when the
// directory is durable: before that, a file system may not use it again.
func (r *reserve) give() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.have {
		err := r.point("reserve:give", func() error { return durable.Unlink(r.dir, reserveFile(i)) })
		if errors.Is(err, unix.ENOENT) { // somebody else made room
			delete(r.have, i)
			continue
		}
		if err != nil {
			r.log.Warn("cannot give back a part of the reserve", "err", err)
			return false
		}
		delete(r.have, i)
		r.log.Info("the disk is full; a part of the reserve is given back", "left", len(r.have)*reserveBytes)
		return true
	}
	return false
}

// take fills the reserve up if the disk has room.
func (r *reserve) take() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir < 0 || len(r.have) == reserveFiles {
		return
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(r.dir, &st); err != nil || int64(st.Bavail)*st.Bsize < reserveRoom {
		return
	}
	for i := range reserveFiles {
		if _, ok := r.have[i]; ok {
			continue
		}
		if err := r.point("reserve:take", func() error { return takeFile(r.dir, reserveFile(i)) }); err != nil {
			r.log.Warn("cannot take a part of the reserve", "err", err)
			return
		}
		r.have[i] = struct{}{}
	}
}

// takeFile makes a file that has its blocks. Nothing is lost if a crash takes it
// back, so it is not synced.
func takeFile(dir int, name string) error {
	fd, err := openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = retry(func() error { return unix.Fallocate(fd, 0, 0, reserveBytes) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = fdWriter(fd).WriteAt(make([]byte, reserveBytes), 0)
	}
	if err != nil {
		_ = unlinkat(dir, name, 0) // the next try truncates it
		return pathError("fallocate", name, err)
	}
	return nil
}

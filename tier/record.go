package tier

import (
	"cmp"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/marker"
)

// The record beside a file, N.uploaded, keeps the file's times as its own as soon
// as a step is about to move those of the file: a crash in between does not make
// an old segment a new one, which retention would keep.

// writeRecord puts a record beside the visible name, with the times of its file.
func writeRecord(dir int, name string, rec marker.Record, t times) error {
	if err := marker.Write(dir, uploadedName(name), rec); err != nil {
		return err
	}
	return timeRecord(dir, name, t)
}

// timeRecord gives the record beside the visible name the times of its file,
// durably.
func timeRecord(dir int, name string, t times) error {
	fd, err := openat(dir, uploadedName(name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := putBack(fd, t); err != nil {
		return err
	}
	return durable.SyncFile(fd)
}

// recordTimes returns the times that the record beside the visible name keeps.
func recordTimes(dir int, name string) (times, error) {
	var st unix.Stat_t
	err := fstatat(dir, uploadedName(name), &st)
	return timesOf(&st), err
}

// firmMarker ends what a predecessor began that was killed when it had written the
// record into the inode: the file gets its times back, and is durable. Until then
// the record beside it is needed.
func firmMarker(d Dir, name string) error {
	fd, err := openat(d.FD, remoteName(name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return pathError("stat", remoteName(name), err)
	}
	kept, err := recordTimes(d.FD, name)
	if err != nil {
		return err
	}
	// The record may be the one that has yet to get them: then it is the newer one.
	if own := timesOf(&st); kept[1].Nano() < own[1].Nano() {
		if err := putBack(fd, kept); err != nil {
			return err
		}
	}
	return durable.SyncFile(fd)
}

// markRemote writes the record into the file's own inode, which loses its bytes
// and has the given times afterwards. It tells whether the bytes are gone, also
// when it fails. The caller holds the file's lock exclusively.
func (v *Volume) markRemote(step string, fd int, rec marker.Record, t times) (emptied bool, err error) {
	err = v.step(step, func() error {
		if err := unix.Ftruncate(fd, 0); err != nil {
			return pathError("truncate", "", err)
		}
		emptied = true
		b := rec.Marshal()
		if n, err := unix.Pwrite(fd, b[:], 0); err != nil || n != len(b) {
			return pathError("write", "", cmp.Or(err, error(unix.EIO)))
		}
		if err := putBack(fd, t); err != nil {
			return err
		}
		return pathError("fsync", "", unix.Fsync(fd))
	})
	return emptied, err
}

// unlinkRecord removes the record beside a file. The caller holds its lock.
func (v *Volume) unlinkRecord(step string, f *File) error {
	if len(f.links) == 0 {
		return nil
	}
	dir, err := v.openDir(f.home.dir)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return v.step(step, func() error { return durable.Unlink(dir, uploadedName(f.home.name)) })
}

// Package durable holds the ways to put something on disk so that a crash, of
// the process or of the machine, at any point leaves either the state from
// before the call or the state after it.
//
// When a function returns nil, the new state survives a power loss. When it
// returns an error, the state is the old one or the new one, never a third;
// it is the new one, perhaps not yet durable, only if the last step failed, the
// fsync of a directory: then the disk is failing.
//
// Directories are file descriptors, names are single path components: nothing
// is reached by path, so nothing depends on what is mounted over the source. A
// directory descriptor may be O_PATH; since fsync refuses one, "." is opened
// below it for the duration of the call. Symlinks are never followed. System calls that a
// signal interrupts are repeated.
//
// On disk there is never more than the caller asked for, except that a crash
// can leave temporary files and empty directories whose names begin with
// TempPrefix; SweepTemp removes them.
//
// To see a name is not proof that it is durable: the process that made it may
// have been killed before its fsync. A successor calls SweepTemp or SyncDir for
// a directory before it acts on what it finds there.
//
// All functions may be called in parallel, SweepTemp with the exception that
// it says. Errors are *fs.PathError or *os.LinkError around the errno and name
// the file with its directory. The file system must support renameat2 with
// RENAME_NOREPLACE, as ext4, XFS, btrfs, tmpfs and overlayfs do.
package durable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// TempPrefix begins the name of every temporary file and directory. Names that
// begin with it are refused (EINVAL).
const TempPrefix = ".tierfs-tmp-"

// WriteFile makes data the whole content of name, with exactly the permission
// bits perm whatever the umask, replacing what was there: temporary file,
// fsync, rename, fsync of the directory. A reader sees the old file or the new.
func WriteFile(dir int, name string, data []byte, perm uint32) error {
	return disk{}.writeFile(dir, name, data, perm, 0)
}

// CreateFile is WriteFile for a name that must not exist: if it does, whatever
// it is, the error is EEXIST and it stays as it is. Of several callers at once
// exactly one succeeds.
func CreateFile(dir int, name string, data []byte, perm uint32) error {
	return disk{}.writeFile(dir, name, data, perm, unix.RENAME_NOREPLACE)
}

// Rename renames oldName to newName, replacing what was there, and fsyncs both
// directories, the new one first, or the one if they are the same. The file's
// content is not synced. As in POSIX, it does nothing if both names are links
// to one inode.
func Rename(oldDir int, oldName string, newDir int, newName string) error {
	return disk{}.rename(oldDir, oldName, newDir, newName, 0)
}

// RenameNoReplace is Rename for a new name that must not exist; EEXIST if it
// does.
func RenameNoReplace(oldDir int, oldName string, newDir int, newName string) error {
	return disk{}.rename(oldDir, oldName, newDir, newName, unix.RENAME_NOREPLACE)
}

// Unlink removes name, which is no directory, and fsyncs the directory. It
// frees nothing while a link or a descriptor of the inode is left.
func Unlink(dir int, name string) error {
	return disk{}.unlink(dir, name)
}

// Mkdir opens the directory name, made durably if it is missing, with exactly
// the permission bits perm whatever the umask; one that is there keeps its
// own. The parent is fsynced in either case. The descriptor is a readable one,
// for the caller to close. ENOTDIR if name is something else.
func Mkdir(dir int, name string, perm uint32) (fd int, err error) {
	return disk{}.mkdir(dir, name, perm)
}

// MkdirAll is Mkdir for each component of path, which is relative to dir and
// has components that are separated by single slashes; ".." is refused. A
// crash can leave the first ones made and the others not.
func MkdirAll(dir int, path string, perm uint32) (fd int, err error) {
	return disk{}.mkdirAll(dir, path, perm)
}

// SyncDir makes the names in dir, as they are at the call, durable.
func SyncDir(dir int) error {
	return disk{}.syncDir(dir)
}

// SyncFile makes the content and the attributes of the open file fd durable,
// not its name. After an error the content is unknown: the kernel reports a
// failed write once and then calls the page clean.
func SyncFile(fd int) error {
	return disk{}.fsync(fd)
}

func (d disk) writeFile(dir int, name string, data []byte, perm uint32, flags uint) error {
	if err := checkName("write", dir, name); err != nil {
		return err
	}
	dir, done, err := d.syncable(dir)
	if err != nil {
		return err
	}
	defer done()
	temp, err := d.writeTemp(dir, data, perm)
	if err != nil {
		return err
	}
	if err := d.renameat2(dir, temp, dir, name, flags); err != nil {
		d.discard(dir, temp, 0)
		return err
	}
	return d.fsync(dir)
}

// writeTemp leaves a synced file of its own name, or nothing.
func (d disk) writeTemp(dir int, data []byte, perm uint32) (string, error) {
	for {
		name := tempName()
		fd, err := d.open(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return "", err
		}
		err = d.fill(fd, dir, name, data, perm)
		d.close(fd)
		if err != nil {
			d.discard(dir, name, 0)
			return "", err
		}
		return name, nil
	}
}

func (d disk) fill(fd, dir int, name string, data []byte, perm uint32) error {
	for len(data) > 0 {
		n := 0
		err := d.call("write", dir, name, func() (err error) {
			n, err = unix.Write(fd, data)
			return err
		})
		if err != nil {
			return err
		}
		data = data[n:]
	}
	if err := d.call("fchmod", dir, name, func() error { return unix.Fchmod(fd, perm) }); err != nil {
		return err
	}
	return d.call("fsync", dir, name, func() error { return unix.Fsync(fd) })
}

func (d disk) rename(oldDir int, oldName string, newDir int, newName string, flags uint) error {
	if err := checkName("rename", oldDir, oldName); err != nil {
		return err
	}
	if err := checkName("rename", newDir, newName); err != nil {
		return err
	}
	same, err := d.sameDir(oldDir, newDir)
	if err != nil {
		return err
	}
	oldDir, doneOld, err := d.syncable(oldDir)
	if err != nil {
		return err
	}
	defer doneOld()
	newDir, doneNew, err := d.syncable(newDir)
	if err != nil {
		return err
	}
	defer doneNew()
	if err := d.renameat2(oldDir, oldName, newDir, newName, flags); err != nil {
		return err
	}
	// The new name first: a file with two names is found again, one with
	// none is lost.
	if err := d.fsync(newDir); err != nil || same {
		return err
	}
	return d.fsync(oldDir)
}

func (d disk) unlink(dir int, name string) error {
	if err := checkName("unlink", dir, name); err != nil {
		return err
	}
	dir, done, err := d.syncable(dir)
	if err != nil {
		return err
	}
	defer done()
	if err := d.unlinkat(dir, name, 0); err != nil {
		return err
	}
	return d.fsync(dir)
}

func (d disk) mkdir(dir int, name string, perm uint32) (int, error) {
	if err := checkName("mkdir", dir, name); err != nil {
		return -1, err
	}
	dir, done, err := d.syncable(dir)
	if err != nil {
		return -1, err
	}
	defer done()
	fd, err := d.openDir(dir, name)
	if errors.Is(err, unix.ENOENT) {
		fd, err = d.makeDir(dir, name, perm)
	}
	if errors.Is(err, unix.EEXIST) { // somebody else was faster
		fd, err = d.openDir(dir, name)
	}
	if err != nil {
		return -1, err
	}
	if err := d.fsync(dir); err != nil {
		d.close(fd)
		return -1, err
	}
	return fd, nil
}

// makeDir makes a directory under a temporary name first, so that it never
// stands under its own name with another mode.
func (d disk) makeDir(dir int, name string, perm uint32) (int, error) {
	temp := tempName()
	err := d.call("mkdirat", dir, temp, func() error { return unix.Mkdirat(dir, temp, 0o700) })
	if err != nil {
		return -1, err
	}
	fd, err := d.openDir(dir, temp)
	if err == nil {
		if err = d.fill(fd, dir, temp, nil, perm); err == nil {
			err = d.renameat2(dir, temp, dir, name, unix.RENAME_NOREPLACE)
		}
		if err != nil {
			d.close(fd)
		}
	}
	if err != nil {
		d.discard(dir, temp, unix.AT_REMOVEDIR)
		return -1, err
	}
	return fd, nil
}

func (d disk) mkdirAll(dir int, path string, perm uint32) (int, error) {
	fd := dir
	for component := range strings.SplitSeq(path, "/") {
		child, err := d.mkdir(fd, component, perm)
		if fd != dir {
			d.close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = child
	}
	return fd, nil
}

func tempName() string {
	var b [8]byte
	rand.Read(b[:])
	return TempPrefix + hex.EncodeToString(b[:])
}

package powercut

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
)

// patience bounds every wait for what has to come.
const patience = 60 * time.Second

const diskSize = 96 << 20

// disk is a loop device over the image of a child process, with an ext4 that is mounted.
type disk struct {
	dir    string
	point  string // where the ext4 is
	server *child.Process
	orders io.WriteCloser
	says   *os.File // of the server; has deadlines
	lines  *bufio.Reader
}

// newDisk makes a disk in dir, which must exist, and mounts it at point.
func newDisk(ctx context.Context, dir, point string) (_ *disk, err error) {
	d := &disk{dir: dir, point: point}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	base := filepath.Join(dir, baseFile)
	if err := errors.Join(os.WriteFile(base, nil, 0o600), os.Truncate(base, diskSize), os.Mkdir(filepath.Join(dir, viewDir), 0o700)); err != nil {
		return nil, err
	}
	// A small journal has to be emptied into the blocks' own places all the time.
	mkfs := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-b", "4096", "-N", "8192", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0", base)
	if out, err := mkfs.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	if err := clone(base, filepath.Join(dir, stateFile)); err != nil {
		return nil, err
	}
	if err := d.serve(ctx); err != nil {
		return nil, err
	}
	return d, mountImage(filepath.Join(dir, viewDir, imageFile), point, true)
}

func (d *disk) serve(ctx context.Context) error {
	theirs, mine, err := os.Pipe()
	if err != nil {
		return err
	}
	d.orders = mine
	defer theirs.Close()
	says, out, err := os.Pipe()
	if err != nil {
		return err
	}
	d.says, d.lines = says, bufio.NewReader(says)
	defer out.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), diskEnv+"="+d.dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, out, os.Stderr
	if d.server, err = child.Start(cmd); err != nil {
		return err
	}
	return d.expect(ctx, "ready")
}

// expect reads a line of the server into what follows the words of the format.
func (d *disk) expect(ctx context.Context, format string, into ...any) error {
	if err := d.says.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = d.says.SetReadDeadline(time.Now()) })()
	line, err := d.lines.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, format, into...)
	}
	if err != nil {
		return fmt.Errorf("the disk should say %q, it says %q: %w", format, line, err)
	}
	return nil
}

// still lets the disk stand still, and calls f meanwhile with the number of entries of the log. It gives up when ctx ends.
func (d *disk) still(ctx context.Context, order string, after int, f func(entries int) error) error {
	if _, err := fmt.Fprintf(d.orders, "%s %d\n", order, after); err != nil {
		return err
	}
	var entries int
	err := d.expect(ctx, "still %d", &entries)
	if err == nil {
		err = f(entries)
	}
	_, thaw := fmt.Fprintln(d.orders, "thaw") // whoever gives up still lets it go on, then or later
	return errors.Join(err, thaw)
}

// close takes everything down, whatever state it is in: the process last, since the loop device cannot let go of a file that nobody serves.
func (d *disk) close() error {
	var errs []error
	errs = append(errs, unmount(d.point))
	if d.server != nil {
		errs = append(errs, unmount(filepath.Join(d.dir, viewDir)))
		select {
		case <-d.server.Done():
			if err := d.server.Err(); err != nil {
				errs = append(errs, fmt.Errorf("the disk's process: %w", err))
			}
		case <-time.After(patience):
			errs = append(errs, errors.New("the disk's process did not end"), d.server.Kill())
		}
	}
	if d.orders != nil {
		errs = append(errs, d.orders.Close())
	}
	if d.says != nil {
		errs = append(errs, d.says.Close())
	}
	return errors.Join(errs...)
}

// mountImage mounts the ext4 in the file at path by a loop device that goes when the mount does. With direct, the device must hand each request
// to the file, past the page cache.
func mountImage(path, point string, direct bool) error {
	image, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	device, err := attach(image, direct)
	if err != nil {
		return fmt.Errorf("loop device of %s: %w", path, err)
	}
	defer device.Close() // goes by itself when nothing is mounted from it
	// By itself ext4 would write a file's bytes before it renames the file over another: a help that tierfs must not need.
	if err := unix.Mount(device.Name(), point, "ext4", unix.MS_NOATIME, "noauto_da_alloc,errors=remount-ro"); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

func attach(image *os.File, direct bool) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd())}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	if direct {
		config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	for deadline := time.Now().Add(patience); ; {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, passes(n, direct, device)
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) { // another process may have been faster
			return nil, err
		}
	}
}

// passes fails unless the device does direct I/O where that was wanted, which the kernel may refuse without a word.
func passes(n int, direct bool, device *os.File) error {
	is, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/dio", n))
	if err == nil && direct && string(is) != "1\n" {
		err = errors.New("the kernel does no direct I/O on it")
	}
	if err != nil {
		return errors.Join(err, device.Close())
	}
	return nil
}

// unmount takes down what is mounted at a point, if anything is. The kernel may hold it a moment longer than what used it lived.
func unmount(point string) error {
	for deadline := time.Now().Add(patience / 4); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return errors.Join(fmt.Errorf("unmount %s: %w", point, err), unix.Unmount(point, unix.MNT_DETACH))
		}
	}
}

// syncfs writes all of a file system down.
func syncfs(point string) error {
	dir, err := os.Open(point)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}

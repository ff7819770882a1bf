package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/mountinfo"
	"github.com/tierfs/tierfs/tier"
)

// RootAttr are the attributes of the root that the broker sees. The directory below
// is closed to everyone but root.
type RootAttr struct {
	Mode     uint32 // permission bits
	UID, GID uint32
}

// A Keeper holds descriptors that outlive the daemon, by name. Put replaces, Drop of
// what is not there is no error, and Take gives a duplicate.
type Keeper interface {
	Put(name string, fd int) error
	Drop(name string) error
	Take(name string) (fd int, ok bool)
}

// Options say what is mounted where.
type Options struct {
	// Root is a descriptor of the source directory, opened before the mount may
	// cover it; no O_PATH. It stays the caller's and must outlive the server.
	Root   int
	Volume *tier.Volume
	// Mountpoint is an existing directory; it may be the source itself.
	Mountpoint string
	// FsName is the mount's source in /proc/self/mountinfo, by which commands find the daemon.
	FsName string
	// ReadAhead is the kernel's read-ahead in bytes; 0 keeps the kernel's own.
	ReadAhead int64

	RootAttr RootAttr
	// SetRootAttr keeps new attributes of the root, durably; without it chmod and
	// chown of the root fail with EPERM.
	SetRootAttr func(RootAttr) error

	Log     *slog.Logger
	Metrics *metrics.Fuse
}

// A Server is one mount.
type Server struct {
	mountpoint string // without symbolic links
	device     string
	fs         *fileSystem
	done       chan struct{} // closed when nothing of the mount runs any more
}

// Mount mounts the volume and serves it. When it returns, the kernel has accepted
// the session and requests are answered. ctx carries values for requests; its end
// does not unmount, Unmount does.
func Mount(ctx context.Context, opt Options) (*Server, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	point, err := mountinfo.Clean(opt.Mountpoint)
	if err != nil {
		return nil, err
	}
	opt.Mountpoint = point
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	f, err := newFileSystem(base, opt)
	if err != nil {
		stop()
		return nil, err
	}
	session, err := attach(f, opt)
	if err != nil {
		stop()
		return nil, err
	}
	s := &Server{mountpoint: point, fs: f, done: make(chan struct{})}
	n := newNotifier(f.inodes, session)
	f.notify = n
	opt.Volume.OnChange(n.changed)
	go n.run()
	go func() {
		defer close(s.done)
		session.Serve()
		stop()
		opt.Volume.OnChange(nil)
		n.stop()
	}()
	own, err := ownMount(point, opt.FsName)
	if err == nil {
		s.device = own.Device
		err = setReadAhead(own.Device, opt.ReadAhead)
	}
	if err != nil {
		opt.Log.Warn("read-ahead keeps the kernel's default: cold sequential reads are slower", "err", err)
	}
	return s, nil
}

// attach mounts and answers the kernel's INIT.
func attach(f *fileSystem, opt Options) (*fuse.Server, error) {
	fd, err := mountFuse(opt.Mountpoint, opt.FsName)
	if err != nil {
		return nil, err
	}
	f.fuseFD = fd
	session, err := fuse.NewServer(f, fmt.Sprintf("/dev/fd/%d", fd), mountOptions(opt))
	if err != nil {
		_ = unix.Unmount(opt.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		return nil, fmt.Errorf("start the FUSE session on %s: %w", opt.Mountpoint, err)
	}
	missing := wantedFlags &^ session.KernelSettings().Flags64()
	if missing != 0 {
		opt.Log.Warn("the kernel lacks FUSE features: the mount works, but slower", "missing", fmt.Sprintf("%#x", missing))
	}
	return session, nil
}

// Device is the mount's device as in /proc/self/mountinfo, such as "0:57"; "" if
// the mount was never found there.
func (s *Server) Device() string { return s.device }

// endGrace is how long the kernel gets to end the session of a mount that nobody
// is in any more.
const endGrace = 5 * time.Second

// Unmount detaches the mount if nobody is in it, and does not force it: while
// somebody is, it fails with EBUSY (wrapped) and the server goes on. So it does for
// a mount that another one covers, which is not ours to detach, and for one that is
// still seen elsewhere: by a bind mount, or by a process with mounts of its own. A
// mount that is gone already is no error.
func (s *Server) Unmount() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	on, err := mountinfo.Stack(s.mountpoint)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", s.mountpoint, err)
	}
	at := slices.IndexFunc(on, func(m mountinfo.Mount) bool { return m.Device == s.device })
	switch {
	case at < 0 && s.device != "": // somebody else has unmounted it
	case s.device != "" && at != len(on)-1:
		return fmt.Errorf("unmount %s: %s is mounted over it: %w", s.mountpoint, on[len(on)-1].Type, unix.EBUSY)
	default:
		if err := unix.Unmount(s.mountpoint, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", s.mountpoint, err)
		}
	}
	grace := time.NewTimer(endGrace)
	defer grace.Stop()
	select {
	case <-s.done:
		return nil
	case <-grace.C:
		return fmt.Errorf("it is gone from %s, but still mounted elsewhere: %w", s.mountpoint, unix.EBUSY)
	}
}

// Wait returns when the mount is gone, whoever unmounted it, and everything that
// belonged to it has ended.
func (s *Server) Wait() { <-s.done }

// Done is closed when Wait would return.
func (s *Server) Done() <-chan struct{} { return s.done }

// rootOf checks the source's descriptor and returns its handle and attributes.
func rootOf(fd int) (handle.Handle, unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return handle.Handle{}, st, fmt.Errorf("stat the source: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return handle.Handle{}, st, errors.New("the source is not a directory")
	}
	h, err := handle.At(fd, "")
	if err != nil {
		return handle.Handle{}, st, fmt.Errorf("the source's file system has no file handles: %w", err)
	}
	probe, err := h.Open(fd, unix.O_PATH)
	if err != nil {
		return handle.Handle{}, st, fmt.Errorf("open the source by its file handle: %w", err)
	}
	_ = unix.Close(probe)
	return h, st, nil
}

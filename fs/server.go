package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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
	Names() []string // of what is kept
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

	// Writeback asks the kernel to gather writes, if it can send requests again;
	// [Server.Writeback] says whether it does.
	Writeback bool
	// MaxDirty is how many bytes the kernel may hold that were not sent yet, strictly;
	// 0 keeps the kernel's own limit.
	MaxDirty int64
	// NoResend does without resent requests, as on a kernel that knows none.
	NoResend bool
	// Table is where a successor finds the inodes and the open files; it stays the
	// caller's. Without it the mount ends with the daemon.
	Table *holder.Table
	// Keeper keeps descriptors for a successor: of inodes that have lost their last
	// name, by names that begin with "unlinked.".
	Keeper Keeper
	// Fuse is the descriptor of /dev/fuse, for TakeOver alone. The server closes it in
	// the end.
	Fuse int
	// Drained says that the predecessor had answered every request: see [Server.Drain].
	Drained bool

	// Opened is called with the descriptor of /dev/fuse before anything is mounted: who
	// keeps a duplicate of it keeps the mount. It stays the server's.
	Opened func(fuse int) error

	Log     *slog.Logger
	Metrics *metrics.Fuse

	polled bool                   // wait in poll(2) in any case
	before func(operation uint32) // tests: called before a reply is written
}

// A Server is one mount.
type Server struct {
	mountpoint string // without symbolic links
	name       string // device as in /proc/self/mountinfo
	features   uint64 // negotiated with the kernel
	fs         *fileSystem
	stop       context.CancelFunc // ends what requests wait for
	device     *device
	volume     *tier.Volume
	limit      dirtyLimit
	tuned      chan struct{} // closed when limit is set
	left       chan struct{} // closed when no handler runs any more, after leave
	done       chan struct{} // closed when nothing of the mount runs any more
}

// Mount mounts the volume and serves it. When it returns, the kernel has accepted
// the session and requests are answered. ctx carries values for requests; its end
// does not unmount, Unmount does.
func Mount(ctx context.Context, opt Options) (*Server, error) {
	s, err := newServer(ctx, &opt)
	if err != nil {
		return nil, err
	}
	fd, err := mountFuse(opt)
	if err != nil {
		s.stop()
		return nil, err
	}
	s.prepare(fd, opt)
	if err := s.greet(opt); err != nil {
		_ = unix.Unmount(opt.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		s.device.close()
		_ = unix.Close(fd)
		s.stop()
		return nil, fmt.Errorf("start the FUSE session on %s: %w", opt.Mountpoint, err)
	}
	s.serve()
	s.tune(opt)
	return s, nil
}

func newServer(ctx context.Context, opt *Options) (*Server, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	point, err := mountinfo.Clean(opt.Mountpoint)
	if err != nil {
		return nil, err
	}
	opt.Mountpoint = point
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	f, err := newFileSystem(base, *opt)
	if err != nil {
		stop()
		return nil, err
	}
	return &Server{
		mountpoint: point, fs: f, stop: stop, volume: opt.Volume,
		tuned: make(chan struct{}), left: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// prepare makes the device of a descriptor of /dev/fuse.
func (s *Server) prepare(fd int, opt Options) {
	s.fs.fuseFD = fd
	s.device = newDevice(fd, fuse.NewProtocolServer(s.fs, mountOptions(opt)), opt.Log, s.stop)
	s.device.before = opt.before
}

// greet answers the kernel's INIT.
func (s *Server) greet(opt Options) error {
	err := s.device.hello(func(request []byte) {
		if opt.Writeback && (opt.NoResend || offered(request)&fuse.CAP_HAS_RESEND == 0) {
			opt.Writeback = false // what a dead daemon had of it would be lost
			s.device.protocol = fuse.NewProtocolServer(s.fs, mountOptions(opt))
		}
	}, func(request, reply []byte) error {
		s.features = negotiated(reply)
		if missing := wantedFlags &^ offered(request); missing != 0 {
			opt.Log.Warn("the kernel lacks FUSE features: the mount works, but slower", "missing", fmt.Sprintf("%#x", missing))
		}
		if opt.Table == nil {
			return nil
		}
		return opt.Table.SetInit(request, reply)
	})
	if err != nil {
		return err
	}
	return s.device.setPolled(opt.polled || !s.Resend())
}

// serve starts everything that runs as long as the mount.
func (s *Server) serve() {
	f := s.fs
	f.notify = newNotifier(f.inodes, s.device)
	s.volume.OnChange(f.notify.changed)
	f.writeback = s.Writeback()
	s.volume.OnFull(f.filled)
	f.filled(f.full())
	go f.notify.run()
	s.device.start()
	go s.finish()
}

// finish waits for the end of the device, and then of everything else.
func (s *Server) finish() {
	defer close(s.done)
	var asking sync.WaitGroup
	asking.Go(func() {
		s.fs.askKernel(s.device.ended, func(node uint64) fuse.Status {
			return s.device.InodeNotify(node, attributes, 0)
		})
	})
	asking.Go(func() { s.keepLimit(time.Tick(limitLook)) })
	asking.Go(func() { s.fs.owed.watch(s.device.ended, s.fs.failedName) })
	<-s.device.ended
	s.volume.OnChange(nil)
	if s.device.silent.Load() {
		s.fs.abandon()
		close(s.left)
	}
	asking.Wait()
	s.fs.notify.stop()
	s.device.close()
	if !s.device.silent.Load() {
		_ = unix.Close(s.device.fd)
		s.fs.OnUnmount()
	}
}

// tune sets what only the kernel's table of block devices can.
func (s *Server) tune(opt Options) {
	defer close(s.tuned)
	own, err := ownMount(s.mountpoint, opt.FsName)
	if err == nil {
		s.name = own.Device
		if opt.Table != nil {
			if err := opt.Table.SetMount(own.Device, opt.FsName); err != nil {
				opt.Log.Error("a successor will not know its mount", "err", err)
			}
		}
		if s.Writeback() {
			s.limit = dirtyLimit{own.Device, opt.MaxDirty}
			switch err := s.limit.set(); {
			case errors.Is(err, errNoLeast):
				opt.Log.Warn("appends may be slower than they could be", "err", err)
			case err != nil:
				opt.Log.Error("the kernel's own limit of unwritten bytes holds, and may be more than the reserve", "err", err)
			}
		}
		err = setReadAhead(own.Device, opt.ReadAhead)
	}
	if err != nil {
		opt.Log.Warn("read-ahead keeps the kernel's default: cold sequential reads are slower", "err", err)
	}
}

// keepLimit sets the limit of unwritten bytes again whenever it has moved.
func (s *Server) keepLimit(look <-chan time.Time) {
	select {
	case <-s.tuned:
	case <-s.device.ended:
		return
	}
	for {
		select {
		case <-look:
		case <-s.device.ended:
			return
		}
		if err := s.limit.keep(); err != nil && !errors.Is(err, errNoLeast) { // which was said at the start
			s.device.log.Warn("how much the kernel may gather cannot be kept to the limit", "err", err)
		}
	}
}

// Resend reports whether the kernel can send unanswered requests again, so that a
// successor gets them.
func (s *Server) Resend() bool { return s.features&fuse.CAP_HAS_RESEND != 0 }

// Writeback reports whether the kernel gathers writes, and owns sizes and times.
func (s *Server) Writeback() bool { return s.features&fuse.CAP_WRITEBACK_CACHE != 0 }

// Lockable reports whether the memory through which requests pass can be locked.
// Without that a crash may fail a request that is under way, and what the kernel has
// gathered with it: such a mount must not ask for Writeback.
func Lockable() bool { return probeLock() == nil }

// Drain makes the server read no further request and waits until those that it has
// read are answered: then a successor may take the mount over although nothing is
// resent. If ctx ends first, the server goes on and the error says so. Only for a
// mount without Resend; Continue takes it back.
func (s *Server) Drain(ctx context.Context) error { return s.device.drain(ctx) }

// Continue serves on after Drain.
func (s *Server) Continue() { s.device.start() }

// Err is why the server ended although the mount may still be there; nil while it
// serves, and after an unmount.
func (s *Server) Err() error { return s.device.cause() }

// Device is the mount's device as in /proc/self/mountinfo, such as "0:57"; "" if
// the mount was never found there.
func (s *Server) Device() string { return s.name }

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
	at := slices.IndexFunc(on, func(m mountinfo.Mount) bool { return m.Device == s.name })
	switch {
	case at < 0 && s.name != "": // somebody else has unmounted it
	case s.name != "" && at != len(on)-1:
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

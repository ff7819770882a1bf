package tier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/durable"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
)

// Options configure a volume.
type Options struct {
	// Root is a descriptor of the source directory, opened before a mount covers
	// it. It stays the caller's and must outlive the volume.
	Root int
	// Layout is a fixed layout, or empty to decide it when its signs appear.
	Layout layout.Kind
	// QuietTime is how long a generic file must rest before it counts as sealed.
	QuietTime time.Duration

	Store  objstore.Store    // nil: nothing is tiered, remote segments cannot be read
	Cache  *chunkcache.Cache // nil together with Store
	Prefix string            // of all keys
	// Name is a readable name for the volume, used in keys when it is minted.
	Name string
	// TakeOwnership lets this mount take the volume over from another instance.
	TakeOwnership bool

	// FetchTimeout is how long a cold read waits; 0: the layout's; negative: for ever.
	FetchTimeout time.Duration
	// MaxBlocked is how many cold reads may wait longer than BusyTimeout at once; 0:
	// the layout's.
	MaxBlocked int
	// BusyTimeout is what each read may wait, and what the others wait at most.
	BusyTimeout time.Duration

	// Lock is a descriptor of .tierfs/lock that somebody holds locked for this process
	// (see LockFD): the volume works under that lock, which outlives it. It stays the
	// caller's. 0: Open takes the lock itself.
	Lock int
	// Takeover says that the broker lives and has files open: this process succeeds one
	// that served the volume until just now, and requests that were not answered come
	// again. The caller enters every handle ([Volume.FileOf], [File.Opened]) before it
	// starts to upload, evict or retire. Open is then quick: what takes long to decide
	// (see scanner.unfinished) is decided later.
	Takeover bool

	// Writeback says that the kernel keeps what the broker wrote and sends it later: see
	// flushed.go for what follows from it.
	Writeback bool
	// Flush makes the kernel send all that it holds of a file, by an fsync through the
	// mount: the FSYNC then comes in, and [File.Syncing] learns of it. path is the file's
	// below the mount's root, ino its inode number: another file of that name is an
	// error. It must end with ctx, and must not run in this process, which could not be
	// killed while it waits for itself. It is called from the goroutines of Prove and
	// Evict, with no lock held. nil: what only it could do is not done.
	Flush func(ctx context.Context, path string, ino uint64) error
	// DirtyCap is how many bytes the kernel may hold at most where it writes back: Open
	// keeps a reserve for them, see [Volume.LateReserve]. 0: none.
	DirtyCap int64

	// DeleteGrace is how long an object outlives its segment.
	DeleteGrace time.Duration

	Log     *slog.Logger
	Metrics *metrics.Tier // nil counts nothing
	// Step, if set, is called before and after each durable step with its name
	// ("evict:rename", then "evict:rename:done"). Tests stop or kill there.
	Step func(name string)

	quick int64 // quickSize, of tests; 0: that
}

// Volume is a source directory with its catalog. All methods may be called in
// parallel.
type Volume struct {
	opt  Options
	root int
	log  *slog.Logger
	dirs stateDirs

	planner planner
	asking  chan struct{} // cap 1: held while the store is asked who owns the volume
	asked   asked

	swaps    swaps
	starts   starts
	reserve  reserve
	retained retained
	ticks    ticks
	late     late

	mu         sync.RWMutex // guards what follows
	id         Identity     // only its epoch and nonce change after Open
	rules      layout.Rules // nil while the layout is undecided
	files      map[handle.Handle]*File
	partitions map[handle.Handle]*Partition
	registry   map[marker.Incarnation]registryEntry
	tombstones map[string]*Tombstone      // by name
	unlinked   map[handle.Handle]nameless // inodes without a name that a predecessor may have left open
	vacant     []marker.Incarnation       // of directories that were removed, until the next retirement
	unplaced   bool                       // a hole in a partition whose incarnation nobody knows
	watches    []*Watch
	onChange   func(handle.Handle)
	owner      ownerState

	retire chan struct{} // cap 1: something may be due for retirement
}

// stateDirs are descriptors of the directories below .tierfs.
type stateDirs struct {
	base, partitions, intents, tombstones int
	lock                                  int
}

// ErrLocked: another process serves the volume.
var ErrLocked = errors.New("another tierfs serves this source")

// Known reports whether the source has been mounted by tierfs before.
func Known(root int) (bool, error) {
	var st unix.Stat_t
	err := unix.Fstatat(root, stateDir+"/"+volumeFile, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Open takes the volume's lock, mints its identity at the first mount, raises its
// epoch, reads the catalog (names and records, no segment data), and finishes or
// undoes what a crash left half done. Nothing of it needs the store. It fails
// with [ErrLocked] when another process serves the volume.
func Open(ctx context.Context, opt Options) (*Volume, error) {
	v := &Volume{
		opt: opt, root: opt.Root, log: opt.Log,
		files:      map[handle.Handle]*File{},
		partitions: map[handle.Handle]*Partition{},
		registry:   map[marker.Incarnation]registryEntry{},
		tombstones: map[string]*Tombstone{},
		unlinked:   map[handle.Handle]nameless{},
		retire:     make(chan struct{}, 1),
		asking:     make(chan struct{}, 1),
	}
	v.planner.v = v
	v.swaps.init()
	v.retained.dir, v.late.fd = -1, -1
	if v.log == nil {
		v.log = slog.New(slog.DiscardHandler)
	}
	if err := v.openState(); err != nil {
		return nil, err
	}
	v.reserve.log, v.reserve.point, v.late.log = v.log, v.point, v.log
	v.reserve.open(v.dirs.base)
	v.ticks.begin(opt.Takeover)
	if err := v.boot(ctx); err != nil {
		_ = v.Close()
		return nil, err
	}
	v.ticks.booted()
	v.reserve.take()
	v.late.open(v.reserve.dir, opt.DirtyCap)
	return v, nil
}

func (v *Volume) boot(ctx context.Context) error {
	if err := v.loadIdentity(); err != nil {
		return err
	}
	if err := v.loadRegistry(); err != nil {
		return err
	}
	if err := v.decideLayout(); err != nil {
		return err
	}
	if err := v.scan(ctx); err != nil {
		return err
	}
	return nil
}

func (v *Volume) openState() (err error) {
	d := &v.dirs
	*d = stateDirs{-1, -1, -1, -1, -1}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.base, err = durable.Mkdir(v.root, stateDir, 0o700); err != nil {
		return err
	}
	if d.lock, err = takeLock(d.base, v.opt.Lock); err != nil {
		return err
	}
	for _, sub := range []struct {
		fd   *int
		name string
	}{{&d.partitions, "partitions"}, {&d.intents, "intents"}, {&d.tombstones, "tombstones"}} {
		if *sub.fd, err = durable.Mkdir(d.base, sub.name, 0o700); err != nil {
			return err
		}
	}
	for _, fd := range []int{d.base, d.partitions, d.intents, d.tombstones} {
		if err = durable.SweepTemp(fd); err != nil {
			return err
		}
	}
	return nil
}

// takeLock locks .tierfs/lock, or makes sure that inherited is that file, locked: 0 is
// no descriptor.
func takeLock(base, inherited int) (fd int, err error) {
	if inherited > 0 {
		fd, err = sameLock(base, inherited)
	} else {
		fd, err = unix.Openat(base, lockFile, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s/%s: %w", stateDir, lockFile, err)
	}
	if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
		return fd, nil
	}
	_ = unix.Close(fd)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return -1, ErrLocked
	}
	return -1, fmt.Errorf("lock %s/%s: %w", stateDir, lockFile, err)
}

// sameLock duplicates an inherited descriptor, if it is of the volume's lock file.
func sameLock(base, inherited int) (int, error) {
	var own, want unix.Stat_t
	if err := unix.Fstat(inherited, &own); err != nil {
		return -1, fmt.Errorf("inherited descriptor %d: %w", inherited, err)
	}
	if err := fstatat(base, lockFile, &want); err != nil {
		return -1, err
	}
	if own.Dev != want.Dev || own.Ino != want.Ino {
		return -1, fmt.Errorf("inherited descriptor %d is of another file", inherited)
	}
	return unix.FcntlInt(uintptr(inherited), unix.F_DUPFD_CLOEXEC, 0)
}

func (d *stateDirs) close() {
	for _, fd := range []int{d.base, d.partitions, d.intents, d.tombstones, d.lock} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// LockFD is a descriptor of .tierfs/lock, locked. It stays the volume's; whoever keeps
// a duplicate of it keeps the lock, also when this process dies, and can hand it to a
// successor (Options.Lock).
func (v *Volume) LockFD() int { return v.dirs.lock }

// Close gives the volume's lock back, unless somebody has a duplicate of LockFD. The
// caller has stopped everything that uses the volume.
func (v *Volume) Close() error {
	v.retained.close()
	v.late.close()
	v.reserve.close()
	v.dirs.close()
	return nil
}

// StateDir is a descriptor of .tierfs, for the cache's default place. It stays
// the volume's.
func (v *Volume) StateDir() int { return v.dirs.base }

// OnChange names the function that is told when attributes of an inode changed
// without the kernel's knowledge. It is called with no lock held.
func (v *Volume) OnChange(f func(handle.Handle)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.onChange = f
}

func (v *Volume) changed(h handle.Handle) {
	v.mu.RLock()
	f := v.onChange
	v.mu.RUnlock()
	if f != nil {
		f(h)
	}
}

// step runs one durable step on the local disk between its two named points. If the
// disk is full, the reserve gives way: a step can be run again after an ENOSPC.
func (v *Volume) step(name string, do func() error) error {
	return v.point(name, func() error { return v.reserve.during(do) })
}

// point runs what is no step of that kind between two named points.
func (v *Volume) point(name string, do func() error) error {
	if v.opt.Step != nil {
		v.opt.Step(name)
	}
	if err := do(); err != nil {
		return err
	}
	if v.opt.Step != nil {
		v.opt.Step(name + ":done")
	}
	return nil
}

// FileOf returns the file of an inode, with a reference that the caller releases.
// One that was unlinked while it was remote, in this life of the volume or in an
// earlier one, still has its bytes, as long as somebody has it open.
func (v *Volume) FileOf(h handle.Handle) *File {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := v.fileLocked(h)
	f.refs++
	return f
}

func (v *Volume) fileLocked(h handle.Handle) *File {
	f := v.files[h]
	if f == nil {
		f = newFile(v, h)
		if n, ok := v.unlinked[h]; ok {
			n.enter(f)
		}
		v.files[h] = f
	}
	return f
}

// known returns the file of an inode if there is one, without a reference.
func (v *Volume) known(h handle.Handle) *File {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.files[h]
}

// dropIfUnused forgets a file that neither the kernel nor the catalog needs. The
// caller holds v.mu. A file with known names is the catalog's.
func (v *Volume) dropIfUnused(f *File) {
	if f.refs > 0 || f.opens.Load() > 0 || f.catalogued {
		return
	}
	delete(v.files, f.handle)
}

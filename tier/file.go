package tier

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/marker"
	"github.com/tierfs/tierfs/segment"
)

// State says where a file's bytes are.
type State uint8

// The states of a file. Leaving and Filling are on the way, each the other's
// mirror: the name below is N.remote already (still), N.uploaded stands beside it,
// and reads go to the store.
const (
	Local       State = iota // in the inode; no object has these bytes
	Uploaded                 // in the inode, and in an object: N.uploaded
	Leaving                  // being evicted: N.remote and N.uploaded, the inode not yet emptied
	Remote                   // in the object only: N.remote
	Filling                  // being rehydrated: N.remote and N.uploaded, the inode being filled
	Quarantined              // N.remote without a usable record: reads fail
)

var stateNames = [...]string{"local", "uploaded", "leaving", "remote", "filling", "quarantined"}

func (s State) String() string { return stateNames[s] }

// remoteNamed reports whether the file's name below is N.remote.
func (s State) remoteNamed() bool { return s >= Leaving }

// readRemotely reports whether a READ goes to the store.
func (s State) readRemotely() bool { return s == Leaving || s == Remote || s == Filling }

// Sentinels of reads and mutations.
var (
	// ErrUnavailable: the store did not give the bytes before the read's deadline.
	ErrUnavailable = errors.New("remote bytes are not available")
	// ErrQuarantined: the record that says where the bytes are is missing or invalid.
	ErrQuarantined = errors.New("segment is quarantined: its record is missing or invalid")
)

// link is one name of a file: the directory and the name as the broker sees it.
type link struct {
	dir  handle.Handle
	name string
}

// A File is the bytes of one inode of the source. There is one for each regular
// file that the kernel knows or the catalog needs, whatever its names; all methods
// may be called in parallel.
type File struct {
	v      *Volume
	handle handle.Handle

	// Guarded by v.mu.
	refs       int  // references of fs
	catalogued bool // the catalog needs the file: a segment, or a name of it has a marker

	// changes counts the mutations of the bytes; an upload is of one value of it.
	changes atomic.Int64
	// mutating counts mutations whose change of the bytes may still be to come.
	mutating atomic.Int64
	// dirty: written through the mount since the last fsync, close or last release for
	// writing.
	dirty  atomic.Bool
	synced atomic.Int64 // the tick of the last fsync that succeeded
	flush  flushPause
	// reopened: dirty may be what nobody knows better, and the broker syncs no more.
	reopened atomic.Bool
	opens    atomic.Int64 // open handles of the broker
	writers  atomic.Int64 // those of them that may write

	// retained is the file's name below .tierfs/unlinked: see retain.
	retained atomic.Pointer[string]

	missed remembered // the last cold read that failed
	// distrusted is the upload whose index is not read from the file beside it any
	// more; 0: none.
	distrusted atomic.Uint64

	// mu is held shared by each mutation and each local READ, and exclusively by
	// the steps that change where the bytes are and by changes of the file's names.
	mu    sync.RWMutex
	state State
	rec   marker.Record // valid unless state is Local or Quarantined
	links []link        // known names, in no order
	home  link          // Uploaded, Leaving, Filling: the name that N.uploaded stands beside
	found bool          // the pair was found at boot and not compared yet
	// compared is 1 more than the changes at which a found pair's bytes were those of
	// its record; 0: nobody has looked.
	compared int64
	why      string // for Quarantined: what is wrong
	times    times  // for Filling: the file's own, which the fill moves below
	fill     *fill  // the rehydration that may write into the inode; nil: none may

	filling chan struct{} // cap 1: held while a rehydration runs
	sizes   sizeMemo

	mutated, retimed func() // ends of mutations, made once: see Mutate
}

func newFile(v *Volume, h handle.Handle) *File {
	f := &File{v: v, handle: h, filling: make(chan struct{}, 1)}
	f.mutated, f.retimed = f.endMutation, f.endRetiming
	return f
}

// Handle identifies the file's inode.
func (f *File) Handle() handle.Handle { return f.handle }

// State is where the bytes are now; it may have changed when the caller looks.
func (f *File) State() State {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state
}

// Record returns the record of the file's object; false when no object has the
// file's bytes.
func (f *File) Record() (marker.Record, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.rec, f.hasRecord()
}

// Changes counts the mutations of the bytes: while it stays the same, so do they.
func (f *File) Changes() int64 { return f.changes.Load() }

// settled returns Changes if no mutation is under way: what is read of the bytes
// from now on is of that count, or of a later one.
func (f *File) settled() (changes int64, ok bool) {
	changes = f.changes.Load()
	return changes, f.mutating.Load() == 0
}

func (f *File) hasRecord() bool { return held(f.state) }

// Stat reads the attributes of an open descriptor of the file as the broker sees
// them: a remote segment has the size of its bytes, one that is being filled its
// own times. Blocks are those below: they tell the truth. The look at the inode
// and the look at where the bytes are are one; no step comes between.
func (f *File) Stat(fd int, st *unix.Stat_t) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := unix.Fstat(fd, st); err != nil {
		return err
	}
	f.show(st)
	return nil
}

// show turns the attributes below into the broker's. The caller has held mu since
// before it read them.
func (f *File) show(st *unix.Stat_t) {
	if f.state == Quarantined && st.Size == 0 {
		st.Size = marker.Size // a read of nothing would succeed, and the kernel does not even ask
	}
	if !f.state.readRemotely() {
		return
	}
	st.Size = f.rec.Size
	if f.state == Filling {
		st.Atim, st.Mtim = f.times[0], f.times[1]
	}
	if len(f.links) == 0 {
		st.Nlink = 0 // the one that is left is its tombstone
	}
}

// Opened counts a handle of the broker; write: one that may write.
func (f *File) Opened(write bool) {
	f.opens.Add(1)
	if write {
		f.writers.Add(1)
	}
}

// Reopened is Opened for a handle from before a takeover. If it may write, nobody knows
// what the kernel holds of the file since then, or since the last fsync.
func (f *File) Reopened(write bool) {
	f.Opened(write)
	if write {
		f.dirty.Store(true)
		f.reopened.Store(true)
	}
}

// Closed undoes Opened. After the last close for writing the file counts as
// clean: the kernel has flushed what it held.
func (f *File) Closed(write bool) {
	if write && f.writers.Add(-1) == 0 {
		f.cleaned()
	}
	if f.opens.Add(-1) == 0 {
		f.v.unretain(f)
		f.v.wakeRetirer()
	}
}

// Writable reports whether the broker has a handle that may write, or a mapping made
// with one.
func (f *File) Writable() bool { return f.writers.Load() > 0 }

// Synced tells that a close through the mount succeeded: the kernel has handed on all
// that it held of the file at that time. It may have taken more meanwhile, so that a
// close by one of several who write says less than an fsync: see Syncing.
func (f *File) Synced() { f.cleaned() }

func (f *File) cleaned() {
	if f.dirty.Swap(false) {
		f.v.touched(f)
	}
}

// Release gives back the reference that Lookup, Create, Link or FileOf took.
func (f *File) Release() {
	v := f.v
	v.mu.Lock()
	defer v.mu.Unlock()
	f.refs--
	v.dropIfUnused(f)
}

// open opens the inode below.
func (f *File) open(flags int) (int, error) {
	return f.handle.Open(f.v.root, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW)
}

// place is the name that the files beside a segment are looked for at: one that
// agrees with the record, or else any. The caller holds mu.
func (f *File) place() (link, bool) {
	for _, l := range f.links {
		if start, _, ok := segment.ParseStem(l.name); ok && start == f.rec.Start {
			return l, true
		}
	}
	if len(f.links) == 0 {
		return link{}, false
	}
	return f.links[0], true
}

func (f *File) addLink(l link) {
	if !slices.Contains(f.links, l) {
		f.links = append(f.links, l)
	}
}

func (f *File) removeLink(l link) {
	f.links = slices.DeleteFunc(f.links, func(have link) bool { return have == l })
}

// moveLink gives a name another place; the record is moved by the caller.
func (f *File) moveLink(old, new link) {
	f.removeLink(old)
	f.addLink(new)
	if f.home == old {
		f.home = new
	}
}

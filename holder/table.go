package holder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// The table, version 1: a memfd that the daemon maps shared. All numbers are in the
// machine's own byte order, and the checksums are the low halves of XXH3-64. What is
// mutable is one aligned word each, outside of the checksums.
//
//	offset  size  field
//	0       8     magic "tierfsHT"
//	8       4     version, u32
//	12      4     checksum, u32, of bytes 0 to 11 and 16 to 31
//	16      8     room for inodes, u64, a multiple of 32
//	24      8     room for handles, u64, a multiple of 64
//	64      8     highest number that a node has had, u64; at least 1, which is the root's
//	72      8     highest number that a handle has had, u64
//	80      8     takeovers so far, u64
//	88      8     1 while the background is paused, else 0
//	96      8     inode slots that were ever in use, u64
//	104     8     handle slots that were ever in use, u64
//	512     272   text: the kernel's INIT request
//	784     272   text: the reply to it
//	1056    272   text: the mount's device, as in mountinfo
//	1328    272   text: the mount's name (its source in mountinfo)
//	4096    16384 64 exchanges of 256 bytes
//	20480   …     the inode slots, of 128 bytes; behind them the handle slots, of 64 bytes
//
// A text has its length (u64; 0: not set), its checksum (u64) and room for 256 bytes.
// A slot is free when its first word is 0.
//
//	inode slot                                        handle slot
//	0   8   number, u64                               0   8   number, u64
//	8   8   lookups, u64, mutable                     8   8   number of the node, u64
//	16  4   mutable: bit 31: a descriptor of it is    16  8   unique of the request that opened it, u64
//	        kept; bits 0 to 15: errno of an fsync     24  4   flags of open(2), u32
//	20  4   type of the file handle, i32              28  4   checksum, u32, of bytes 0 to 27
//	24  2   format (S_IFMT), u16                      32  32  zeros
//	26  1   bytes of the file handle
//	27  1   zero                                      exchange
//	28  4   checksum, u32, of bytes 0 to 7, 20 to     0   8   unique of the request, u64
//	        27 and 32 to 127                          8   8   checksum, u64, of bytes 16 to 255
//	32  96  the file handle, then zeros               16  8   how many there were before, u64
//	                                                  24  8   zeros
//	                                                  32  112 file handle below the first name: type, i32;
//	                                                          bytes, u32; 96 bytes; 8 zeros
//	                                                  144 112 the same of the second name
const (
	tableMagic   = "tierfsHT"
	tableVersion = 1

	headerSize = 4096
	sumAt      = 12
	inodesAt   = 16
	handlesAt  = 24
	lastNodeAt, lastHandleAt,
	takeoversAt, pausedAt,
	usedInodesAt, usedHandlesAt = 64, 72, 80, 88, 96, 104

	textRoom  = 256
	textSize  = 16 + textRoom
	requestAt = 512
	replyAt   = requestAt + textSize
	deviceAt  = replyAt + textSize
	nameAt    = deviceAt + textSize

	exchangeSize = 256
	exchanges    = 64

	slotsAt    = headerSize + exchanges*exchangeSize
	inodeSize  = 128
	handleSize = 64

	maxInodes  = 16 << 20
	maxHandles = 4 << 20

	// growth is how much of the memory is made sure of at once.
	growth = 64 << 10
)

var (
	// ErrTableVersion: the table is of a version that this one does not know.
	ErrTableVersion = errors.New("the table of inodes and handles has a version that is not known")
	// ErrTableDamaged: the table does not hold what a daemon writes, wherever it was
	// killed.
	ErrTableDamaged = errors.New("the table of inodes and handles is damaged")
	// ErrTableFull: there is no slot left, or no memory for it.
	ErrTableFull = errors.New("the table of inodes and handles is full")
)

// A Table is what a daemon's successor has to know of inodes and open files, in
// memory that outlives the daemon. One daemon writes it at a time.
//
// It may be killed between any two stores: a slot is filled before it is published
// by one store of its number and freed by one, and a counter is raised before its
// value is used. So a successor finds each change made or not made. Nothing is
// durable; a table dies with the machine, as the mount does.
//
// Methods may be called in parallel, as long as no two are about the same slot.
type Table struct {
	mem []byte
	fd  int // -1 for one that is only looked at

	inodes, handles uint64 // room
	stored          func() // tests: called after each store

	mu          sync.Mutex // guards the slots that are free, and the header's texts
	freeInodes  []uint32
	freeHandles []uint32
	ready       int    // bytes from the start of the inode slots that have memory
	readyH      int    // the same of the handle slots
	exchanged   uint64 // how many exchanges were noted: the next one takes the place of the oldest
}

// NewTable makes an empty table.
func NewTable() (*Table, error) { return newTable(maxInodes, maxHandles) }

func newTable(inodes, handles uint64) (*Table, error) {
	fd, err := unix.MemfdCreate("tierfs-table", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make the table of inodes and handles: %w", err)
	}
	size := sizeOf(inodes, handles)
	err = unix.Ftruncate(fd, size)
	if err == nil {
		err = unix.Fallocate(fd, 0, 0, slotsAt)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make the table of inodes and handles: %w", err)
	}
	t := &Table{mem: mem, fd: fd, inodes: inodes, handles: handles}
	t.format()
	return t, nil
}

// format writes the header of an empty table. Nobody else has the table yet.
func (t *Table) format() {
	copy(t.mem, tableMagic)
	binary.NativeEndian.PutUint32(t.mem[8:], tableVersion)
	binary.NativeEndian.PutUint64(t.mem[inodesAt:], t.inodes)
	binary.NativeEndian.PutUint64(t.mem[handlesAt:], t.handles)
	binary.NativeEndian.PutUint32(t.mem[sumAt:], headerSum(t.mem))
	t.set64(lastNodeAt, rootNode)
}

// rootNode is the number of the root, which has no slot.
const rootNode = 1

func headerSum(mem []byte) uint32 {
	var b [28]byte
	copy(b[:12], mem[:12])
	copy(b[12:], mem[inodesAt:inodesAt+16])
	return uint32(xxh3.Hash(b[:]))
}

func sizeOf(inodes, handles uint64) int64 {
	return slotsAt + int64(inodes)*inodeSize + int64(handles)*handleSize
}

// OpenTable maps the table of a predecessor, of which nothing may run any more, and
// looks at all of it. The descriptor stays the caller's. It fails with
// [ErrTableVersion] and with [ErrTableDamaged].
func OpenTable(fd int) (*Table, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("take the table of inodes and handles: %w", err)
	}
	t, err := openTable(own)
	if err != nil {
		_ = unix.Close(own)
	}
	return t, err
}

// InitOf reads the kernel's INIT and the reply to it from the table of a daemon that
// may be at work, and looks at nothing else but the version. Errors as of OpenTable.
func InitOf(fd int) (request, reply []byte, err error) {
	t, err := mapTable(fd, unix.PROT_READ, parseHeader)
	if err != nil {
		return nil, nil, err
	}
	request, reply = t.Init()
	return request, reply, unix.Munmap(t.mem)
}

func openTable(fd int) (*Table, error) {
	t, err := mapTable(fd, unix.PROT_READ|unix.PROT_WRITE, parseTable)
	if err != nil {
		return nil, err
	}
	t.fd = fd
	return t, nil
}

func mapTable(fd, access int, parse func(mem []byte) (*Table, error)) (*Table, error) {
	// Without the seal a table that is cut would end the process at the next look.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, damaged("it is not sealed (%v)", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat the table of inodes and handles: %w", err)
	}
	if st.Size < slotsAt || st.Size > sizeOf(maxInodes, maxHandles) {
		return nil, damaged("it has %d bytes", st.Size)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), access, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the table of inodes and handles: %w", err)
	}
	t, err := parse(mem)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return t, nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrTableDamaged, fmt.Sprintf(format, args...))
}

// FD is the table's descriptor, for a holder. It stays the table's.
func (t *Table) FD() int { return t.fd }

// Close lets go of the memory in this process. No other method may be called
// afterwards, nor one be under way.
func (t *Table) Close() error {
	return errors.Join(unix.Munmap(t.mem), unix.Close(t.fd))
}

// Takeovers is how many daemons have taken the mount over so far.
func (t *Table) Takeovers() uint64 { return t.get64(takeoversAt) }

// CountTakeover adds one and returns how many there are now.
func (t *Table) CountTakeover() uint64 { return t.raise(takeoversAt) }

// Paused tells whether somebody has paused the background; see SetPaused.
func (t *Table) Paused() bool { return t.get64(pausedAt) != 0 }

// SetPaused keeps that for a successor.
func (t *Table) SetPaused(paused bool) {
	v := uint64(0)
	if paused {
		v = 1
	}
	t.set64(pausedAt, v)
}

// NextNode returns a number that no node has had.
func (t *Table) NextNode() uint64 { return t.raise(lastNodeAt) }

// NextHandle returns a number that no handle has had.
func (t *Table) NextHandle() uint64 { return t.raise(lastHandleAt) }

func (t *Table) raise(at int) uint64 {
	v := atomic.AddUint64((*uint64)(unsafe.Pointer(&t.mem[at])), 1)
	t.hook()
	return v
}

// SetInit keeps the kernel's INIT request and the reply to it, of at most 256 bytes
// each. A daemon that dies in between leaves the mount without them, unless they are the
// same as before.
func (t *Table) SetInit(request, reply []byte) error {
	return errors.Join(t.setText(requestAt, request), t.setText(replyAt, reply))
}

// Init returns copies of both; empty if they were not kept.
func (t *Table) Init() (request, reply []byte) { return t.text(requestAt), t.text(replyAt) }

// SetMount keeps the device of the mount and its name, of at most 256 bytes each. What
// is the same as before is there all the time.
func (t *Table) SetMount(device, name string) error {
	return errors.Join(t.setText(deviceAt, []byte(device)), t.setText(nameAt, []byte(name)))
}

// Mount returns both; empty if they were not kept.
func (t *Table) Mount() (device, name string) {
	return string(t.text(deviceAt)), string(t.text(nameAt))
}

func (t *Table) setText(at int, text []byte) error {
	if len(text) > textRoom {
		return fmt.Errorf("%d bytes are too many for the table: it keeps %d", len(text), textRoom)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if string(t.mem[at+16:at+16+int(t.get64(at))]) == string(text) {
		return nil // a death must not lose what is there
	}
	t.set64(at, 0)
	t.write(at+16, text)
	t.set64(at+8, xxh3.Hash(text))
	t.set64(at, uint64(len(text)))
	return nil
}

// text relies on a length that was looked at when the table was opened.
func (t *Table) text(at int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.get64(at)
	return append([]byte(nil), t.mem[at+16:at+16+int(n)]...)
}

func (t *Table) get64(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&t.mem[at])))
}

func (t *Table) get32(at int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&t.mem[at])))
}

// set64 is a store that no other store passes: the compiler keeps the order, and
// that is enough, because a thread is killed between two instructions.
func (t *Table) set64(at int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&t.mem[at])), v)
	t.hook()
}

func (t *Table) set32(at int, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&t.mem[at])), v)
	t.hook()
}

// write copies bytes that are not published yet.
func (t *Table) write(at int, p []byte) {
	if t.stored == nil {
		copy(t.mem[at:], p)
		return
	}
	for i := 0; i < len(p); i += 8 {
		copy(t.mem[at+i:], p[i:min(i+8, len(p))])
		t.hook()
	}
}

func (t *Table) hook() {
	if t.stored != nil {
		t.stored()
	}
}

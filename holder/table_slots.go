package holder

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
)

const (
	// handleRoom is how many bytes of a file handle the table keeps. The kernel
	// allows 128; no file system that can be a source takes more than 40.
	handleRoom = 96

	keptBit   = 1 << 31
	errnoMask = 1<<16 - 1
)

// An InodeSlot is the place of an inode in the table.
type InodeSlot uint32

// An Inode is what the table knows of a node.
type Inode struct {
	Number  uint64
	Handle  handle.Handle
	Format  uint32 // S_IFMT bits
	Lookups uint64 // at least what the kernel has to take back; 0: only open handles need it, or nobody
	// Kept: the holder may have a descriptor of it, because it has lost its last name.
	Kept bool
	// SyncError is what an fsync met whose answer the caller may not have got; 0: none.
	SyncError unix.Errno
}

// A HandleSlot is the place of an open file in the table.
type HandleSlot uint32

// An Open is what the table knows of an open file or directory.
type Open struct {
	Number uint64
	Node   uint64 // number of the inode
	Flags  uint32 // as the kernel gave them at open
	Unique uint64 // of the request that opened it
}

// An Exchange is what two names led to before a request let them change places.
type Exchange struct {
	Unique uint64 // of the request
	Before [2]handle.Handle
}

// AddInode enters an inode whose number NextNode has given. It fails with
// [ErrTableFull], and with an error of another kind for a handle that is too long.
func (t *Table) AddInode(in Inode) (InodeSlot, error) {
	if n := len(in.Handle.Bytes); n == 0 || n > handleRoom {
		return 0, fmt.Errorf("a file handle of %d bytes does not fit the table", n)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	slot, err := t.freeSlot(&t.freeInodes, usedInodesAt, t.inodes, slotsAt, inodeSize, &t.ready)
	if err != nil {
		return 0, err
	}
	var b [inodeSize]byte
	binary.NativeEndian.PutUint64(b[:], in.Number)
	binary.NativeEndian.PutUint32(b[20:], uint32(in.Handle.Type))
	binary.NativeEndian.PutUint16(b[24:], uint16(in.Format))
	b[26] = byte(len(in.Handle.Bytes))
	copy(b[32:], in.Handle.Bytes)
	binary.NativeEndian.PutUint32(b[28:], inodeSum(b[:]))
	at := t.inodeAt(InodeSlot(slot))
	t.write(at+20, b[20:])
	t.set64(at+8, in.Lookups)
	t.set32(at+16, mutableOf(in))
	t.set64(at, in.Number)
	return InodeSlot(slot), nil
}

func mutableOf(in Inode) uint32 {
	v := uint32(in.SyncError) & errnoMask
	if in.Kept {
		v |= keptBit
	}
	return v
}

// inodeSum is the checksum of what never changes in an inode's slot.
func inodeSum(slot []byte) uint32 {
	var b [8 + 8 + handleRoom]byte
	copy(b[:], slot[:8])
	copy(b[8:], slot[20:28])
	copy(b[16:], slot[32:inodeSize])
	return uint32(xxh3.Hash(b[:]))
}

// SetLookups keeps a count.
func (t *Table) SetLookups(s InodeSlot, n uint64) { t.set64(t.inodeAt(s)+8, n) }

// SetKept keeps whether the holder may have a descriptor of the inode.
func (t *Table) SetKept(s InodeSlot, kept bool) {
	at := t.inodeAt(s) + 16
	v := t.get32(at) &^ keptBit
	if kept {
		v |= keptBit
	}
	t.set32(at, v)
}

// SetSyncError keeps what an fsync met; 0 forgets it.
func (t *Table) SetSyncError(s InodeSlot, e unix.Errno) {
	at := t.inodeAt(s) + 16
	t.set32(at, t.get32(at)&^errnoMask|uint32(e)&errnoMask)
}

// DropInode frees the slot. No handle may refer to it any more.
func (t *Table) DropInode(s InodeSlot) {
	t.set64(t.inodeAt(s), 0)
	t.mu.Lock()
	t.freeInodes = append(t.freeInodes, uint32(s))
	t.mu.Unlock()
}

// AddHandle enters an open file whose number NextHandle has given, after its inode.
// It fails with [ErrTableFull].
func (t *Table) AddHandle(o Open) (HandleSlot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot, err := t.freeSlot(&t.freeHandles, usedHandlesAt, t.handles, t.handleSlotsAt(), handleSize, &t.readyH)
	if err != nil {
		return 0, err
	}
	var b [handleSize]byte
	binary.NativeEndian.PutUint64(b[:], o.Number)
	binary.NativeEndian.PutUint64(b[8:], o.Node)
	binary.NativeEndian.PutUint64(b[16:], o.Unique)
	binary.NativeEndian.PutUint32(b[24:], o.Flags)
	binary.NativeEndian.PutUint32(b[28:], uint32(xxh3.Hash(b[:28])))
	at := t.handleAt(HandleSlot(slot))
	t.write(at+8, b[8:])
	t.set64(at, o.Number)
	return HandleSlot(slot), nil
}

// DropHandle frees the slot.
func (t *Table) DropHandle(s HandleSlot) {
	t.set64(t.handleAt(s), 0)
	t.mu.Lock()
	t.freeHandles = append(t.freeHandles, uint32(s))
	t.mu.Unlock()
}

func (t *Table) inodeAt(s InodeSlot) int   { return slotsAt + int(s)*inodeSize }
func (t *Table) handleSlotsAt() int        { return slotsAt + int(t.inodes)*inodeSize }
func (t *Table) handleAt(s HandleSlot) int { return t.handleSlotsAt() + int(s)*handleSize }

// freeSlot takes a slot that is free, or the first that was never in use. Its memory
// is made sure of first: a store into memory that cannot be had would end the
// process.
func (t *Table) freeSlot(free *[]uint32, usedAt int, room uint64, from, size int, ready *int) (uint32, error) {
	if n := len(*free); n > 0 {
		slot := (*free)[n-1]
		*free = (*free)[:n-1]
		return slot, nil
	}
	used := t.get64(usedAt)
	if used == room {
		return 0, fmt.Errorf("%w: %w", ErrTableFull, unix.ENOMEM)
	}
	if end := int(used+1) * size; end > *ready {
		length := min(int64(growth), int64(len(t.mem)-from-*ready))
		if err := unix.Fallocate(t.fd, 0, int64(from+*ready), length); err != nil {
			return 0, fmt.Errorf("%w (%v): %w", ErrTableFull, err, unix.ENOMEM)
		}
		*ready += int(length)
	}
	t.set64(usedAt, used+1)
	return uint32(used), nil
}

// Inodes goes through all inodes. None may be added or dropped meanwhile, but that
// which is at hand may be dropped.
func (t *Table) Inodes() iter.Seq2[InodeSlot, Inode] {
	return func(yield func(InodeSlot, Inode) bool) {
		for s := range InodeSlot(t.get64(usedInodesAt)) {
			if in, ok := t.inode(s); ok && !yield(s, in) {
				return
			}
		}
	}
}

func (t *Table) inode(s InodeSlot) (Inode, bool) {
	at := t.inodeAt(s)
	number := t.get64(at)
	if number == 0 {
		return Inode{}, false
	}
	b := t.mem[at : at+inodeSize]
	mutable := t.get32(at + 16)
	return Inode{
		Number:    number,
		Handle:    fileHandle(b[20:], int(b[26]), b[32:]),
		Format:    uint32(binary.NativeEndian.Uint16(b[24:])),
		Lookups:   t.get64(at + 8),
		Kept:      mutable&keptBit != 0,
		SyncError: unix.Errno(mutable & errnoMask),
	}, true
}

func fileHandle(kind []byte, n int, b []byte) handle.Handle {
	return handle.Handle{Type: int32(binary.NativeEndian.Uint32(kind)), Bytes: string(b[:min(n, handleRoom)])}
}

// Handles goes through all open files, as Inodes does.
func (t *Table) Handles() iter.Seq2[HandleSlot, Open] {
	return func(yield func(HandleSlot, Open) bool) {
		for s := range HandleSlot(t.get64(usedHandlesAt)) {
			if o, ok := t.open(s); ok && !yield(s, o) {
				return
			}
		}
	}
}

func (t *Table) open(s HandleSlot) (Open, bool) {
	at := t.handleAt(s)
	number := t.get64(at)
	if number == 0 {
		return Open{}, false
	}
	b := t.mem[at : at+handleSize]
	return Open{
		Number: number,
		Node:   binary.NativeEndian.Uint64(b[8:]),
		Unique: binary.NativeEndian.Uint64(b[16:]),
		Flags:  binary.NativeEndian.Uint32(b[24:]),
	}, true
}

// NoteExchange keeps what two names lead to, before they change places. The last 64
// are kept.
func (t *Table) NoteExchange(e Exchange) error {
	var b [exchangeSize]byte
	for i, h := range e.Before {
		if n := len(h.Bytes); n == 0 || n > handleRoom {
			return fmt.Errorf("a file handle of %d bytes does not fit the table", n)
		}
		p := b[32+i*112:]
		binary.NativeEndian.PutUint32(p, uint32(h.Type))
		binary.NativeEndian.PutUint32(p[4:], uint32(len(h.Bytes)))
		copy(p[8:], h.Bytes)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := headerSize + int(t.exchanged%exchanges)*exchangeSize
	binary.NativeEndian.PutUint64(b[16:], t.exchanged)
	t.exchanged++
	t.set64(at, 0)
	t.write(at+16, b[16:])
	t.set64(at+8, xxh3.Hash(b[16:]))
	t.set64(at, e.Unique)
	return nil
}

// ExchangeOf returns what was noted for a request.
func (t *Table) ExchangeOf(unique uint64) (Exchange, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range exchanges {
		at := headerSize + i*exchangeSize
		if unique != 0 && t.get64(at) == unique {
			b := t.mem[at : at+exchangeSize]
			e := Exchange{Unique: unique}
			for k := range e.Before {
				p := b[32+k*112:]
				e.Before[k] = fileHandle(p, int(binary.NativeEndian.Uint32(p[4:])), p[8:])
			}
			return e, true
		}
	}
	return Exchange{}, false
}

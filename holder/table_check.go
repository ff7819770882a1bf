package holder

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
)

// parseTable looks at every byte of a table that means something. It takes any bytes.
func parseTable(mem []byte) (*Table, error) {
	t, err := parseHeader(mem)
	if err != nil {
		return nil, err
	}
	nodes, err := t.checkInodes()
	if err != nil {
		return nil, err
	}
	if err := t.checkHandles(nodes); err != nil {
		return nil, err
	}
	if err := t.checkExchanges(); err != nil {
		return nil, err
	}
	t.ready = int(t.get64(usedInodesAt)) * inodeSize
	t.readyH = int(t.get64(usedHandlesAt)) * handleSize
	return t, nil
}

// parseHeader is parseTable for what a daemon at work does not change.
func parseHeader(mem []byte) (*Table, error) {
	if len(mem) < slotsAt || string(mem[:8]) != tableMagic {
		return nil, damaged("it does not begin as a table does")
	}
	if v := binary.NativeEndian.Uint32(mem[8:]); v != tableVersion {
		return nil, ErrTableVersion
	}
	if binary.NativeEndian.Uint32(mem[sumAt:]) != headerSum(mem) {
		return nil, damaged("the checksum of the header is wrong")
	}
	t := &Table{mem: mem, fd: -1}
	t.inodes, t.handles = t.get64(inodesAt), t.get64(handlesAt)
	if t.inodes > maxInodes || t.handles > maxHandles || sizeOf(t.inodes, t.handles) != int64(len(mem)) {
		return nil, damaged("room for %d inodes and %d handles in %d bytes", t.inodes, t.handles, len(mem))
	}
	return t, t.checkHeader()
}

func (t *Table) checkHeader() error {
	for _, at := range []int{requestAt, replyAt, deviceAt, nameAt} {
		n := t.get64(at)
		if n == 0 {
			continue
		}
		if n > textRoom || t.get64(at+8) != xxh3.Hash(t.mem[at+16:at+16+int(n)]) {
			return damaged("the text at %d is not what was written", at)
		}
	}
	if t.get64(lastNodeAt) < rootNode || t.get64(pausedAt) > 1 {
		return damaged("last node %d, paused %d", t.get64(lastNodeAt), t.get64(pausedAt))
	}
	if i, h := t.get64(usedInodesAt), t.get64(usedHandlesAt); i > t.inodes || h > t.handles {
		return damaged("%d of %d inode slots and %d of %d handle slots in use", i, t.inodes, h, t.handles)
	}
	return nil
}

// checkInodes returns the numbers of all inodes, and notes the slots that are free.
func (t *Table) checkInodes() (map[uint64]bool, error) {
	used, last := t.get64(usedInodesAt), t.get64(lastNodeAt)
	numbers := map[uint64]bool{rootNode: true}
	files := map[handle.Handle]bool{}
	for s := range InodeSlot(used) {
		at := t.inodeAt(s)
		if t.get64(at) == 0 {
			t.freeInodes = append(t.freeInodes, uint32(s))
			continue
		}
		b := t.mem[at : at+inodeSize]
		if n := b[26]; n == 0 || n > handleRoom || b[27] != 0 || binary.NativeEndian.Uint32(b[28:]) != inodeSum(b) {
			return nil, damaged("inode slot %d: its checksum is wrong", s)
		}
		in, _ := t.inode(s)
		switch {
		case numbers[in.Number]:
			return nil, damaged("inode slot %d: the number %d is there twice", s, in.Number)
		case in.Number > last:
			return nil, damaged("inode slot %d: the number %d was never given", s, in.Number)
		case files[in.Handle] && in.Lookups > 0:
			return nil, damaged("inode slot %d: a second one of %s", s, in.Handle)
		case !formats[in.Format]:
			return nil, damaged("inode slot %d: format %o", s, in.Format)
		case t.get32(at+16)&^(keptBit|errnoMask) != 0:
			return nil, damaged("inode slot %d: flags %#x", s, t.get32(at+16))
		}
		numbers[in.Number] = true
		if in.Lookups > 0 { // one that is being dropped may have its successor beside it
			files[in.Handle] = true
		}
	}
	return numbers, nil
}

var formats = map[uint32]bool{
	unix.S_IFREG: true, unix.S_IFDIR: true, unix.S_IFLNK: true, unix.S_IFIFO: true,
	unix.S_IFSOCK: true, unix.S_IFCHR: true, unix.S_IFBLK: true,
}

func (t *Table) checkHandles(nodes map[uint64]bool) error {
	used, last := t.get64(usedHandlesAt), t.get64(lastHandleAt)
	numbers := map[uint64]bool{}
	for s := range HandleSlot(used) {
		at := t.handleAt(s)
		o, ok := t.open(s)
		if !ok {
			t.freeHandles = append(t.freeHandles, uint32(s))
			continue
		}
		b := t.mem[at : at+handleSize]
		switch {
		case binary.NativeEndian.Uint32(b[28:]) != uint32(xxh3.Hash(b[:28])):
			return damaged("handle slot %d: its checksum is wrong", s)
		case numbers[o.Number]:
			return damaged("handle slot %d: the number %d is there twice", s, o.Number)
		case o.Number > last:
			return damaged("handle slot %d: the number %d was never given", s, o.Number)
		case !nodes[o.Node]:
			return damaged("handle slot %d: there is no inode %d", s, o.Node)
		}
		numbers[o.Number] = true
	}
	return nil
}

func (t *Table) checkExchanges() error {
	for i := range exchanges {
		at := headerSize + i*exchangeSize
		if t.get64(at) == 0 {
			continue
		}
		b := t.mem[at : at+exchangeSize]
		if t.get64(at+8) != xxh3.Hash(b[16:]) {
			return damaged("exchange %d: its checksum is wrong", i)
		}
		for k := range 2 {
			if n := binary.NativeEndian.Uint32(b[32+k*112+4:]); n == 0 || n > handleRoom {
				return damaged("exchange %d: a file handle of %d bytes", i, n)
			}
		}
		before := binary.NativeEndian.Uint64(b[16:])
		if before%exchanges != uint64(i) {
			return damaged("exchange %d: it is number %d", i, before)
		}
		t.exchanged = max(t.exchanged, before+1)
	}
	return nil
}

package fs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Numbers of the protocol that the library keeps to itself.
const (
	opRead        = 15
	opForget      = 2
	opGetXAttr    = 22
	opListXAttr   = 23
	opReadDir     = 28
	opIoctl       = 39
	opBatchForget = 42
	opReadDirPlus = 44

	inHeaderBytes  = int(unsafe.Sizeof(fuse.InHeader{}))
	outHeaderBytes = int(unsafe.Sizeof(fuse.OutHeader{}))
)

// message is a request as the kernel gives it: a header and what belongs to its
// operation, in the machine's byte order.
type message []byte

func (m message) opcode() uint32 {
	return binary.NativeEndian.Uint32(m[unsafe.Offsetof(fuse.InHeader{}.Opcode):])
}
func (m message) unique() uint64 {
	return binary.NativeEndian.Uint64(m[unsafe.Offsetof(fuse.InHeader{}.Unique):])
}

// number is the 32-bit number at an offset, or 0 if the message ends before.
func (m message) number(at uintptr) int {
	if len(m) < int(at)+4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(m[at:]))
}

// forgets reports whether the kernel waits for no answer and may send any number.
func (m message) forgets() bool {
	op := m.opcode()
	return op == opForget || op == opBatchForget
}

// payload is how many bytes the reply may have behind its fixed part.
func (m message) payload() int {
	switch m.opcode() {
	case opRead, opReadDir, opReadDirPlus:
		return m.number(unsafe.Offsetof(fuse.ReadIn{}.Size))
	case opGetXAttr, opListXAttr:
		return m.number(unsafe.Offsetof(fuse.GetXAttrIn{}.Size))
	case opIoctl:
		return m.number(unsafe.Offsetof(fuse.IoctlIn{}.OutSize)) + int(unsafe.Sizeof(fuse.IoctlOut{}))
	}
	return 0 // a link's target and all fixed parts fit into the smallest buffer
}

// failure makes the reply to a request that could not be passed on.
func failure(reply []byte, unique uint64, status fuse.Status) int {
	binary.NativeEndian.PutUint32(reply[0:], uint32(outHeaderBytes))
	binary.NativeEndian.PutUint32(reply[4:], uint32(-int32(status)))
	binary.NativeEndian.PutUint64(reply[8:], unique)
	return outHeaderBytes
}

// What an INIT and its reply say, by offset. A kernel or a library may know less
// than all of it.
const (
	initInFlags  = 52
	initInFlags2 = 56

	initOutFlags  = outHeaderBytes + int(unsafe.Offsetof(fuse.InitOut{}.Flags))
	initOutFlags2 = outHeaderBytes + int(unsafe.Offsetof(fuse.InitOut{}.Flags2))
)

func flagsAt(m message, low, high int) uint64 {
	flags := uint64(m.number(uintptr(low)))
	if flags&fuse.CAP_INIT_EXT != 0 {
		flags |= uint64(m.number(uintptr(high))) << 32
	}
	return flags
}

// offered are the features in a kernel's INIT.
func offered(request []byte) uint64 { return flagsAt(request, initInFlags, initInFlags2) }

// negotiated are the features in the reply to it.
func negotiated(reply []byte) uint64 { return flagsAt(reply, initOutFlags, initOutFlags2) }

// initDifference says in words how two replies to one INIT differ; "" if they do
// not.
func initDifference(before, now []byte) string {
	if bytes.Equal(before, now) {
		return ""
	}
	if len(before) != len(now) || len(now) != outHeaderBytes+int(unsafe.Sizeof(fuse.InitOut{})) {
		return fmt.Sprintf("%d bytes, now %d", len(before), len(now))
	}
	var differ []string
	for _, field := range initFields() {
		was, is := message(before).number(field.at), message(now).number(field.at)
		if was != is {
			differ = append(differ, fmt.Sprintf("%s %#x, now %#x", field.name, was, is))
		}
	}
	if differ == nil {
		return "reserved bytes"
	}
	return strings.Join(differ, "; ")
}

type initField struct {
	name string
	at   uintptr
}

func initFields() []initField {
	var out fuse.InitOut
	fields := []initField{
		{"major version", unsafe.Offsetof(out.Major)},
		{"minor version", unsafe.Offsetof(out.Minor)},
		{"read-ahead", unsafe.Offsetof(out.MaxReadAhead)},
		{"features", unsafe.Offsetof(out.Flags)},
		{"more features", unsafe.Offsetof(out.Flags2)},
		{"background requests", unsafe.Offsetof(out.MaxBackground)},
		{"bytes of a write", unsafe.Offsetof(out.MaxWrite)},
		{"granularity of times", unsafe.Offsetof(out.TimeGran)},
		{"pages", unsafe.Offsetof(out.MaxPages)},
		{"stacked file systems", unsafe.Offsetof(out.MaxStackDepth)},
		{"timeout", unsafe.Offsetof(out.RequestTimeout)},
	}
	for i := range fields {
		fields[i].at += uintptr(outHeaderBytes)
	}
	return fields
}

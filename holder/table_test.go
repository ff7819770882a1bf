package holder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// smallTable has little room; what a fuzzer changes in it is worth looking at.
func smallTable(t testing.TB) *Table {
	t.Helper()
	table, err := newTable(64, 64)
	must(t, err)
	t.Cleanup(func() { must(t, table.Close()) })
	return table
}

func fileOf(name string) handle.Handle { return handle.Handle{Type: 1, Bytes: name} }

// content is all that a table says.
type content struct {
	nodes  []Inode
	opens  []Open
	device string
	name   string
	init   [2]string
	taken  uint64
	paused bool
}

func contentOf(t *Table) content {
	c := content{taken: t.Takeovers(), paused: t.Paused()}
	for _, in := range t.Inodes() {
		c.nodes = append(c.nodes, in)
	}
	for _, o := range t.Handles() {
		c.opens = append(c.opens, o)
	}
	slices.SortFunc(c.nodes, func(a, b Inode) int { return int(a.Number) - int(b.Number) })
	slices.SortFunc(c.opens, func(a, b Open) int { return int(a.Number) - int(b.Number) })
	c.device, c.name = t.Mount()
	request, reply := t.Init()
	c.init = [2]string{string(request), string(reply)}
	return c
}

func TestTableOutlivesItsWriter(t *testing.T) {
	first, err := NewTable()
	must(t, err)
	must(t, first.SetInit([]byte("hello"), []byte(strings.Repeat("r", textRoom))))
	must(t, first.SetMount("0:42", "tierfs"))
	first.SetPaused(true)
	first.CountTakeover()
	a := Inode{Number: first.NextNode(), Handle: fileOf("a"), Format: unix.S_IFREG, Lookups: 1}
	b := Inode{Number: first.NextNode(), Handle: fileOf(strings.Repeat("b", handleRoom)), Format: unix.S_IFDIR, Lookups: 7}
	slotA, err := first.AddInode(a)
	must(t, err)
	slotB, err := first.AddInode(b)
	must(t, err)
	first.SetLookups(slotA, 3)
	first.SetKept(slotA, true)
	first.SetSyncError(slotA, unix.EIO)
	a.Lookups, a.Kept, a.SyncError = 3, true, unix.EIO
	o := Open{Number: first.NextHandle(), Node: b.Number, Flags: unix.O_DIRECTORY, Unique: 12}
	_, err = first.AddHandle(o)
	must(t, err)
	gone, err := first.AddHandle(Open{Number: first.NextHandle(), Node: a.Number, Flags: unix.O_RDWR, Unique: 14})
	must(t, err)
	first.DropHandle(gone)
	swap := Exchange{Unique: 99, Before: [2]handle.Handle{a.Handle, b.Handle}}
	must(t, first.NoteExchange(swap))

	second, err := OpenTable(first.FD())
	must(t, err)
	must(t, first.Close()) // the successor has its own descriptor
	defer func() { must(t, second.Close()) }()
	got := contentOf(second)
	if !slices.Equal(got.nodes, []Inode{a, b}) || !slices.Equal(got.opens, []Open{o}) {
		t.Errorf("got %+v", got)
	}
	if got.device != "0:42" || got.name != "tierfs" || got.init[0] != "hello" || len(got.init[1]) != textRoom {
		t.Errorf("got %+v", got)
	}
	if got.taken != 1 || !got.paused {
		t.Errorf("got %+v", got)
	}
	if e, ok := second.ExchangeOf(99); !ok || e != swap {
		t.Errorf("exchange %+v, %v", e, ok)
	}
	if _, ok := second.ExchangeOf(98); ok {
		t.Error("an exchange that nobody noted")
	}
	if n, h := second.NextNode(), second.NextHandle(); n != b.Number+1 || h != 3 {
		t.Errorf("numbers %d and %d", n, h)
	}
	second.SetSyncError(slotA, 0)
	second.SetKept(slotA, false)
	second.DropInode(slotB)
	if again, err := second.AddInode(Inode{Number: second.NextNode(), Handle: fileOf("c"), Format: unix.S_IFIFO}); err != nil || again != slotB {
		t.Errorf("slot %d, %v; the free one is %d", again, err, slotB)
	}
	if in, _ := second.inode(slotA); in.Kept || in.SyncError != 0 {
		t.Errorf("got %+v", in)
	}
}

func TestTableTakesNoMore(t *testing.T) {
	table := smallTable(t)
	if _, err := table.AddInode(Inode{Number: 2, Handle: fileOf(strings.Repeat("x", handleRoom+1)), Format: unix.S_IFREG}); err == nil {
		t.Error("a handle that is too long")
	}
	if err := table.NoteExchange(Exchange{Unique: 1, Before: [2]handle.Handle{fileOf("a"), {}}}); err == nil {
		t.Error("an exchange with nothing")
	}
	if err := table.SetMount(strings.Repeat("x", textRoom+1), ""); err == nil {
		t.Error("a text that is too long")
	}
	for i := range 64 {
		_, err := table.AddInode(Inode{Number: table.NextNode(), Handle: fileOf(string(rune('a' + i))), Format: unix.S_IFREG})
		must(t, err)
		_, err = table.AddHandle(Open{Number: table.NextHandle(), Node: 2})
		must(t, err)
	}
	if _, err := table.AddInode(Inode{Number: table.NextNode(), Handle: fileOf("z"), Format: unix.S_IFREG}); !errors.Is(err, ErrTableFull) {
		t.Errorf("got %v", err)
	}
	if _, err := table.AddHandle(Open{Number: table.NextHandle(), Node: 2}); !errors.Is(err, ErrTableFull) {
		t.Errorf("got %v", err)
	}
	for i := range uint64(2 * exchanges) {
		must(t, table.NoteExchange(Exchange{Unique: i + 1, Before: [2]handle.Handle{fileOf("a"), fileOf("b")}}))
	}
	if _, ok := table.ExchangeOf(exchanges); ok {
		t.Error("an exchange too old is still there")
	}
	if _, ok := table.ExchangeOf(exchanges + 1); !ok {
		t.Error("one of the last 64 exchanges is missing")
	}
}

// What a predecessor noted is replaced when it is the oldest, not when a successor
// notes its first.
func TestExchangesOfPredecessor(t *testing.T) {
	first := smallTable(t)
	note := func(table *Table, unique uint64) {
		must(t, table.NoteExchange(Exchange{Unique: unique, Before: [2]handle.Handle{fileOf("a"), fileOf("b")}}))
	}
	note(first, 1)
	note(first, 2)
	second, err := OpenTable(first.FD())
	must(t, err)
	defer func() { must(t, second.Close()) }()
	for unique := uint64(3); unique <= exchanges; unique++ {
		note(second, unique)
	}
	for unique := uint64(1); unique <= exchanges; unique++ {
		if _, ok := second.ExchangeOf(unique); !ok {
			t.Errorf("exchange %d is missing", unique)
		}
	}
	note(second, exchanges+1)
	if _, ok := second.ExchangeOf(1); ok {
		t.Error("the oldest is still there")
	}
}

// A successor keeps the mount again, and may die at any store.
func TestTextsOfPredecessor(t *testing.T) {
	table := smallTable(t)
	must(t, table.SetMount("0:42", "name"))
	table.stored = func() {
		cut, err := parseTable(alignedCopy(table.mem))
		must(t, err)
		if device, name := cut.Mount(); device != "0:42" || name != "name" {
			t.Errorf("%q, %q", device, name)
		}
	}
	must(t, table.SetMount("0:42", "name"))
}

// The memory of a table is what is in use, not what it has room for.
func TestTableIsSparse(t *testing.T) {
	table, err := NewTable()
	must(t, err)
	defer func() { must(t, table.Close()) }()
	for i := range 10_000 {
		name := []byte{byte(i), byte(i >> 8)}
		in := Inode{Number: table.NextNode(), Handle: fileOf(string(name)), Format: unix.S_IFREG, Lookups: 1}
		_, err := table.AddInode(in)
		must(t, err)
		_, err = table.AddHandle(Open{Number: table.NextHandle(), Node: in.Number})
		must(t, err)
	}
	again, err := OpenTable(table.FD())
	must(t, err)
	defer func() { must(t, again.Close()) }()
	var st unix.Stat_t
	must(t, unix.Fstat(table.FD(), &st))
	if used := st.Blocks * 512; used > 3<<20 {
		t.Errorf("%d bytes", used)
	}
	if err := unix.Ftruncate(table.FD(), 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: %v", err)
	}
}

// exampleTable has something of everything.
func exampleTable(t testing.TB) *Table {
	t.Helper()
	table := smallTable(t)
	must(t, table.SetInit([]byte("request"), []byte("reply")))
	must(t, table.SetMount("0:42", "name"))
	for _, name := range []string{"a", "b"} {
		in := Inode{Number: table.NextNode(), Handle: fileOf(name), Format: unix.S_IFREG, Lookups: 1}
		_, err := table.AddInode(in)
		must(t, err)
		_, err = table.AddHandle(Open{Number: table.NextHandle(), Node: in.Number, Unique: in.Number})
		must(t, err)
	}
	must(t, table.NoteExchange(Exchange{Unique: 5, Before: [2]handle.Handle{fileOf("a"), fileOf("b")}}))
	return table
}

func TestDamagedTable(t *testing.T) {
	const inode, second = slotsAt, slotsAt + inodeSize
	const open, secondOpen = slotsAt + 64*inodeSize, slotsAt + 64*inodeSize + handleSize
	for name, tc := range map[string]struct {
		want error
		harm func(mem []byte)
	}{
		"magic":              {ErrTableDamaged, func(mem []byte) { mem[0]++ }},
		"version":            {ErrTableVersion, func(mem []byte) { mem[8]++ }},
		"room":               {ErrTableDamaged, func(mem []byte) { mem[inodesAt]++ }},
		"text":               {ErrTableDamaged, func(mem []byte) { mem[requestAt+16]++ }},
		"length of a text":   {ErrTableDamaged, func(mem []byte) { mem[nameAt+7]++ }},
		"last node":          {ErrTableDamaged, func(mem []byte) { mem[lastNodeAt] = 2 }},
		"last handle":        {ErrTableDamaged, func(mem []byte) { mem[lastHandleAt] = 1 }},
		"paused":             {ErrTableDamaged, func(mem []byte) { mem[pausedAt] = 2 }},
		"used":               {ErrTableDamaged, func(mem []byte) { mem[usedInodesAt] = 65 }},
		"number of an inode": {ErrTableDamaged, func(mem []byte) { mem[inode]++ }},
		"handle of an inode": {ErrTableDamaged, func(mem []byte) { mem[inode+32]++ }},
		"behind it":          {ErrTableDamaged, func(mem []byte) { mem[inode+127]++ }},
		"format":             {ErrTableDamaged, func(mem []byte) { mem[inode+25]++ }},
		"flags":              {ErrTableDamaged, func(mem []byte) { mem[inode+18] = 1 }},
		"two of one number":  {ErrTableDamaged, func(mem []byte) { copy(mem[second:second+inodeSize], mem[inode:]) }},
		"an inode missing":   {ErrTableDamaged, func(mem []byte) { clear(mem[inode : inode+8]) }},
		"handle's node":      {ErrTableDamaged, func(mem []byte) { mem[open+8]++ }},
		"two of one handle":  {ErrTableDamaged, func(mem []byte) { copy(mem[secondOpen:secondOpen+handleSize], mem[open:]) }},
		"exchange":           {ErrTableDamaged, func(mem []byte) { mem[headerSize+40]++ }},
		"place of an exchange": {ErrTableDamaged, func(mem []byte) {
			mem[headerSize+16]++
			binary.NativeEndian.PutUint64(mem[headerSize+8:], xxh3.Hash(mem[headerSize+16:headerSize+exchangeSize]))
		}},
		"nothing":              {nil, func([]byte) {}},
		"what never was used":  {nil, func(mem []byte) { mem[slotsAt+2*inodeSize] = 7 }},
		"what nobody looks at": {nil, func(mem []byte) { mem[200] = 7 }},
	} {
		t.Run(name, func(t *testing.T) {
			mem := alignedCopy(exampleTable(t).mem)
			tc.harm(mem)
			if _, err := parseTable(mem); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	for name, fd := range map[string]int{"nothing": -1, "no memory": 0} {
		if _, err := OpenTable(fd); err == nil {
			t.Errorf("opened %s", name)
		}
	}
	t.Run("not sealed", func(t *testing.T) {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		must(t, err)
		defer unix.Close(fd)
		_, err = unix.Write(fd, exampleTable(t).mem)
		must(t, err)
		if _, err := OpenTable(fd); !errors.Is(err, ErrTableDamaged) {
			t.Errorf("got %v", err)
		}
	})
}

// alignedCopy is a copy at an address that atomic stores may be done at.
func alignedCopy(mem []byte) []byte { return append(make([]byte, 0, len(mem)+64<<10), mem...) }

// FuzzTable opens a table with some bytes changed, or any bytes, goes through what
// is accepted, and changes it. patches are a place (u16) and a byte each.
func FuzzTable(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add([]byte{}, []byte{0, 80, 9})
	f.Add([]byte(tableMagic), []byte{9, 0, 1})
	whole := exampleTable(f).mem
	f.Fuzz(func(t *testing.T, data, patches []byte) {
		for _, mem := range [][]byte{alignedCopy(data), append(alignedCopy(data), whole[min(len(data), len(whole)):]...)} {
			for p := patches; len(p) >= 3; p = p[3:] {
				if at := int(p[0]) | int(p[1])<<8; at < len(mem) {
					mem[at] = p[2]
				}
			}
			table, err := parseTable(mem)
			if err != nil {
				if !errors.Is(err, ErrTableDamaged) && !errors.Is(err, ErrTableVersion) {
					t.Errorf("got %v", err)
				}
				continue
			}
			before := contentOf(table)
			for s := range table.Inodes() {
				table.SetLookups(s, 4)
			}
			for s := range table.Handles() {
				table.DropHandle(s)
			}
			for s := range table.Inodes() {
				table.DropInode(s)
			}
			if got := contentOf(table); len(got.nodes)+len(got.opens) > 0 || got.device != before.device {
				t.Errorf("left: %+v", got)
			}
			if _, err := parseTable(bytes.Clone(mem)); err != nil && len(mem) >= slotsAt {
				t.Errorf("what it has become: %v", err)
			}
		}
	})
}

// keysOf helps to name what a model and a table have.
func keysOf[K ~uint64, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// TestInitOf: whoever shall take over looks at a table that is being written.
func TestInitOf(t *testing.T) {
	table, err := NewTable()
	check(t, err)
	t.Cleanup(func() { check(t, table.Close()) })
	check(t, table.SetInit([]byte("hello"), []byte("yes")))
	_, err = table.AddInode(Inode{Number: table.NextNode() + 1, Handle: handle.Handle{Type: 1, Bytes: "x"}}) // half way: above the highest
	check(t, err)
	request, reply, err := InitOf(table.FD())
	if err != nil || string(request) != "hello" || string(reply) != "yes" {
		t.Errorf("got %q, %q, %v", request, reply, err)
	}
	if _, err := OpenTable(table.FD()); !errors.Is(err, ErrTableDamaged) {
		t.Errorf("a successor takes it: %v", err)
	}
}

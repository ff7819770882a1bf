package holder

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/handle"
)

// A writer does what a daemon does, and remembers what it has been told was done.
type writer struct {
	table *Table
	rand  *rand.Rand
	nodes map[uint64]slotOf[InodeSlot, Inode]
	opens map[uint64]slotOf[HandleSlot, Open]

	// What the operation under way may change: a node or a handle, before and after.
	node, open uint64
}

type slotOf[S, R any] struct {
	slot S
	rec  R
}

func newWriter(t *Table, seed uint64) *writer {
	return &writer{table: t, rand: rand.New(rand.NewPCG(seed, seed)),
		nodes: map[uint64]slotOf[InodeSlot, Inode]{}, opens: map[uint64]slotOf[HandleSlot, Open]{}}
}

func (w *writer) anyNode() uint64 {
	keys := keysOf(w.nodes)
	return keys[w.rand.IntN(len(keys))]
}

func (w *writer) step() error {
	switch op := w.rand.IntN(10); {
	case len(w.nodes) == 0 || op < 2 && len(w.nodes) < 60:
		return w.addNode()
	case op < 4 && len(w.opens) < 60:
		return w.addOpen()
	case op < 5 && len(w.opens) > 0:
		keys := keysOf(w.opens)
		w.open = keys[w.rand.IntN(len(keys))]
		w.table.DropHandle(w.opens[w.open].slot)
		delete(w.opens, w.open)
	case op < 6:
		w.dropNode()
	case op < 7:
		return w.table.NoteExchange(Exchange{Unique: w.rand.Uint64() | 1,
			Before: [2]handle.Handle{fileOf("x"), fileOf(strconv.Itoa(op))}})
	case op < 8:
		return w.table.SetMount(fmt.Sprint(w.rand.Uint64()), "name")
	default:
		w.change()
	}
	return nil
}

func (w *writer) addNode() error {
	w.node = w.table.NextNode()
	in := Inode{Number: w.node, Handle: fileOf(fmt.Sprintf("%d-%d", w.node, w.rand.Uint64())),
		Format: unix.S_IFREG, Lookups: 1 + w.rand.Uint64N(9)}
	slot, err := w.table.AddInode(in)
	w.nodes[in.Number] = slotOf[InodeSlot, Inode]{slot, in}
	return err
}

func (w *writer) addOpen() error {
	w.open = w.table.NextHandle()
	o := Open{Number: w.open, Node: w.anyNode(), Flags: w.rand.Uint32(), Unique: w.rand.Uint64()}
	slot, err := w.table.AddHandle(o)
	w.opens[o.Number] = slotOf[HandleSlot, Open]{slot, o}
	return err
}

func (w *writer) dropNode() {
	id := w.anyNode()
	for _, o := range w.opens {
		if o.rec.Node == id {
			return
		}
	}
	w.node = id
	w.table.DropInode(w.nodes[id].slot)
	delete(w.nodes, id)
}

func (w *writer) change() {
	w.node = w.anyNode()
	n := w.nodes[w.node]
	switch w.rand.IntN(3) {
	case 0:
		n.rec.Lookups++
		w.table.SetLookups(n.slot, n.rec.Lookups)
	case 1:
		n.rec.Kept = !n.rec.Kept
		w.table.SetKept(n.slot, n.rec.Kept)
	case 2:
		n.rec.SyncError = unix.Errno(w.rand.IntN(100))
		w.table.SetSyncError(n.slot, n.rec.SyncError)
	}
	w.nodes[w.node] = n
}

// same compares a table that was cut with what was there before the operation: all
// but what it was about is as it was.
func (b before) same(t *testing.T, cut *Table, w *writer) {
	t.Helper()
	got := contentOf(cut)
	nodes := slices.DeleteFunc(got.nodes, func(in Inode) bool { return in.Number == w.node })
	want := slices.DeleteFunc(slices.Clone(b.nodes), func(in Inode) bool { return in.Number == w.node })
	if !slices.Equal(nodes, want) {
		t.Fatalf("inodes but for %d: got %+v, want %+v", w.node, nodes, want)
	}
	opens := slices.DeleteFunc(got.opens, func(o Open) bool { return o.Number == w.open })
	wantOpens := slices.DeleteFunc(slices.Clone(b.opens), func(o Open) bool { return o.Number == w.open })
	if !slices.Equal(opens, wantOpens) {
		t.Fatalf("handles but for %d: got %+v, want %+v", w.open, opens, wantOpens)
	}
}

type before content

// After each single store of a random sequence of operations the table is whole,
// and every change was made or was not made.
func TestTableCutAnywhere(t *testing.T) {
	table := smallTable(t)
	w := newWriter(table, 1)
	for i := range uint64(exchanges) { // from now on old ones are replaced
		must(t, table.NoteExchange(Exchange{Unique: i + 1, Before: [2]handle.Handle{fileOf("old"), fileOf("older")}}))
	}
	var then before
	cuts := 0
	table.stored = func() {
		cuts++
		cut, err := parseTable(alignedCopy(table.mem))
		if err != nil {
			t.Fatalf("cut %d: %v", cuts, err)
		}
		then.same(t, cut, w)
	}
	for range 400 {
		w.node, w.open = 0, 0
		then = before(contentOf(table))
		must(t, w.step())
		got := contentOf(table)
		if len(got.nodes) != len(w.nodes) || len(got.opens) != len(w.opens) {
			t.Fatalf("%d inodes and %d handles, want %d and %d", len(got.nodes), len(got.opens), len(w.nodes), len(w.opens))
		}
		for _, in := range got.nodes {
			if w.nodes[in.Number].rec != in {
				t.Fatalf("got %+v, want %+v", in, w.nodes[in.Number].rec)
			}
		}
		for _, o := range got.opens {
			if w.opens[o.Number].rec != o {
				t.Fatalf("got %+v, want %+v", o, w.opens[o.Number].rec)
			}
		}
	}
	if cuts < 2000 {
		t.Errorf("only %d cuts", cuts)
	}
}

const tableWriterVar = "TIERFS_HOLDER_TEST_TABLE"

// TestTableWriter is the process that TestTableOfAKilledWriter kills.
func TestTableWriter(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv(tableWriterVar), 10, 64)
	if err != nil {
		return
	}
	table, err := OpenTable(3)
	must(t, err)
	w := newWriter(table, seed)
	for s, in := range table.Inodes() {
		w.nodes[in.Number] = slotOf[InodeSlot, Inode]{s, in}
	}
	for s, o := range table.Handles() {
		w.opens[o.Number] = slotOf[HandleSlot, Open]{s, o}
	}
	_, _ = os.Stdout.WriteString("go\n")
	for {
		must(t, w.step())
	}
}

// A table is whole, and goes on, whenever its writer is killed.
func TestTableOfAKilledWriter(t *testing.T) {
	table := smallTable(t)
	for round := range 20 {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestTableWriter$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", tableWriterVar, round+1))
		cmd.ExtraFiles = []*os.File{dupFile(t, table.FD())}
		out, err := cmd.StdoutPipe()
		must(t, err)
		var said bytes.Buffer
		cmd.Stderr = &said
		must(t, cmd.Start())
		b := make([]byte, 3)
		if n, err := out.Read(b); string(b[:n]) != "go\n" || err != nil {
			t.Fatalf("the writer does not start: %q, %v\n%s", b[:n], err, &said)
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) // at any moment
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		must(t, cmd.ExtraFiles[0].Close())
		again, err := OpenTable(table.FD())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		must(t, again.Close())
	}
	if contentOf(table).device == "" {
		t.Error("nothing was written")
	}
}

func dupFile(t *testing.T, fd int) *os.File {
	t.Helper()
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	must(t, err)
	return os.NewFile(uintptr(dup), "table")
}

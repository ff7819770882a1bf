package powercut

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
)

// file is an inode: its bytes as the last fsync promised them, and as each change since then made them. Directories have no bytes.
type file struct{ states [][]byte }

func (f *file) latest() []byte { return f.states[len(f.states)-1] }

// allows says whether a power cut may leave these bytes: each is as in one of the states; where the file may have been
// shorter for a while, it may also be zero.
func (f *file) allows(b []byte) bool {
	least, most := len(f.states[0]), 0
	for _, s := range f.states {
		if bytes.Equal(b, s) {
			return true
		}
		least, most = min(least, len(s)), max(most, len(s))
	}
	if len(f.states) == 1 || len(b) < least || len(b) > most {
		return false
	}
	for i := range b {
		ok := i >= least && b[i] == 0
		for _, s := range f.states {
			ok = ok || i < len(s) && s[i] == b[i]
		}
		if !ok {
			return false
		}
	}
	return true
}

// named is what became of a name: nil is no file.
type named struct {
	durable *file
	pending []renamed // what may have been lost, in order
}

type renamed struct {
	file *file
	by   string // the directory whose fsync makes this durable
}

func (n *named) latest() *file {
	if len(n.pending) > 0 {
		return n.pending[len(n.pending)-1].file
	}
	return n.durable
}

// values are what a power cut may leave under the name.
func (n *named) values() []*file {
	all := []*file{n.durable}
	for _, c := range n.pending {
		all = append(all, c.file)
	}
	return all
}

// ledger is what a volume has to hold after a power cut. Names are relative to it; those of directories end in a slash. Changes stand here
// before they are begun, promises when they were given. One name, and one file, must not be changed by two goroutines at
// once, nor one directory be synced by two.
type ledger struct {
	mu    sync.Mutex
	names map[string]*named
	acks  int           // promises so far
	acked chan struct{} // has something when there was one since the last look
}

func newLedger() *ledger {
	return &ledger{names: map[string]*named{}, acked: make(chan struct{}, 1)}
}

// parent is the directory of a name: "" is the volume's own.
func parent(name string) string {
	dir, _ := path.Split(strings.TrimSuffix(name, "/"))
	return strings.TrimSuffix(dir, "/")
}

// set notes that a name is about to become this file's, or nobody's.
func (l *ledger) set(name string, f *file) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setBy(name, f, parent(name))
}

func (l *ledger) setBy(name string, f *file, by string) {
	n := l.names[name]
	if n == nil {
		n = &named{}
		l.names[name] = n
	}
	n.pending = append(n.pending, renamed{f, by})
}

// move notes a rename that is about to happen; a directory takes what is in it along, which must have been synced before.
func (l *ledger) move(from, to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, n := range maps.Clone(l.names) {
		rest, below := strings.CutPrefix(name, from)
		if f := n.latest(); f != nil && (name == from || below && strings.HasSuffix(from, "/")) {
			l.setBy(to+rest, f, parent(to))
			l.setBy(name, nil, parent(from))
		}
	}
}

// of is the file that has a name now, nil if none has.
func (l *ledger) of(name string) *file {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.names[name]; n != nil {
		return n.latest()
	}
	return nil
}

// change notes bytes that a file is about to get.
func (l *ledger) change(f *file, b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.states = append(f.states, b)
}

// synced runs the fsync of a file. Its bytes are promised then, and the name under which it was made.
func (l *ledger) synced(name string, f *file, fsync func() error) error {
	l.mu.Lock()
	at := len(f.states) - 1
	l.mu.Unlock()
	if err := fsync(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f.states = f.states[at:]
	l.ack()
	if n := l.names[name]; n.durable == nil && len(n.pending) == 1 && n.pending[0].file == f && !l.isMoved(name, f) {
		n.durable, n.pending = f, nil
	}
	return nil
}

// ack counts a promise. l.mu is held.
func (l *ledger) ack() {
	l.acks++
	select {
	case l.acked <- struct{}{}:
	default:
	}
}

// await waits for so many more promises.
func (l *ledger) await(ctx context.Context, more int) error {
	until := -1
	for {
		l.mu.Lock()
		acks := l.acks
		l.mu.Unlock()
		if until < 0 {
			until = acks + more
		}
		if acks >= until {
			return nil
		}
		select {
		case <-l.acked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isMoved says whether a file may still be found under another name.
func (l *ledger) isMoved(name string, f *file) bool {
	for other, n := range l.names {
		if other != name && slices.Contains(n.values(), f) {
			return true
		}
	}
	return false
}

// dirSynced runs the fsync of a directory.
func (l *ledger) dirSynced(dir string, fsync func() error) error {
	promised := map[*named]int{}
	l.mu.Lock()
	for _, n := range l.names {
		for i, c := range n.pending {
			if c.by == dir {
				promised[n] = i + 1
			}
		}
	}
	l.mu.Unlock()
	if err := fsync(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, count := range promised {
		n.durable, n.pending = n.pending[count-1].file, n.pending[count:]
	}
	l.ack()
	for name, n := range l.names {
		if n.durable == nil && len(n.pending) == 0 {
			delete(l.names, name)
		}
	}
	return nil
}

// forget drops what was in a directory that is gone for good.
func (l *ledger) forget(dir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.names, func(name string, _ *named) bool { return strings.HasPrefix(name, dir) })
}

// below lists the names of what is in a directory now, sorted.
func (l *ledger) below(dir string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for name, n := range l.names {
		if parent(name) == dir && n.latest() != nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// copy is the ledger as it is now, for good.
func (l *ledger) copy() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	files := map[*file]*file{nil: nil}
	of := func(f *file) *file {
		if _, ok := files[f]; !ok {
			files[f] = &file{slices.Clone(f.states)}
		}
		return files[f]
	}
	out := newLedger()
	out.acks = l.acks
	for name, n := range l.names {
		c := &named{durable: of(n.durable)}
		for _, p := range n.pending {
			c.pending = append(c.pending, renamed{of(p.file), p.by})
		}
		out.names[name] = c
	}
	return out
}

// wrong holds what was found after a power cut against the ledger.
func (l *ledger) wrong(found map[string][]byte) (wrong []string) {
	names := map[string]bool{}
	for name := range l.names {
		names[name] = true
	}
	for name := range found {
		names[name] = true
	}
	for name := range names {
		b, there := found[name]
		n := l.names[name]
		if n == nil {
			wrong = append(wrong, fmt.Sprintf("%s with %d bytes came from nowhere", name, len(b)))
		} else if !allowed(n.values(), b, there) {
			wrong = append(wrong, fmt.Sprintf("%s: %s; %s", name, told(b, there), n.promised()))
		}
	}
	wrong = append(wrong, l.halves(found)...)
	slices.Sort(wrong)
	return wrong
}

func allowed(values []*file, b []byte, there bool) bool {
	return slices.ContainsFunc(values, func(f *file) bool { return there == (f != nil) && (f == nil || f.allows(b)) })
}

// halves are renames that were neither done nor not done.
func (l *ledger) halves(found map[string][]byte) (wrong []string) {
	for from, n := range l.names {
		if n.durable == nil || len(n.pending) != 1 || n.pending[0].file != nil {
			continue
		}
		for to, m := range l.names {
			if len(m.pending) != 1 || m.pending[0].file != n.durable {
				continue
			}
			_, left := found[from]
			b, arrived := found[to]
			after := []*file{n.durable}
			if left {
				after = []*file{m.durable}
			}
			if !allowed(after, b, arrived) {
				wrong = append(wrong, fmt.Sprintf("the rename of %s to %s is half done: the old name is there: %v; under the new one: %s", from, to, left, told(b, arrived)))
			}
		}
	}
	return wrong
}

func told(b []byte, there bool) string {
	if !there {
		return "nothing is there"
	}
	return fmt.Sprintf("%d bytes are there", len(b))
}

// promised says in words what a name has to hold.
func (n *named) promised() string {
	var all []string
	for _, f := range n.values() {
		text := "nothing"
		if f != nil {
			text = fmt.Sprintf("%d bytes", len(f.states[0]))
			if len(f.states) > 1 {
				text += fmt.Sprintf(" and %d changes that were not synced", len(f.states)-1)
			}
		}
		all = append(all, text)
	}
	return "should be " + strings.Join(all, ", or ")
}

// open says whether a name has changes that nobody was promised.
func (l *ledger) open(name string) bool {
	n := l.names[name]
	return n != nil && (len(n.pending) > 0 || n.durable != nil && len(n.durable.states) > 1)
}

package upload

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tierfs/tierfs/segment/segmenttest"
)

// What a broker does with its partitions.

// pick draws one of some; with none there is nothing to do.
func pick[T any](t *rapid.T, what string, from []T) T {
	if len(from) == 0 {
		t.Skip("nothing there")
	}
	return rapid.SampledFrom(from).Draw(t, what)
}

func (m *life) partition(t *rapid.T) string { return pick(t, "partition", m.tree.paths(living)) }

// name draws a file of a directory.
func (m *life) name(t *rapid.T, dir string, ok func(string) bool) string {
	var names []string
	for name := range m.tree[dir].files {
		if ok == nil || ok(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return pick(t, "file", names)
}

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// once gives a directory a name that it never had.
func (m *life) once(dir, suffix string) string {
	m.serial++
	return fmt.Sprintf("%s.%032x%s", dir, m.serial, suffix)
}

func (m *life) newPartition(path string, start uint64) {
	m.mkdir(path)
	m.create(path, "partition.metadata", &lifeFile{data: []byte("version: 0\ntopic_id: A\n")})
	m.create(path, lifeName(start, ".log"), &lifeFile{})
}

// last is a partition's active segment.
func (m *life) last(dir string) (start uint64, f *lifeFile) {
	starts := m.tree[dir].starts()
	if len(starts) == 0 {
		m.t.Skip("no segment")
	}
	start = starts[len(starts)-1]
	return start, m.tree[dir].segment(start)
}

func (m *life) appendTo(dir string, batches int) {
	start, f := m.last(dir)
	for range batches {
		next := f.next(start)
		const records = 3
		var values [][]byte
		for i := range uint64(records) {
			values = append(values, segmenttest.Payload(next+i, 150))
		}
		batch := segmenttest.KafkaBatch(next, segmenttest.Time(next), values)
		if m.write(m.handle(dir, lifeName(start, ".log")), len(f.data), batch) != nil {
			return
		}
		f.batches = append(slices.Clone(f.batches), lifeBatch{len(f.data), next + records})
	}
}

func (m *life) append(t *rapid.T) {
	m.appendTo(m.partition(t), rapid.IntRange(1, 3).Draw(t, "batches"))
}

// rollAt seals a partition's active segment. An empty one is not rolled.
func (m *life) rollAt(dir string) {
	start, f := m.last(dir)
	next := f.next(start)
	if next == start {
		return
	}
	if name := lifeName(start, ".timeindex"); m.tree[dir].files[name] == nil {
		m.create(dir, name, &lifeFile{data: bytes.Repeat([]byte{1}, 12)})
	}
	m.create(dir, lifeName(next, ".log"), &lifeFile{})
	m.handle(dir, lifeName(start, ".log")).file.Synced()
}

func (m *life) roll(t *rapid.T) { m.rollAt(m.partition(t)) }

func (m *life) grow(t *rapid.T) {
	dir := m.partition(t)
	for range rapid.IntRange(1, 3).Draw(t, "segments") {
		m.appendTo(dir, 2)
		m.rollAt(dir)
	}
	if rapid.Bool().Draw(t, "checkpoint") {
		m.checkpoint()
	}
}

// checkpoint writes both files as Kafka does, for the recovery point and the high
// watermark; the second lies behind the first here and there.
func (m *life) checkpoint() {
	var points, marks []string
	for i, dir := range m.tree.paths(living) {
		starts := m.tree[dir].starts()
		if len(starts) == 0 {
			continue
		}
		point := starts[len(starts)-1]
		mark := m.tree[dir].segment(point).next(point)
		if (m.serial+i)%4 == 0 {
			mark = starts[len(starts)/2]
		}
		topic, number, _ := strings.Cut(dir, "-")
		points = append(points, fmt.Sprintf("%s %s %d\n", topic, number, point))
		marks = append(marks, fmt.Sprintf("%s %s %d\n", topic, number, mark))
	}
	m.serial++
	m.replace("recovery-point-offset-checkpoint", points)
	m.replace("replication-offset-checkpoint", marks)
}

// replace writes a checkpoint file anew.
func (m *life) replace(name string, lines []string) {
	if m.tree[""].files[name+".tmp"] != nil {
		m.unlink("", name+".tmp")
	}
	text := fmt.Sprintf("0\n%d\n%s", len(lines), strings.Join(lines, ""))
	m.create("", name+".tmp", &lifeFile{data: []byte(text)})
	m.rename("", name+".tmp", name)
}

// discard renames a segment and what is beside it.
func (m *life) discard(dir string, start uint64) {
	for _, suffix := range []string{".log", ".timeindex"} {
		if m.tree[dir].files[lifeName(start, suffix)] != nil {
			m.rename(dir, lifeName(start, suffix), lifeName(start, suffix+".deleted"))
		}
	}
}

// deleteOldest is retention, or a call to delete records.
func (m *life) deleteOldest(t *rapid.T) {
	dir := m.partition(t)
	starts := m.tree[dir].starts()
	if len(starts) < 2 {
		t.Skip("nothing to delete")
	}
	for _, start := range starts[:rapid.IntRange(1, len(starts)-1).Draw(t, "segments")] {
		m.discard(dir, start)
	}
}

func leftover(name string) bool {
	return strings.HasSuffix(name, ".deleted") || strings.HasSuffix(name, ".cleaned") || strings.HasPrefix(name, "backup")
}

// purge unlinks what was renamed to go, and whole directories. The broker closes a
// file before it unlinks it; here it may come later.
func (m *life) purge(t *rapid.T) {
	closes := rapid.Bool().Draw(t, "close first")
	dir := pick(t, "directory", m.tree.paths(nil))
	gone := strings.HasSuffix(dir, "-delete")
	d := m.tree[dir]
	for _, name := range sortedNames(d) {
		if !gone && !leftover(name) {
			continue
		}
		if closes {
			for _, h := range slices.Clone(m.handles) {
				if h.inode == d.files[name] {
					m.close(h)
				}
			}
		}
		m.unlink(dir, name)
	}
	if gone {
		m.rmdir(dir)
	}
}

func sortedNames(d *lifeDir) []string {
	var names []string
	for name := range d.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (m *life) deleteTopic(t *rapid.T) {
	dir := m.partition(t)
	m.renameDir(dir, m.once(dir, "-delete"))
}

func (m *life) makeTopic(t *rapid.T) {
	for _, dir := range []string{"a-0", "a-1", "b-0"} {
		if m.tree[dir] == nil {
			m.newPartition(dir, 0)
			return
		}
	}
	t.Skip("all are there")
}

// truncate is a follower that goes back to an offset: a batch's start, or all of it.
func (m *life) truncate(t *rapid.T) {
	dir := m.partition(t)
	starts := m.tree[dir].starts()
	if len(starts) == 0 {
		t.Skip("no segment")
	}
	i := rapid.IntRange(0, len(starts)-1).Draw(t, "segment")
	f := m.tree[dir].segment(starts[i])
	cuts := []int{0}
	for _, b := range f.batches {
		cuts = append(cuts, b.at)
	}
	size := pick(t, "size", cuts)
	for _, later := range slices.Backward(starts[i+1:]) {
		m.discard(dir, later)
	}
	_ = m.shorten(m.handle(dir, lifeName(starts[i], ".log")), size)
	m.checkpoint()
}

// overwrite changes a few bytes of a file that the broker should leave alone: to
// others, or to what they are.
func (m *life) overwrite(t *rapid.T) {
	dir := pick(t, "directory", m.tree.paths(nil))
	h := m.handle(dir, m.name(t, dir, isLog))
	if len(h.inode.data) == 0 {
		t.Skip("an empty segment")
	}
	off := rapid.IntRange(0, len(h.inode.data)-1).Draw(t, "at")
	b := bytes.Clone(h.inode.data[off:min(off+40, len(h.inode.data))])
	garbage := rapid.IntRange(0, 3).Draw(t, "garbage") == 0
	if garbage {
		b[0] ^= 1
	}
	if m.write(h, off, b) == nil {
		h.inode.garbage = h.inode.garbage || garbage
	}
}

// link gives a segment a second name, as a backup does.
func (m *life) link(t *rapid.T) {
	dir := m.partition(t)
	m.serial++
	m.hardLink(dir, m.name(t, dir, isLog), fmt.Sprintf("backup-%d", m.serial))
}

// moveAway renames a replica's directory that is no longer wanted, or takes it back.
func (m *life) moveAway(t *rapid.T) {
	dir := pick(t, "directory", m.tree.paths(func(p string) bool { return living(p) || strings.HasSuffix(p, "-stray") }))
	if living(dir) {
		m.renameDir(dir, m.once(dir, "-stray"))
		return
	}
	home, _, _ := strings.Cut(dir, ".")
	if m.tree[home] != nil {
		m.renameDir(home, m.once(home, "-delete"))
	}
	m.renameDir(dir, home)
}

func future(path string) bool { return strings.HasSuffix(path, "-future") }

// copyReplica writes a replica anew in another directory.
func (m *life) copyReplica(t *rapid.T) {
	if len(m.tree.paths(future)) > 1 {
		t.Skip("enough of them")
	}
	from := m.partition(t)
	to := m.once(from, "-future")
	m.mkdir(to)
	for _, start := range m.tree[from].starts() {
		f := *m.tree[from].segment(start)
		f.names, f.mtime = 0, unix.Timespec{}
		m.create(to, lifeName(start, ".log"), &f)
	}
}

// swapReplica takes the copy for the replica.
func (m *life) swapReplica(t *rapid.T) {
	dir := pick(t, "copy", m.tree.paths(future))
	home, _, _ := strings.Cut(dir, ".")
	if m.tree[home] != nil {
		m.renameDir(home, m.once(home, "-delete"))
	}
	m.renameDir(dir, home)
}

// compact writes a sealed segment anew with some of its batches and swaps it in: with
// the old one out of the way first, or over it.
func (m *life) compact(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "rarely") > 0 {
		t.Skip("most topics are not compacted")
	}
	dir := m.partition(t)
	starts := m.tree[dir].starts()
	if len(starts) < 2 {
		t.Skip("nothing is sealed")
	}
	start := pick(t, "segment", starts[:len(starts)-1])
	over := rapid.Bool().Draw(t, "over")
	old := m.tree[dir].segment(start)
	kept := &lifeFile{garbage: old.garbage}
	if n := len(old.batches); n > 0 {
		b := old.batches[0]
		kept.data, kept.batches = old.data[:b.at:b.at], []lifeBatch{{b.at, b.next}}
	}
	log := lifeName(start, ".log")
	if m.tree[dir].files[log+".cleaned"] != nil || m.tree[dir].files[log+".swap"] != nil || m.tree[dir].files[log+".deleted"] != nil {
		t.Skip("one is under way")
	}
	m.create(dir, log+".cleaned", kept)
	m.rename(dir, log+".cleaned", log+".swap")
	if !over {
		m.discard(dir, start)
	}
	m.rename(dir, log+".swap", log)
}

// recover is what the broker does first after a start.
func (m *life) recover() {
	for _, dir := range m.tree.paths(nil) {
		for _, name := range sortedNames(m.tree[dir]) {
			switch {
			case strings.HasSuffix(name, ".cleaned"):
				m.unlink(dir, name)
			case strings.HasSuffix(name, ".swap"):
				m.rename(dir, name, strings.TrimSuffix(name, ".swap"))
			}
		}
	}
}

func (m *life) openSome(t *rapid.T) {
	dir := pick(t, "directory", m.tree.paths(nil))
	m.handle(dir, m.name(t, dir, nil))
}

func (m *life) closeSome(t *rapid.T) {
	if rapid.Bool().Draw(t, "all") {
		for len(m.handles) > 0 {
			m.close(m.handles[0])
		}
		return
	}
	if len(m.handles) == 0 {
		t.Skip("nothing is open")
	}
	m.close(m.handles[rapid.IntRange(0, len(m.handles)-1).Draw(t, "handle")])
}

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
)

// What a broker with many partitions has.
const (
	knownFiles = 20000
	openFiles  = 3000
	mappings   = 100
)

func procOf(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }

// TestTakeoverOfMany takes over a mount of which the kernel knows many inodes and a broker has thousands of files open, locked and
// mapped: all of that stays.
func TestTakeoverOfMany(t *testing.T) {
	eachWrites(t, func(t *testing.T, mode string) {
		p := newPlain(t, writing(fsStore(t), mode), "", "cold", "held")
		for i := range knownFiles {
			if i%1000 == 0 {
				p.must(os.Mkdir(p.path(fileOf(i)[:len("many-00")]), 0o755))
			}
			p.write(fileOf(i), []byte(fileOf(i)))
		}
		p.mountAs(mode)
		p.evict()
		m := &manyOpen{plain: p}
		defer m.close()
		m.know()
		m.open()
		m.lock()
		m.mapIndexes()
		rounds := 2
		if soak() {
			rounds = 9
		}
		for round := range rounds {
			p.t.Logf("taken over after %v", p.die())
			m.use(round)
		}
		_, err := p.daemon.KillRole(daemon.Holder)
		p.must(err)
		p.eventually("another holder", func() bool { return len(p.daemon.Processes()) > 1 && p.status().Holder.Kind == "process" })
		p.t.Logf("with another holder taken over after %v", p.die())
		m.use(rounds)
		m.close()
		p.allWhole()
		_, err = p.daemon.Do(p.ctx, "unmount", p.source) // the process that was started is gone
		p.must(err)
		m.below()
	})
}

func fileOf(i int) string { return fmt.Sprintf("many-%02d/file-%05d", i/1000, i) }

// manyOpen is what a broker holds.
type manyOpen struct {
	*plain
	files   []*os.File
	maps    [][]byte
	locked  []*os.File // flock, POSIX, open file description
	seconds []*os.File // of the same files
	rounds  int
}

// know lets the kernel know all the inodes.
func (m *manyOpen) know() {
	m.t.Helper()
	began := time.Now()
	for i := range knownFiles {
		if _, err := os.Lstat(m.view(fileOf(i))); err != nil {
			m.t.Fatal(err)
		}
	}
	m.t.Logf("%d files were looked up in %v", knownFiles, time.Since(began))
}

func (m *manyOpen) open() {
	m.t.Helper()
	for i := range openFiles {
		f, err := os.OpenFile(m.view(fileOf(i*(knownFiles/openFiles))), os.O_RDWR, 0)
		m.must(err)
		m.files = append(m.files, f)
	}
}

// lock takes a lock of each kind.
func (m *manyOpen) lock() {
	m.t.Helper()
	for i := range 3 {
		name := m.view(fileOf(1 + i)) // not among those that are open
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		m.must(err)
		m.locked = append(m.locked, f)
		f, err = os.OpenFile(name, os.O_RDWR, 0)
		m.must(err)
		m.seconds = append(m.seconds, f)
	}
	m.must(unix.Flock(int(m.locked[0].Fd()), unix.LOCK_EX|unix.LOCK_NB))
	m.must(unix.FcntlFlock(m.locked[1].Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1, Len: 5}))
	m.must(unix.FcntlFlock(m.locked[2].Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1, Len: 5}))
}

// stillLocked insists that nobody else gets the locks.
func (m *manyOpen) stillLocked() {
	m.t.Helper()
	if err := unix.Flock(int(m.seconds[0].Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		m.t.Errorf("flock gives a lock twice: %v", err)
	}
	for _, f := range m.seconds[1:] {
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 2}); !errors.Is(err, unix.EAGAIN) {
			m.t.Errorf("%s: fcntl gives a lock twice: %v", f.Name(), err)
		}
	}
}

// indexBytes is the size of an index as a broker maps it.
const indexBytes = 3 * 4096

// mapIndexes maps files and closes them, as a broker does with its indexes.
func (m *manyOpen) mapIndexes() {
	m.t.Helper()
	for i := range mappings {
		f, err := os.OpenFile(m.view(indexOf(i)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		m.must(err)
		m.must(f.Truncate(indexBytes))
		b, err := unix.Mmap(int(f.Fd()), 0, indexBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		m.must(err)
		m.must(f.Close())
		m.maps = append(m.maps, b)
	}
}

func indexOf(i int) string { return fmt.Sprintf("mapped-%03d.index", i) }

// use does with all that is open what a broker does.
func (m *manyOpen) use(round int) {
	m.t.Helper()
	m.rounds = round + 1
	began := time.Now()
	m.within(2*time.Minute, "the use of all that is open", func() error {
		for i, f := range m.files {
			if err := m.useFile(i, f, round); err != nil {
				return fmt.Errorf("%s: %w", f.Name(), err)
			}
		}
		for i, b := range m.maps {
			if err := m.useMapping(i, b, round); err != nil {
				return fmt.Errorf("%s: %w", indexOf(i), err)
			}
		}
		return nil
	})
	m.stillLocked()
	m.within(time.Minute, "lookups", func() error {
		for i := round; i < knownFiles; i += 100 {
			if _, err := os.Lstat(m.view(fileOf(i))); err != nil {
				return err
			}
		}
		return nil
	})
	if entries, err := os.ReadDir(m.view("many-03")); err != nil || len(entries) != 1000 {
		m.t.Errorf("a directory of 1000 names has %d, %v", len(entries), err)
	}
	m.t.Logf("all was used in %v", time.Since(began))
}

func (m *manyOpen) useFile(i int, f *os.File, round int) error {
	name := fileOf(i * (knownFiles / openFiles))
	if err := all(f.WriteAt([]byte{byte(round)}, int64(len(name)+round))); err != nil {
		return err
	}
	if i%10 == 0 {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return holds(f, openContent(name, round+1))
}

func openContent(name string, rounds int) []byte {
	b := []byte(name)
	for i := range rounds {
		b = append(b, byte(i))
	}
	return b
}

// useMapping looks at what was written before, and writes: some of it is synced, the rest is the kernel's.
func (m *manyOpen) useMapping(i int, b []byte, round int) error {
	if !bytes.Equal(b, mappedContent(i, round)) {
		return errors.New("other bytes than those that were written")
	}
	copy(b, mappedContent(i, round+1))
	if i%2 == 0 {
		return unix.Msync(b, unix.MS_SYNC)
	}
	return nil
}

func mappedContent(i, rounds int) []byte {
	b := make([]byte, indexBytes)
	for r := range rounds {
		copy(b[r*100:], fmt.Sprint("round ", r, " of ", i))
		copy(b[indexBytes-1000+r*100:], fmt.Sprint("round ", r, " of ", i))
	}
	return b
}

// close gives all back.
func (m *manyOpen) close() {
	for _, f := range append(append(m.files, m.locked...), m.seconds...) {
		_ = f.Close() // only read from then on
	}
	for _, b := range m.maps {
		_ = unix.Munmap(b)
	}
	m.files, m.locked, m.seconds, m.maps = nil, nil, nil, nil
}

// below insists on what there is after the unmount.
func (m *manyOpen) below() {
	m.t.Helper()
	for i := range openFiles {
		name := fileOf(i * (knownFiles / openFiles))
		if got := m.read(name); !bytes.Equal(got, openContent(name, m.rounds)) {
			m.t.Errorf("%s has %q", name, got)
		}
	}
	for i := range mappings {
		if got := m.read(indexOf(i)); !bytes.Equal(got, mappedContent(i, m.rounds)) {
			m.t.Errorf("%s has other bytes than those that were written", filepath.Base(indexOf(i)))
		}
	}
}

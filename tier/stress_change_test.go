package tier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/segment"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// change does one thing that a broker does to a segment.
func (s *stress) change(r *rand.Rand) error {
	time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond) // brokers leave sealed segments alone, mostly
	m := s.pick(r)
	m.Lock()
	defer m.Unlock()
	m.turn++
	if m.name == "" {
		return s.count("change", s.create(m))
	}
	changes := []func(*model) error{
		s.rewrite, s.overwrite, s.patch, s.cut, s.clear, s.punch, s.zero, s.grow,
		s.rename, s.replace, s.link, s.linkAndWrite, s.touch, s.unlink, s.recreate,
	}
	if err := changes[r.IntN(len(changes))](m); err != nil {
		return fmt.Errorf("%s: %w", name(m.start), err)
	}
	if err := s.agrees(m); err != nil {
		return fmt.Errorf("behind a change: %w", err)
	}
	return s.count("change", nil)
}

// fresh are bytes of a whole segment that no turn before had.
func (s *stress) fresh(m *model) []byte {
	log, _, _ := segmenttest.Kafka(m.start, 8, 5, 100+m.turn%400)
	return log
}

func (s *stress) create(m *model) error {
	fd, e, err := s.w.v.Create(s.d, name(m.start), unix.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	e.File.Release()
	m.name, m.inode = name(m.start), &inode{}
	return s.put(m, 0, s.fresh(m))
}

// put writes through the mount, as it were.
func (s *stress) put(m *model, at int, b []byte) error {
	err := s.w.mutate(s.d, m.name, Mutation{Kind: Write}, overwrite(int64(at), b))
	if err == nil {
		m.bytes = append(bytes.Clone(m.bytes[:at]), append(b, m.bytes[min(at+len(b), len(m.bytes)):]...)...)
	}
	return err
}

func (s *stress) truncate(m *model, size int) error {
	err := s.w.mutate(s.d, m.name, Mutation{Kind: Truncate, Size: int64(size)}, truncate(int64(size)))
	if err == nil {
		m.bytes = m.bytes[:size]
	}
	return err
}

// rewrite makes it another whole segment.
func (s *stress) rewrite(m *model) error {
	if err := s.truncate(m, 0); err != nil {
		return err
	}
	return s.put(m, 0, s.fresh(m))
}

// overwrite makes it a whole segment of the same size with other bytes.
func (s *stress) overwrite(m *model) error {
	if len(m.bytes) == 0 {
		return s.rewrite(m)
	}
	b := bytes.Clone(m.bytes)
	for at := 0; at+61 < len(b); { // a field that no checksum covers: the leader's epoch
		b[at+15] = byte(m.turn)
		at += 12 + int(binary.BigEndian.Uint32(b[at+8:]))
	}
	return s.put(m, 0, b)
}

func (s *stress) patch(m *model) error {
	if len(m.bytes) < 100 {
		return s.rewrite(m)
	}
	return s.put(m, 60, []byte{byte(m.turn)})
}

func (s *stress) cut(m *model) error   { return s.truncate(m, len(m.bytes)/2) }
func (s *stress) clear(m *model) error { return s.truncate(m, 0) }

// punch and zero take the leader's epoch of the first batch: it stays whole.
func (s *stress) punch(m *model) error { return s.allocate(m, batchEpoch, 4, punch(batchEpoch, 4)) }
func (s *stress) zero(m *model) error  { return s.allocate(m, batchEpoch, 4, zeroRange(batchEpoch, 4)) }

// grow gives it zeros behind its end.
func (s *stress) grow(m *model) error {
	if len(m.bytes) > 1<<16 {
		return s.clear(m)
	}
	size := int64(len(m.bytes))
	return s.allocate(m, len(m.bytes), 100, func(fd int) error { return unix.Fallocate(fd, 0, size, 100) })
}

// allocate makes zeros.
func (s *stress) allocate(m *model, at, n int, change func(int) error) error {
	if at > len(m.bytes) || at < len(m.bytes) && at+n > len(m.bytes) {
		return s.rewrite(m)
	}
	err := s.w.mutate(s.d, m.name, Mutation{Kind: Allocate}, change)
	if err == nil {
		m.bytes = append(append(bytes.Clone(m.bytes[:at]), make([]byte, n)...), m.bytes[min(at+n, len(m.bytes)):]...)
	}
	return err
}

// rename marks it as deleted, or takes that back.
func (s *stress) rename(m *model) error {
	to := name(m.start)
	if m.name == to {
		to += ".deleted"
	}
	err := s.w.v.Rename(s.d, m.name, s.d, to, 0)
	if err == nil {
		m.name = to
	}
	return err
}

// replace is the end of a compaction.
func (s *stress) replace(m *model) error {
	b, from := s.fresh(m), fmt.Sprint("new-", m.start)
	if err := os.WriteFile(filepath.Join(s.w.path, "t-0", from), b, 0o644); err != nil {
		return err
	}
	err := s.w.v.Rename(s.d, from, s.d, m.name, 0)
	if err == nil {
		m.inode = &inode{b}
	}
	return err
}

// link gives it a second name, and takes one of the two away.
func (s *stress) link(m *model) error {
	e, err := s.w.v.Lookup(s.d, m.name)
	if err != nil {
		return err
	}
	defer e.File.Release()
	other := fmt.Sprint("link-", m.start)
	l, err := s.w.v.Link(e.File, s.d, other)
	if err != nil {
		return err
	}
	l.File.Release()
	if m.turn%2 == 0 {
		return s.w.v.Unlink(s.d, other)
	}
	if err := s.w.v.Unlink(s.d, m.name); err != nil {
		return err
	}
	return s.w.v.Rename(s.d, other, s.d, m.name, 0)
}

// linkAndWrite writes through another name, which stays for that long only.
func (s *stress) linkAndWrite(m *model) error {
	own, other := m.name, fmt.Sprint("link-", m.start)
	if err := s.w.link(own, other); err != nil {
		return err
	}
	m.name = other
	err := s.overwrite(m)
	m.name = own
	return errors.Join(err, s.w.v.Unlink(s.d, other))
}

func (s *stress) touch(m *model) error {
	want := unix.Timespec{Sec: int64(1e9 + m.turn)}
	err := s.w.mutate(s.d, m.name, Mutation{Kind: Attr}, func(fd int) error { return putBack(fd, times{want, want}) })
	if err != nil {
		return err
	}
	e, err := s.w.v.Lookup(s.d, m.name)
	if err != nil {
		return err
	}
	defer e.File.Release()
	if e.Stat.Mtim != want {
		return fmt.Errorf("mtime %v, want %v", e.Stat.Mtim, want)
	}
	return nil
}

// unlink removes it, while somebody has it open.
func (s *stress) unlink(m *model) error {
	e, err := s.w.v.Lookup(s.d, m.name)
	if err != nil {
		return err
	}
	defer e.File.Release()
	e.File.Opened(false)
	defer e.File.Closed(false)
	if err := s.w.v.Unlink(s.d, m.name); err != nil {
		return err
	}
	m.name = ""
	if err := s.w.v.Unlink(s.d, segment.Stem(m.start)+".index"); !isNotExist(err) {
		return err
	}
	return nil
}

// recreate makes another file in its place at once.
func (s *stress) recreate(m *model) error {
	if err := s.unlink(m); err != nil {
		return err
	}
	return s.create(m)
}

// heldFile is a handle of the broker, which reads its inode whatever has become of
// the name.
type heldFile struct {
	m    *model // whose lock stands for the inode's
	file *File
	fd   int
	*inode
}

// hold opens a file, reads through a handle, or closes one.
func (s *stress) hold(r *rand.Rand) error {
	s.holding.Lock()
	defer s.holding.Unlock()
	switch n := r.IntN(20); {
	case n == 0 || len(s.held) == 0:
		return s.open(s.pick(r))
	case n == 1 || len(s.held) > 8:
		i := r.IntN(len(s.held))
		s.held[i].close()
		s.held[i] = s.held[len(s.held)-1]
		s.held = s.held[:len(s.held)-1]
		return nil
	}
	h := s.held[r.IntN(len(s.held))]
	h.m.RLock()
	defer h.m.RUnlock()
	b, err := s.w.bytesOf(h.file)
	if err == nil && !bytes.Equal(b, h.bytes) {
		err = fmt.Errorf("%d bytes that are not the %d of the inode", len(b), len(h.bytes))
	}
	return s.count("read of a handle", err)
}

func (s *stress) open(m *model) error {
	m.RLock()
	defer m.RUnlock()
	if m.name == "" {
		return nil
	}
	e, err := s.w.v.Lookup(s.d, m.name)
	if err != nil {
		return err
	}
	e.File.Opened(false)
	fd, err := e.File.open(unix.O_RDONLY)
	if err == nil {
		s.held = append(s.held, heldFile{m, e.File, fd, m.inode})
	}
	return err
}

func (h heldFile) close() {
	h.file.Closed(false)
	h.file.Release()
	_ = unix.Close(h.fd)
}

func (s *stress) closeHeld() {
	for _, h := range s.held {
		h.close()
	}
	s.held = nil
}

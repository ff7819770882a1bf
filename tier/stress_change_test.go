package tier

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

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
	changes := []func(*model) error{s.rewrite, s.overwrite, s.patch, s.cut, s.clear, s.rename, s.replace, s.link, s.touch, s.unlink}
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
	m.name, m.bytes = name(m.start), nil
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
		m.bytes = b
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
	return nil
}

package tier

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// maxStart is how long a process counts as a broker that starts, at most.
const maxStart = 10 * time.Minute

// starts knows the brokers that start: processes that have opened a segment for
// writing and have not written one yet. What they read meanwhile decides which
// segments they believe in; an error or a gap makes them cut the log.
type starts struct {
	active atomic.Int32 // how many start; looked at by every write, and nearly always 0

	mu      sync.Mutex // guards what follows; a leaf
	seen    map[process]*start
	threads map[uint32]process // processes of threads, known for a moment
	asked   time.Time          // when threads was begun
}

// process is told from another with the same number by its time of birth, in ticks
// since the machine's start.
type process struct {
	pid  uint32
	born string
}

type start struct {
	until time.Time
	over  bool
}

// OpenedBy tells that a thread has opened the file for writing.
func (f *File) OpenedBy(tid uint32) {
	f.mu.RLock()
	is := f.isSegment()
	f.mu.RUnlock()
	if is {
		f.v.starts.opened(tid, time.Now())
	}
}

// isSegment reports whether a name of the file is a segment's own. The caller
// holds its lock.
func (f *File) isSegment() bool {
	for _, l := range f.links {
		if _, ok := segmentStart(l.name); ok {
			return true
		}
	}
	return false
}

func (s *starts) opened(tid uint32, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.processOf(tid, now)
	if !ok || s.seen[p] != nil {
		return
	}
	if s.seen == nil {
		s.seen = map[process]*start{}
	}
	for old, st := range s.seen {
		if b, err := birth(old.pid); err != nil || b != old.born {
			s.end(st)
			delete(s.seen, old)
		}
	}
	s.seen[p] = &start{until: now.Add(maxStart)}
	s.active.Add(1)
}

// wrote ends the start of a thread's process. Writes that the kernel gathered come
// from no thread; with one broker to a volume they are the starting one's.
func (s *starts) wrote(tid uint32, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.processOf(tid, now)
	for other, st := range s.seen {
		if tid == 0 || known && other == p || now.After(st.until) {
			s.end(st)
		}
	}
}

func (s *starts) end(st *start) {
	if !st.over {
		st.over = true
		s.active.Add(-1)
	}
}

// reading reports whether a thread reads for a broker that starts.
func (s *starts) reading(tid uint32, now time.Time) bool {
	if s.active.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.processOf(tid, now)
	st := s.seen[p]
	if !ok || st == nil {
		return false
	}
	if now.After(st.until) {
		s.end(st)
	}
	return !st.over
}

// processOf returns a thread's process. A broker opens thousands of segments on a
// few threads, so the answers are kept for a second.
func (s *starts) processOf(tid uint32, now time.Time) (process, bool) {
	if s.threads == nil || now.Sub(s.asked) > time.Second || now.Before(s.asked) {
		s.threads, s.asked = map[uint32]process{}, now
	}
	if p, ok := s.threads[tid]; ok {
		return p, true
	}
	pid, err := processID(tid)
	if err != nil {
		return process{}, false
	}
	born, err := birth(pid)
	if err != nil {
		return process{}, false
	}
	p := process{pid, born}
	s.threads[tid] = p
	return p, true
}

// processID reads a thread's process from /proc/TID/status.
func processID(tid uint32) (uint32, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("Tgid:")); ok {
			pid, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 32)
			return uint32(pid), err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status names no process", tid)
}

// birth reads a process' time of birth: field 22 of /proc/PID/stat, the 20th after
// the name, which stands in parentheses and may hold anything.
func birth(pid uint32) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return string(fields[19]), nil
}

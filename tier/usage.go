package tier

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a segment takes on the local disk.
type Usage struct {
	Size      int64 // bytes the broker sees
	Allocated int64 // bytes on the local disk
	Modified  time.Time
}

// sizeMemo keeps the attributes of a file that does not change, so that a pass
// over many sealed segments costs no system call for most.
type sizeMemo struct {
	mu      sync.Mutex
	changes int64
	state   State
	valid   bool
	usage   Usage
}

// Usage returns what the file takes. It asks the inode only when the file changed
// since the last call.
func (f *File) Usage() (Usage, error) {
	changes, settled := f.settled()
	state := f.State()
	m := &f.sizes
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.valid && m.changes == changes && m.state == state {
		return m.usage, nil
	}
	fd, err := f.open(unix.O_PATH)
	if err != nil {
		return Usage{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := f.Stat(fd, &st); err != nil {
		return Usage{}, err
	}
	m.usage = Usage{Size: st.Size, Allocated: st.Blocks * 512, Modified: time.Unix(st.Mtim.Unix())}
	m.changes, m.state, m.valid = changes, state, settled
	return m.usage, nil
}

func (m *sizeMemo) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.valid = false
}

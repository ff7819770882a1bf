package fs

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// pageBytes precede the payload of a message, so that it begins with a page.
	pageBytes = 4096

	smallPayload  = 4 << 10
	middlePayload = 128 << 10
	largePayload  = maxRequest + pageBytes // and a WRITE's own header

	// probeBytes must be lockable before locked memory is relied on: more than the
	// usual limit of a process without the privilege.
	probeBytes = 256 << 20
)

// buffers lends the memory through which requests and replies pass. It is mapped
// apart from Go's heap, present and locked: a daemon that is killed while the kernel
// copies to or from a page that is not there ends that request with EIO, instead of
// leaving it to its successor. All methods may be called in parallel.
type buffers struct {
	log      *slog.Logger
	classes  [3]bufferClass // by size
	unlocked atomic.Bool
	warn     sync.Once
}

// bufferClass are buffers of one size.
type bufferClass struct {
	size int // bytes
	keep int // how many unused ones stay mapped

	mu   sync.Mutex
	free [][]byte // guarded by mu
}

func newBuffers(log *slog.Logger) *buffers {
	b := &buffers{log: log}
	for i, c := range [...]struct{ payload, keep int }{
		{smallPayload, 128}, {middlePayload, 16}, {largePayload, 8},
	} {
		b.classes[i].size, b.classes[i].keep = pageBytes+c.payload, c.keep
	}
	if err := probeLock(); err != nil {
		b.unlocked.Store(true)
	}
	return b
}

// probeLock asks whether memory may be locked at all, and does not touch it.
func probeLock() error {
	p, err := unix.Mmap(-1, 0, probeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(p) }()
	_, _, errno := unix.Syscall(unix.SYS_MLOCK2, uintptr(unsafe.Pointer(&p[0])), probeBytes, unix.MLOCK_ONFAULT)
	if errno != 0 {
		return errno
	}
	return nil
}

// locked reports whether every buffer so far could be locked.
func (b *buffers) locked() bool { return !b.unlocked.Load() }

// get returns a buffer for a page and payload bytes behind it. Its content is
// whatever the last user left.
func (b *buffers) get(payload int) []byte {
	size := pageBytes + payload
	for i := range b.classes {
		if c := &b.classes[i]; size <= c.size {
			if p := c.take(); p != nil {
				return p
			}
			return b.make(c.size)
		}
	}
	return make([]byte, size) // more than the kernel was told it may ask for
}

func (c *bufferClass) take() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.free) - 1
	if last < 0 {
		return nil
	}
	p := c.free[last]
	c.free = c.free[:last]
	return p
}

func (b *buffers) make(size int) []byte {
	p, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		b.refused(err)
		return make([]byte, size+1) // of no class: put leaves it to the collector
	}
	if b.locked() {
		if err := unix.Mlock(p); err != nil {
			b.refused(err)
		}
	}
	return p
}

func (b *buffers) refused(err error) {
	b.unlocked.Store(true)
	b.warn.Do(func() {
		b.log.Warn("request buffers are not locked in memory: a crash may fail a request that is under way", "err", err)
	})
}

// put takes back what get gave, at its full length.
func (b *buffers) put(p []byte) {
	for i := range b.classes {
		c := &b.classes[i]
		if len(p) != c.size {
			continue
		}
		if !c.give(p) {
			_ = unix.Munmap(p)
		}
		return
	}
}

func (c *bufferClass) give(p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.free) >= c.keep {
		return false
	}
	c.free = append(c.free, p)
	return true
}

// close unmaps what is not lent.
func (b *buffers) close() {
	for i := range b.classes {
		for p := b.classes[i].take(); p != nil; p = b.classes[i].take() {
			_ = unix.Munmap(p)
		}
	}
}

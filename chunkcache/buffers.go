package chunkcache

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// buffers lends the memory that fetches fill. It is mapped, not taken from the heap: chunks are large and short-lived, and
// as garbage they would stand beside those in use until the next collection. So what the limits in sched.go and space.go
// say is what it takes.
type buffers struct {
	lent atomic.Int64 // bytes
}

// get returns n bytes of any content.
func (b *buffers) get(n int) []byte {
	b.lent.Add(int64(n))
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil { // too many mappings, or no memory, and then the heap says so
		return make([]byte, n)
	}
	return p
}

// put takes back what get lent. Nobody may use it any more.
func (b *buffers) put(p []byte) {
	b.lent.Add(-int64(len(p)))
	_ = unix.Munmap(p) // EINVAL: it is from the heap
}

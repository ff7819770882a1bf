package chunkcache

import "sync"

// buffers lends the memory that fetches fill: two sizes that are used again, and others as they come.
type buffers struct {
	small, large         sync.Pool // of *[]byte with that capacity
	smallSize, largeSize int
}

func newBuffers(small, large int64) *buffers {
	return &buffers{smallSize: int(min(small, large)), largeSize: int(large)}
}

// get returns n bytes of any content.
func (b *buffers) get(n int) []byte {
	size, pool := b.largeSize, &b.large
	switch {
	case n <= b.smallSize:
		size, pool = b.smallSize, &b.small
	case n > b.largeSize:
		return make([]byte, n)
	}
	if p, ok := pool.Get().(*[]byte); ok {
		return (*p)[:n]
	}
	return make([]byte, n, size)
}

// put takes back what get lent.
func (b *buffers) put(p []byte) {
	p = p[:cap(p)]
	switch len(p) {
	case b.smallSize:
		b.small.Put(&p)
	case b.largeSize:
		b.large.Put(&p)
	}
}

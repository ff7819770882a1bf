package tier

import "golang.org/x/sys/unix"

// Reading a backlog of segments for their uploads, or all of them for a check, would
// push out of the page cache what consumers read. So what such a reading brings in
// goes again when it is over, and only that: a stretch of which anything was in memory
// before stays as it is.

// coldStretch is the length of one, in bytes.
const coldStretch = 1 << 20

// ColdPages are the stretches of an open file that were not in the page cache.
type ColdPages struct {
	fd   int
	cold []bool
}

// FindCold looks at a file of size bytes before it is read. Where the kernel cannot
// tell what is in memory (before Linux 6.5), nothing counts as cold.
func FindCold(fd int, size int64) ColdPages {
	c := ColdPages{fd: fd}
	for off := int64(0); off < size; off += coldStretch {
		var st unix.Cachestat_t
		stretch := unix.CachestatRange{Off: uint64(off), Len: coldStretch}
		if err := retry(func() error { return unix.Cachestat(uint(fd), &stretch, &st, 0) }); err != nil {
			return ColdPages{fd: fd}
		}
		c.cold = append(c.cold, st.Cache == 0)
	}
	return c
}

// Drop lets the cold stretches go from memory. The file has been read; it is open
// still. What somebody else read there meanwhile goes too: it costs them a read.
func (c ColdPages) Drop() {
	for i, cold := range c.cold {
		if cold {
			_ = unix.Fadvise(c.fd, int64(i)*coldStretch, coldStretch, unix.FADV_DONTNEED) // advice
		}
	}
}

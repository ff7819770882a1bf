package chunkcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

const (
	accessMagic  = "TIERFSAC"
	accessRecord = 16
	saveInterval = time.Minute
)

var errAccess = errors.New("not an access table")

// accessTable is when each file was last read: ns since 1970 by the nonce in the file's name.
type accessTable map[uint64]int64

func appendAccess(b []byte, nonce uint64, at int64) []byte {
	b = binary.LittleEndian.AppendUint64(b, nonce)
	return binary.LittleEndian.AppendUint64(b, uint64(at))
}

func sealAccess(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)) }

// parseAccess decodes a whole access table.
func parseAccess(b []byte) (accessTable, error) {
	n := len(b) - len(accessMagic) - 8
	if n < 0 || n%accessRecord != 0 || string(b[:len(accessMagic)]) != accessMagic {
		return nil, errAccess
	}
	body := b[:len(b)-8]
	if xxh3.Hash(body) != binary.LittleEndian.Uint64(b[len(body):]) {
		return nil, fmt.Errorf("%w: checksum", errAccess)
	}
	t := make(accessTable, n/accessRecord)
	for body = body[len(accessMagic):]; len(body) > 0; body = body[accessRecord:] {
		t[binary.LittleEndian.Uint64(body)] = int64(binary.LittleEndian.Uint64(body[8:]))
	}
	return t, nil
}

// loadAccess reads the table of the last run. None is no error.
func (c *Cache) loadAccess() (accessTable, error) {
	fd, err := c.disk.open(accessFile, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", accessFile, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxLength {
		return nil, fmt.Errorf("%w: mode %o, %d bytes", errAccess, st.Mode, st.Size)
	}
	b := make([]byte, st.Size)
	if err := pread(fd, b, 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", accessFile, err)
	}
	return parseAccess(b)
}

// saveAccess writes the table anew. It is not flushed: it is a help, no more, and carries a checksum. c.mu is held, for as
// long as the table is copied.
func (c *Cache) saveAccess() error {
	b := make([]byte, 0, len(accessMagic)+accessRecord*c.space.files+8)
	b = append(b, accessMagic...)
	for _, l := range []*lru{&c.lru, &c.unread} {
		for e := l.first; e != nil; e = e.low {
			b = appendAccess(b, e.nonce, e.accessed)
		}
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	return c.disk.replace(accessFile, sealAccess(b))
}

// replace makes data the content of a file at the top of the directory.
func (d disk) replace(name string, data []byte) error {
	part := name + partSuffix
	fd, err := d.open(part, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	err = pwrite(fd, data, 0)
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(d.dir, part, d.dir, name)
	}
	if err != nil {
		unix.Unlinkat(d.dir, part, 0)
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// housekeep saves the access table, follows the size of the disk, and trims when it is asked to.
func (c *Cache) housekeep() {
	save := time.NewTicker(saveInterval)
	defer save.Stop()
	trim := time.NewTimer(0)
	<-trim.C
	defer trim.Stop()
	var last time.Time
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-save.C:
			c.refreshBudget()
			c.mu.Lock()
			var err error
			if c.walked {
				err = c.saveAccess()
			}
			c.mu.Unlock()
			if err != nil {
				c.diskFailed("save access table", err)
			}
		case <-c.kick:
			trim.Reset(max(0, c.opts.TrimMinInterval-time.Since(last)))
		case <-trim.C:
			c.trim()
			last = time.Now()
		}
	}
}

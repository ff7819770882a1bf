package fs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// limitLook is how often the limit is looked at.
const limitLook = 10 * time.Second

// dirtyLimit bounds what the kernel has gathered for a mount and not sent yet. The
// kernel keeps it as a share of all that may be unwritten, which is a share of the
// memory that could be page cache: it moves as programs take memory and give it back,
// and has to be set again.
//
// What the kernel lets a writer have is a part of that limit, by how much of all that was
// written lately went to this mount. A broker that appends slowly, beside a disk that is
// busy, was stopped for twice 200 ms every half minute or so: its part had shrunk below what
// it had written since. So the limit is the least that it has, too.
type dirtyLimit struct {
	device string // as in /proc/self/mountinfo
	bytes  int64  // 0: the kernel's own limit holds
}

func (l dirtyLimit) file(name string) string { return "/sys/class/bdi/" + l.device + "/" + name }

func (l dirtyLimit) write(name string, bytes int64) error {
	return os.WriteFile(l.file(name), strconv.AppendInt(nil, bytes, 10), 0)
}

func (l dirtyLimit) set() error {
	if l.bytes <= 0 {
		return nil
	}
	for _, f := range [...]struct {
		name  string
		value int64
	}{{"min_bytes", 0}, {"max_bytes", l.bytes}, {"strict_limit", 1}} { // the least may never be above the most
		if err := l.write(f.name, f.value); err != nil {
			return err
		}
	}
	if err := l.write("min_bytes", l.bytes); err != nil {
		return fmt.Errorf("%w: %w", errNoLeast, err)
	}
	return nil
}

// errNoLeast: the limit holds, and that is all; other mounts have too much of what the
// kernel may promise.
var errNoLeast = errors.New("writers may be stopped for moments before the limit")

// keep sets the limit if it is off by more than a 16th.
func (l dirtyLimit) keep() error {
	if l.bytes <= 0 {
		return nil
	}
	for _, name := range [...]string{"max_bytes", "min_bytes"} {
		text, err := os.ReadFile(l.file(name))
		if err != nil {
			return err
		}
		now, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", l.file(name), err)
		}
		if off := now - l.bytes; off < -l.bytes/16 || off > l.bytes/16 {
			return l.set()
		}
	}
	return nil
}

package integration

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
)

// kept are the names of what the holder keeps, as the kernel has them.
func (p *plain) kept() []string {
	p.t.Helper()
	pid, err := p.daemon.PID(daemon.Holder)
	p.must(err)
	entries, err := os.ReadDir(procOf(pid, "fd"))
	p.must(err)
	var names []string
	for _, e := range entries {
		name, err := os.Readlink(procOf(pid, "fd/"+e.Name()))
		if err == nil {
			names = append(names, name)
		}
	}
	return names
}

// letsGo waits until the holder keeps no more than before.
func (p *plain) letsGo(before []string) {
	p.t.Helper()
	p.eventually("the holder lets go of what is closed", func() bool { return len(p.kept()) <= len(before) })
}

// TestTakeoverOfEvicted has segments evicted, renamed or deleted while they are open, just before their daemon dies. What is open can be
// read until it is closed, and then its objects go.
func TestTakeoverOfEvicted(t *testing.T) {
	t.Parallel()
	eachWrites(t, func(t *testing.T, mode string) {
		p := newPlain(t, writing(fsStore(t), mode), soon+"[cache]\nsize = \"16 MiB\"\n", "evicted", "renamed", "deleted", "resident", "held")
		p.mountAs(mode)
		kept := p.kept()
		open := map[string]*os.File{}
		for name := range p.logs {
			f, err := os.OpenFile(p.view(name), os.O_RDWR, 0)
			p.must(err)
			defer f.Close()
			open[name] = f
		}
		p.evict("--topic", "renamed")
		p.evict("--topic", "deleted")
		p.evict("--topic", "evicted")
		p.die()
		p.stillReads(open)

		evicted := p.segmentsIn("evicted")[0]
		for _, name := range p.segmentsIn("renamed") {
			p.must(os.Rename(p.view(name), p.view(name+".deleted")))
		}
		for _, name := range append(p.segmentsIn("deleted"), p.segmentsIn("resident")...) {
			p.must(os.Remove(p.view(name)))
		}
		for range 4 {
			p.die()
			p.stillReads(open)
		}
		for _, name := range p.segmentsIn("renamed") {
			p.must(os.Remove(p.view(name + ".deleted")))
		}
		p.die()
		time.Sleep(2 * time.Second) // the grace is over for whoever forgot that they are open
		p.die()
		p.stillReads(open)
		for name, f := range open {
			p.must(f.Close())
			if !strings.HasPrefix(name, "evicted") && !strings.HasPrefix(name, "held") {
				p.must(errors.Join(os.Remove(p.view(strings.TrimSuffix(name, ".log") + ".index"))))
				delete(p.logs, name)
			}
		}
		p.die()
		p.eventually("the objects go", func() bool {
			left, err := p.store.Objects("", ".log")
			p.must(err)
			for key := range left {
				if strings.Contains(key, "renamed-0") || strings.Contains(key, "deleted-0") || strings.Contains(key, "resident-0") {
					return false
				}
			}
			return true
		})
		p.letsGo(kept)
		p.eventually("no name of tierfs' own is left", func() bool {
			entries, err := os.ReadDir(p.path(".tierfs/unlinked"))
			return len(entries) == 0 && (err == nil || errors.Is(err, os.ErrNotExist))
		})
		p.whole(evicted)
		p.allWhole()
		p.stop()
		if findings := p.check(); len(findings) != 0 {
			t.Errorf("found %q", findings)
		}
	})
}

// stillReads reads all that is open, past the page cache.
func (p *plain) stillReads(open map[string]*os.File) {
	p.t.Helper()
	for name, f := range open {
		p.must(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		if err := holds(f, p.logs[name]); err != nil {
			p.t.Errorf("%s: %.200s", name, err.Error())
		}
	}
}

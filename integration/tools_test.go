package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/proxy"
)

// sh runs a shell command over the mount, with $0 as its directory.
func (p *plain) sh(script string) string {
	p.t.Helper()
	out, err := exec.CommandContext(p.ctx, "sh", "-c", script, p.source).CombinedOutput()
	if err != nil {
		p.t.Errorf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// TestTools lets loose on a mount what people and their cron jobs use. Nothing is fetched that nobody reads.
func TestTools(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), "", "cold", "held")
	p.mount()
	p.evict()
	gets := func() float64 { return p.metric("tierfs_store_requests_total", "op", "get") }
	before := gets()
	for _, script := range []string{
		`find "$0" -ls`, `find "$0" -type f -size +10k -newer "$0/meta.properties" -print0`, `ls -lR "$0"`, `du -a "$0"`, `df "$0"`, `df -i "$0"`,
		`stat "$0"/cold-0/*`, `for f in "$0"/cold-0/*; do : <"$f"; done`, `test -r "$0"/cold-0/00000000000000000000.log`,
		`grep -r nothing "$0"/held-0 || test $? = 1`, `cat "$0"/cold-0/*.index >/dev/null`, `tar --totals -cf /dev/null -C "$0" .`,
		`cp -a --reflink=auto "$0"/held-0 "$0"/copy && cmp "$0"/held-0/00000000000000000000.log "$0"/copy/00000000000000000000.log && rm -r "$0"/copy`,
		`touch -c -a "$0"/cold-0/00000000000000000000.log`, `chmod 640 "$0"/cold-0/00000000000000000000.log`,
		`mv "$0"/cold-0 "$0"/moved-0 && mv "$0"/moved-0 "$0"/cold-0`, `sync -f "$0"`, `sync "$0"/cold-0/00000000000000000000.log`,
	} {
		if p.sh(script); gets() != before {
			t.Errorf("%s made %v GETs", script, gets()-before)
			before = gets()
		}
	}
	t.Run("sizes", func(t *testing.T) { p.truth(t) })
	t.Run("df", func(t *testing.T) { p.free(t) })
	if gets() != before {
		t.Errorf("they made %v GETs", gets()-before)
	}
	p.sh(`cp --reflink=auto "$0"/cold-0/00000000000000000000.log "$0"/copy`)
	if got, err := p.cold("copy"); err != nil || !bytes.Equal(got, p.logs["cold-0"+log]) || gets() == before {
		t.Errorf("a copy of what is evicted has %d bytes, %v, after %v GETs", len(got), err, gets()-before)
	}
	p.sh(`grep -rq nothing "$0" || test $? = 1`)
	p.stop()
}

// truth compares what du says of the evicted with what is below, and what ls says with what was there.
func (p *plain) truth(t *testing.T) {
	for i, start := range p.starts {
		name := "cold-0" + stem(start) + ".log"
		below := name
		if i+1 < len(p.starts) {
			below = "cold-0" + stem(start) + ".remote"
		}
		var seen, there syscall.Stat_t
		p.must(syscall.Stat(p.view(name), &seen))
		p.must(syscall.Stat(p.path(below), &there))
		if seen.Size != int64(len(p.logs[name])) || seen.Blocks != there.Blocks || seen.Ino != there.Ino || seen.Mtim != there.Mtim {
			t.Errorf("%s: %+v through the mount, %+v below", name, seen, there)
		}
		if below != name && seen.Blocks > 8 {
			t.Errorf("%s is evicted and takes %d blocks", name, seen.Blocks)
		}
	}
}

// free compares what a statfs says with what it says below. Others write to the same disk, so it is asked until nobody has.
func (p *plain) free(t *testing.T) {
	for range 1000 {
		var before, seen, after unix.Statfs_t
		p.must(unix.Statfs(p.path("."), &before))
		p.must(unix.Statfs(p.view("."), &seen))
		p.must(unix.Statfs(p.path("."), &after))
		if before != after {
			continue
		}
		seen.Type, seen.Fsid, seen.Flags = before.Type, before.Fsid, before.Flags
		if seen != before {
			t.Errorf("through the mount %+v, below %+v", seen, before)
		}
		return
	}
	t.Error("the disk never rests")
}

// How a reader reads: ahead of what it asks for, past the page cache, and within it.
const (
	readAhead = `exec cat "$0"`
	direct    = `exec dd if="$0" of=/dev/null bs=4096 count=1 iflag=direct status=none`
	buffered  = `exec dd if="$0" of=/dev/null bs=17 count=1 skip=3 status=none`
)

// TestKilledReaders hangs readers on a store that does not answer, and ends them by signals. One that a signal kills is gone at once,
// also from a read that waits for ever; one that catches it, as dd does an interrupt, at the deadline of its read. Neither the mount
// nor the others suffer.
func TestKilledReaders(t *testing.T) {
	type killed struct {
		script string
		by     syscall.Signal
	}
	for _, c := range []struct {
		timeout string
		readers []killed
	}{
		{"block", []killed{
			{readAhead, syscall.SIGKILL}, {readAhead, syscall.SIGTERM}, {readAhead, syscall.SIGINT},
			{direct, syscall.SIGKILL}, {direct, syscall.SIGTERM}, {buffered, syscall.SIGKILL}, {buffered, syscall.SIGTERM},
		}},
		{"2 s", []killed{{direct, syscall.SIGINT}, {buffered, syscall.SIGINT}}},
	} {
		t.Run(c.timeout, func(t *testing.T) {
			t.Parallel()
			store, faulty := faultyStore(t)
			p := newPlain(t, store, fmt.Sprintf("[fetch]\ntimeout = %q\nmax_blocked = 64\n", c.timeout), "cold")
			p.mount()
			p.evict()
			p.must(faulty.Set(p.ctx, proxy.Hang))
			for i, reader := range c.readers {
				p.killed(reader.script, "cold-0"+stem(p.starts[i%(segmentsOf-1)])+".log", reader.by)
			}
			p.whole("cold-0" + stem(p.starts[segmentsOf-1]) + ".log")
			if c.timeout == "block" && p.metric("tierfs_cold_reads_waiting") == 0 {
				t.Error("no read waits any more: the readers did not end before theirs")
			}
			p.must(faulty.Set(p.ctx, proxy.Pass))
			for _, start := range p.starts {
				p.comesBack("cold-0" + stem(start) + ".log")
			}
			p.stop()
		})
	}
}

// comesBack reads a segment until it is there: a fetch that hangs goes on hanging, and whoever reads the same meets his deadline.
func (p *plain) comesBack(name string) {
	p.t.Helper()
	for {
		got, err := p.cold(name)
		if err == nil && bytes.Equal(got, p.logs[name]) {
			return
		}
		if !errors.Is(err, unix.EIO) || p.ctx.Err() != nil {
			p.t.Fatalf("%s: %d bytes of %d, %v", name, len(got), len(p.logs[name]), err)
		}
	}
}

// killed starts a reader, waits until it hangs, ends it by a signal, and waits until it is gone.
func (p *plain) killed(script, name string, by syscall.Signal) {
	p.t.Helper()
	reader, err := child.Start(exec.Command("sh", "-c", script, p.view(name)))
	p.must(err)
	p.hangs(reader)
	p.must(reader.Signal(by))
	select {
	case <-reader.Done():
		if reader.ExitCode() == 0 {
			p.t.Errorf("%s of %s has read something", script, name)
		}
	case <-p.ctx.Done():
		p.t.Errorf("%s does not end by %v", script, by)
		p.must(reader.Kill())
	}
}

// hangs waits until a process sleeps in a read of the mount.
func (p *plain) hangs(reader *child.Process) {
	p.t.Helper()
	for tick := time.Tick(5 * time.Millisecond); ; {
		call, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(reader.PID()), "syscall"))
		if err == nil && strings.HasPrefix(string(call), fmt.Sprint(syscall.SYS_READ, " ")) && p.metric("tierfs_cold_reads_waiting") > 0 {
			return
		}
		select {
		case <-tick:
		case <-p.ctx.Done():
			p.t.Fatalf("the reader does not hang: %q, %v", call, err)
		}
	}
}

package integration

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/proxy"
)

// TestTakeoverWithoutStore takes a mount over while the store is away, and while reads wait for it: what is local goes on, and each
// read ends as it would have without a takeover.
func TestTakeoverWithoutStore(t *testing.T) {
	t.Parallel()
	eachWrites(t, func(t *testing.T, mode string) {
		store, proxy := faultyStore(t)
		p := newPlain(t, writing(store, mode), "[fetch]\ntimeout = \"5 s\"\n", "away", "hang", "back", "held")
		p.mountAs(mode)
		p.evict()
		t.Run("away", func(t *testing.T) { p.in(t).withoutStore(proxy) })
		t.Run("hangs", func(t *testing.T) { p.in(t).blockedReads(proxy) })
		p.allWhole()
		p.stop()
		if findings := p.check(); len(findings) != 0 {
			t.Errorf("found %q", findings)
		}
	})
}

// in is the source for a subtest.
func (p *plain) in(t *testing.T) *plain {
	sub := *p
	sub.t = t
	return &sub
}

// withoutStore takes over while the store refuses connections.
func (p *plain) withoutStore(store *proxy.Proxy) {
	p.must(store.Set(p.ctx, proxy.Refuse))
	for range 3 {
		p.t.Logf("taken over after %v", p.die())
		p.within(20*time.Second, "local data", func() error {
			for _, name := range p.segmentsIn("held") {
				p.whole(name)
			}
			return errors.Join(os.WriteFile(p.view("new"), []byte("new"), 0o600), os.Rename(p.view("new"), p.view("newer")))
		})
		err := p.returns(30*time.Second, "a read of evicted data", func() error {
			_, err := p.cold(p.segmentsIn("away")[0])
			return err
		})
		if !errors.Is(err, unix.EIO) {
			p.t.Errorf("evicted data were read without a store: %v", err)
		}
	}
	p.must(store.Set(p.ctx, proxy.Pass))
	for _, name := range p.segmentsIn("away") {
		p.comesBack(name)
	}
}

// blockedReads takes over while reads wait for a store that hangs.
func (p *plain) blockedReads(store *proxy.Proxy) {
	p.must(store.Set(p.ctx, proxy.Hang))
	names := p.segmentsIn("hang")
	meets, goes := p.reads(names[0]), p.reads(names[1])
	p.die()
	p.must(goes.Signal(unix.SIGKILL))
	p.must(goes.ends(10 * time.Second))
	p.must(meets.ends(30 * time.Second)) // twice the deadline: the kernel repeats what failed
	if meets.ExitCode() != 1 || !strings.Contains(meets.said.String(), "Input/output error") {
		p.t.Errorf("who waits for a store that hangs reads %d bytes and says %q (status %d)", meets.got.Len(), meets.said.String(), meets.ExitCode())
	}

	names = p.segmentsIn("back")
	completes := []*reading{p.reads(names[0]), p.reads(names[1])}
	p.die() // the successor waits for it, too
	p.must(store.Set(p.ctx, proxy.Pass))
	p.die()
	for _, r := range completes {
		p.must(r.ends(30 * time.Second))
		if r.ExitCode() != 0 || r.got.String() != string(p.logs[r.name]) {
			p.t.Errorf("%s: %d bytes of %d, status %d, %s", r.name, r.got.Len(), len(p.logs[r.name]), r.ExitCode(), r.said.String())
		}
	}
	for _, name := range p.segmentsIn("hang") {
		p.comesBack(name)
	}
}

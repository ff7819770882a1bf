package integration

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKilledBoth ends holder and daemon at once, at any moment: nothing of what was acknowledged is lost where each write reaches the
// file below first, and nothing of what was synced where the kernel gathers.
func TestKilledBoth(t *testing.T) {
	t.Parallel()
	eachWrites(t, func(t *testing.T, mode string) {
		rounds := 4
		if soak() {
			rounds = 50
		}
		p := newPlain(t, writing(fsStore(t), mode), "", "cold", "held")
		for round := range rounds {
			p.mountAs(mode)
			p.evict()
			writers := []*ledger{
				{name: fmt.Sprint("plain-", round)}, {name: fmt.Sprint("synced-", round), sync: true}, {name: fmt.Sprint("names-", round), sync: true, names: true},
			}
			var running sync.WaitGroup
			for _, w := range writers {
				running.Go(func() { w.write(p) })
			}
			time.Sleep(time.Duration(100+rand.IntN(500)) * time.Millisecond) // a random moment
			p.must(p.daemon.Kill())
			for _, w := range writers {
				w.over.Store(true)
			}
			p.within(time.Minute, "the writers", func() error { running.Wait(); return nil })
			for _, w := range writers {
				if !dead(w.ended) && !errors.Is(w.ended, unix.EIO) {
					t.Errorf("%s ended with %v", w.name, w.ended)
				}
				if w.sync || mode == "through" {
					w.isIn(p, p.path(""))
				}
			}
			p.mountAs(mode)
			p.allWhole()
			for _, w := range writers {
				if w.sync || mode == "through" {
					w.isIn(p, p.source)
				}
			}
			p.stop()
		}
		if findings := p.check(); len(findings) != 0 {
			t.Errorf("found %q", findings)
		}
	})
}

// ledger is somebody who writes, and remembers what was acknowledged.
type ledger struct {
	name  string
	sync  bool // each record is, before it counts
	names bool // each record is a file
	acked int  // records
	over  atomic.Bool
	ended error
}

const recordBytes = 3000

func (l *ledger) record(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%-10s%10d", l.name, i), recordBytes/20)
}

// write writes until an error.
func (l *ledger) write(p *plain) {
	var f *os.File
	if !l.names {
		if f, l.ended = os.OpenFile(p.view(l.name), os.O_WRONLY|os.O_CREATE|unix.O_APPEND, 0o644); l.ended != nil {
			return
		}
		defer f.Close()
	}
	for {
		if l.names {
			l.ended = l.file(p, l.acked)
		} else {
			l.ended = l.append(f)
		}
		if l.ended != nil {
			return
		}
		if !l.names && l.over.Load() { // where the kernel gathers, only an fsync tells that the mount is dead
			l.ended = f.Sync()
			return
		}
		l.acked++
	}
}

func (l *ledger) append(f *os.File) error {
	err := all(f.Write(l.record(l.acked)))
	if err == nil && l.sync {
		err = f.Sync()
	}
	return err
}

// file makes a file as brokers make checkpoints: under another name, and renamed when it is whole.
func (l *ledger) file(p *plain, i int) error {
	name := p.view(fmt.Sprint(l.name, "-", i))
	f, err := os.Create(name + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(l.record(i))
	if err = errors.Join(err, f.Sync(), f.Close(), os.Rename(name+".tmp", name)); err != nil {
		return err
	}
	dir, err := os.Open(p.source)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// isIn insists that everything that was acknowledged is there.
func (l *ledger) isIn(p *plain, dir string) {
	p.t.Helper()
	if l.acked == 0 {
		p.t.Errorf("%s has written nothing: this shows nothing", l.name)
	}
	var whole []byte
	var err error
	if !l.names {
		whole, err = os.ReadFile(dir + "/" + l.name)
		p.must(err)
	}
	for i := range l.acked {
		got := whole
		if l.names {
			got, err = os.ReadFile(fmt.Sprint(dir, "/", l.name, "-", i))
			p.must(err)
		} else if len(got) >= (i+1)*recordBytes {
			got = got[i*recordBytes : (i+1)*recordBytes]
		}
		if !bytes.Equal(got, l.record(i)) {
			p.t.Errorf("%s: record %d of %d is lost or wrong (%d bytes in all)", l.name, i, l.acked, len(whole))
			return
		}
	}
}

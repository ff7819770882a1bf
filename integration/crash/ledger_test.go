package crash

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// want is what may be under a name: nothing, or bytes that begin with least and are a beginning of most.
type want struct {
	gone        bool
	least, most []byte
}

func exactly(b []byte) want { return want{least: b, most: b} }

func (w want) allows(b []byte, there bool) bool {
	if w.gone || !there {
		return w.gone && !there
	}
	return bytes.HasPrefix(b, w.least) && bytes.HasPrefix(w.most, b)
}

// outcome is what an operation leaves under the names that it touches. Directories are names that end in a slash.
type outcome map[string]want

// ledger is what the volume has to hold: all that was acknowledged, and for what a kill met each way in which it may have ended.
// The operations of several goroutines must not touch the same names.
type ledger struct {
	mu     sync.Mutex
	files  map[string][]byte
	doubts []*doubt
}

type doubt struct {
	what     string
	outcomes []outcome
}

func newLedger() *ledger { return &ledger{files: map[string][]byte{}} }

// do runs an operation. When it succeeds, the last of the outcomes holds; when it fails, each of them may, and so may what was
// before. An operation that failed is the last one on its names until settle: others come too late, as after the end of the mount.
func (l *ledger) do(what string, run func() error, outcomes ...outcome) error {
	d := &doubt{what: what}
	l.mu.Lock()
	before := outcome{}
	for _, o := range outcomes {
		for path := range o {
			if l.inDoubt(path) {
				l.mu.Unlock()
				return fmt.Errorf("%s, with %s in doubt: %w", what, path, unix.ENOTCONN)
			}
			b, there := l.files[path]
			before[path] = want{gone: !there, least: b, most: b}
		}
	}
	d.outcomes = append([]outcome{before}, outcomes...)
	l.doubts = append(l.doubts, d)
	l.mu.Unlock()
	if err := run(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubts = slices.DeleteFunc(l.doubts, func(o *doubt) bool { return o == d })
	for path, w := range outcomes[len(outcomes)-1] {
		if w.gone {
			delete(l.files, path)
		} else {
			l.files[path] = w.most
		}
	}
	return nil
}

// inDoubt says whether an operation on path has failed. l.mu is held.
func (l *ledger) inDoubt(path string) bool {
	return slices.ContainsFunc(l.doubts, func(d *doubt) bool {
		_, touched := d.outcomes[0][path]
		return touched
	})
}

// of returns the bytes of a file as acknowledged. They must not be changed.
func (l *ledger) of(path string) (b []byte, there bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, there = l.files[path]
	return b, there
}

// below lists the names that begin with prefix, sorted.
func (l *ledger) below(prefix string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for path := range l.files {
		if strings.HasPrefix(path, prefix) {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

// doubtful fails if an operation has failed.
func (l *ledger) doubtful() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, d := range l.doubts {
		errs = append(errs, fmt.Errorf("in doubt: %s", d.what))
	}
	return errors.Join(errs...)
}

// settle holds what is there, of the wanted paths, against the ledger, and takes for every operation in doubt what it finds.
func (l *ledger) settle(found map[string][]byte, of func(path string) bool) (wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.doubts {
		wrong = append(wrong, l.decide(d, found)...)
	}
	l.doubts = nil
	names := maps.Clone(found)
	maps.Copy(names, l.files)
	maps.DeleteFunc(names, func(path string, _ []byte) bool { return !of(path) })
	for path := range names {
		have, there := found[path]
		wanted, acknowledged := l.files[path]
		switch {
		case !there:
			wrong = append(wrong, fmt.Sprintf("%s with %d bytes is gone", path, len(wanted)))
		case !acknowledged:
			wrong = append(wrong, fmt.Sprintf("%s with %d bytes came from nowhere", path, len(have)))
		case !bytes.Equal(have, wanted):
			wrong = append(wrong, fmt.Sprintf("%s has %d bytes, acknowledged were %d; they differ at %d", path, len(have), len(wanted), differ(have, wanted)))
		}
	}
	slices.Sort(wrong)
	return wrong
}

func (l *ledger) decide(d *doubt, found map[string][]byte) (wrong []string) {
	holds := slices.ContainsFunc(d.outcomes, func(o outcome) bool {
		for path, w := range o {
			if b, there := found[path]; !w.allows(b, there) {
				return false
			}
		}
		return true
	})
	if !holds {
		wrong = append(wrong, d.what+" is neither done nor not done")
	}
	for _, o := range d.outcomes {
		for path := range o {
			if b, there := found[path]; there {
				l.files[path] = b
			} else {
				delete(l.files, path)
			}
		}
	}
	return wrong
}

func differ(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

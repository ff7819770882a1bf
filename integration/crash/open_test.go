package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// opened are files that the broker has open when the daemon dies.
type opened struct {
	v      *volume
	topic  string
	sealed *heldFile // for reading; nil: none
	active *heldFile // for appending
}

type heldFile struct {
	f      *os.File
	before []byte
}

// hold opens the first segment and the active one, if the scenario has them.
func (v *volume) hold(k kill, p *partition) (*opened, error) {
	o := &opened{v: v, topic: p.topic}
	if k.scenario.finds == none || k.scenario.closed {
		return o, nil
	}
	var err error
	if _, there := v.ledger.of(p.log(0)); there {
		if o.sealed, err = o.open(p.log(0), os.O_RDONLY); err != nil {
			return o, err
		}
	}
	if _, there := v.ledger.of(p.log(sealed)); there {
		o.active, err = o.open(p.log(sealed), os.O_RDWR|os.O_APPEND)
	}
	return o, err
}

func (o *opened) open(path string, flags int) (*heldFile, error) {
	f, err := os.OpenFile(o.v.at(path), flags, 0)
	if err != nil {
		return nil, err
	}
	b, _ := o.v.ledger.of(path)
	return &heldFile{f, b}, nil
}

// path is where an open file is now; "" if it has lost its last name.
func (o *opened) path(h *heldFile) (string, error) {
	own, err := h.f.Stat()
	if err != nil {
		return "", err
	}
	for _, path := range o.v.ledger.below(o.topic + "-0") {
		if strings.HasSuffix(path, "/") {
			continue
		}
		info, err := os.Lstat(o.v.at(path))
		if err != nil {
			return "", err
		}
		if os.SameFile(own, info) {
			return path, nil
		}
	}
	return "", nil
}

// goOn reads and appends through the files that were open before.
func (o *opened) goOn() error {
	if o.sealed != nil {
		path, err := o.path(o.sealed)
		if err != nil {
			return err
		}
		want := o.sealed.before
		if path != "" {
			want, _ = o.v.ledger.of(path)
		}
		if err := o.sealed.holds(want); err != nil {
			return fmt.Errorf("the first segment, open, now %q: %w", path, err)
		}
	}
	if o.active == nil {
		return nil
	}
	more := []byte("after the takeover")
	path, err := o.path(o.active)
	if err != nil {
		return err
	}
	want := append(bytes.Clone(o.active.before), more...)
	if path != "" {
		err = o.v.add(o.active.f, path, more)
		want, _ = o.v.ledger.of(path)
	} else {
		_, err = o.active.f.Write(more)
	}
	if err = errors.Join(err, o.active.f.Sync(), o.active.holds(want)); err != nil {
		return fmt.Errorf("the active segment, open, now %q: %w", path, err)
	}
	return nil
}

// holds reads an open file from its beginning.
func (h *heldFile) holds(want []byte) error {
	have, err := io.ReadAll(io.NewSectionReader(h.f, 0, 1<<30))
	if err == nil && !bytes.Equal(have, want) {
		err = fmt.Errorf("it has %d bytes instead of %d; they differ at %d", len(have), len(want), differ(have, want))
	}
	return err
}

func (o *opened) close() error {
	var errs []error
	for _, h := range []*heldFile{o.sealed, o.active} {
		if h != nil {
			errs = append(errs, h.f.Close())
		}
	}
	return errors.Join(errs...)
}

package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/upload"
)

// awayFor is a store that answers when an outage is over, and tells when it was
// asked.
func awayFor(outage time.Duration, asked func()) *sim.Store {
	s := sim.New(sim.Options{})
	began := time.Now()
	s.SetHook(func(context.Context, string, string) error {
		asked()
		if time.Since(began) < outage {
			return objstore.ErrTransient
		}
		return nil
	})
	return s
}

// A read that has been failing for a while does not sleep over the end of the
// outage.
func TestReadsAreTriedOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := time.Now()
		s := newAccess(awayFor(time.Minute, func() {
			if pause := time.Since(last); pause > readPause {
				t.Errorf("a pause of %v", pause)
			}
			last = time.Now()
		}), config.Default(), metrics.New(nil), slog.New(slog.DiscardHandler)).store
		if _, err := s.List(t.Context(), "", ""); err != nil {
			t.Error(err)
		}
		if waited := time.Since(last); waited > 0 {
			t.Errorf("it returned %v after the last try", waited)
		}
	})
}

// Who checks a volume is told soon that its store is away.
func TestCheckIsToldSoon(t *testing.T) {
	c := newChecked(t)
	root, err := unix.Open(c.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	synctest.Test(t, func(t *testing.T) {
		away := awayFor(time.Hour, func() {})
		a := newAccess(away, config.Default(), metrics.New(nil), slog.New(slog.DiscardHandler))
		for what, store := range map[string]objstore.Store{"mounted": a.checks, "unmounted": brief(away, nil)} {
			began := time.Now()
			check := &checker{root: root, store: store, progress: func(admin.Progress) {}, report: func(admin.Finding) {}}
			_, err := check.run(t.Context())
			if took := time.Since(began); !errors.Is(err, objstore.ErrTransient) || took > upload.Patience {
				t.Errorf("%s: %v after %v", what, err, took)
			}
		}
	})
}

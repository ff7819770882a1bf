package main

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
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

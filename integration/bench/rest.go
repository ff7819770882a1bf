package main

import (
	"context"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
)

const (
	restWork  = 3 * time.Second  // of load before
	restQuiet = 10 * time.Second // then nobody calls
)

// atRest is what holder and daemon have in memory a while after some load: what is their own (anonymous and shared memory) and with the
// pages of files that they map, which is their own binary for the most part.
func (t *takeoverRun) atRest(ctx context.Context) ([]row, error) {
	roles := []struct{ role, name, goal string }{
		{daemon.Holder, "holder", "at most 20 MiB (aim 10)"}, {daemon.Serves, "daemon", "at most 150 MiB (aim 80)"},
	}
	var rows []row
	for _, r := range roles {
		what := r.name + " at rest, writeback, after takeovers: "
		rows = append(rows, row{what: what + "RSS", unit: "MiB", goal: r.goal}, row{what: what + "RSS without mapped files", unit: "MiB"})
	}
	for range t.b.rounds {
		if err := t.workAndRest(ctx); err != nil {
			return nil, err
		}
		for i, r := range roles {
			var own, files float64
			for line, into := range map[string]*float64{"RssAnon": &own, "RssShmem": &own, "RssFile": &files} {
				mib, err := memoryOf(t.v.d, r.role, line)
				if err != nil {
					return nil, err
				}
				*into += mib
			}
			all, rest := &rows[2*i], &rows[2*i+1]
			all.lefts, rest.lefts = append(all.lefts, own+files), append(rest.lefts, own)
		}
		if _, err := t.load.ask(ctx, askWork); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// workAndRest returns when the load is at rest and has been for a while.
func (t *takeoverRun) workAndRest(ctx context.Context) error {
	if err := pause(ctx, restWork); err != nil {
		return err
	}
	if _, err := t.load.ask(ctx, askRest); err != nil {
		return err
	}
	return pause(ctx, restQuiet)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/metrics"
)

// watchInterval is how often --watch asks again.
const watchInterval = 2 * time.Second

func (p *program) statusCommand() *cobra.Command {
	var asJSON, watch, topics bool
	cmd := p.onWhole("status MOUNTPOINT", "Show what is where, what is under way, and what is stuck and why",
		func(ctx context.Context, c *admin.Client) error {
			show := func() error {
				s, err := c.Status(ctx, topics)
				switch {
				case err != nil:
					return err
				case asJSON:
					return printJSON(p.stdout, s)
				}
				return printStatus(p.stdout, &s)
			}
			if !watch {
				return show()
			}
			return p.watch(ctx, show)
		})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again every 2 seconds, until interrupted")
	cmd.Flags().BoolVar(&topics, "topics", false, "list the topics as well")
	return cmd
}

// clearScreen moves the cursor of a terminal home and clears what is below.
const clearScreen = "\x1b[H\x1b[J"

func (p *program) watch(ctx context.Context, show func() error) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		if isTerminal(p.stdout) {
			fmt.Fprint(p.stdout, clearScreen)
		}
		if err := show(); err != nil {
			if ctx.Err() != nil {
				return nil // the user has seen enough
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func printStatus(w io.Writer, s *admin.Status) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("mount", "%s, source %s, process %d", s.Mountpoint, s.Source, s.PID)
	row("holder", "%s%s, %d takeovers", s.Holder.Kind, when(s.Holder.PID > 0, fmt.Sprintf(" %d", s.Holder.PID)), s.Takeovers)
	row("writes", "%s", because(s.Writes, s.WritesWhy))
	row("layout", "%s", orElse(s.Layout, "not known yet"))
	row("volume", "%s%s", s.Volume, differs(s.VolumeName, s.Volume))
	row("owner", "%s", because(yes(s.Owner), s.OwnerWhy))
	row("store", "%s, %s", s.Store.Location, because(reachable(s.Store.Reachable), s.Store.Error))
	row("segments", "%s", counts(s.Segments, metrics.States(), func(n int64) string { return humanize.Comma(n) }))
	row("bytes", "%s", counts(s.Bytes, metrics.Places(), size))
	row("cache", "%s of %s in %d chunks, %d hits, %d misses%s", size(s.Cache.Bytes), size(s.Cache.Budget), s.Cache.Chunks,
		s.Cache.Hits, s.Cache.Misses, when(s.Cache.Degraded, ", its disk fails"))
	row("uploads", "%s, %d running, %d queued, %s behind%s", uploadState(s), s.UploadsRunning, s.UploadsQueued, size(s.UploadLagBytes),
		when(s.UploadOldestSeconds > 0, ", oldest "+time.Duration(s.UploadOldestSeconds*float64(time.Second)).Round(time.Second).String()))
	row("reads", "%d waiting for the store", s.ColdReadsWaiting)
	row("deletions", "%d pending", s.Tombstones)
	if s.Quarantined > 0 {
		row("quarantine", "%d segments whose bytes cannot be found; see `tierfs check`", s.Quarantined)
	}
	for _, reason := range slices.Sorted(maps.Keys(s.NotEvictableBytes)) {
		row("stays local", "%s: %s", size(s.NotEvictableBytes[reason]), reason)
	}
	if err := table.Flush(); err != nil || len(s.Topics) == 0 {
		return err
	}
	return printTopics(w, s.Topics)
}

func printTopics(w io.Writer, topics []admin.Topic) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\nTOPIC\tPARTITIONS\tSEGMENTS\tLOCAL\tREMOTE\tBEHIND\tNOT TIERED BECAUSE")
	for _, t := range topics {
		var segments int64
		for _, n := range t.Segments {
			segments += n
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\t%s\n", t.Name, t.Partitions, segments, size(t.LocalBytes), size(t.RemoteBytes), size(t.LagBytes), t.Why)
	}
	return table.Flush()
}

func uploadState(s *admin.Status) string {
	switch {
	case s.UploadStalled:
		return because("stalled", s.UploadStalledWhy)
	case s.Paused:
		return "paused"
	}
	return "going on"
}

func reachable(b bool) string {
	if b {
		return "reachable"
	}
	return "not reachable"
}

// counts lists values by name: first those of order, then what else there is.
func counts(values map[string]int64, order []string, format func(int64) string) string {
	var parts []string
	for _, name := range order {
		parts = append(parts, fmt.Sprintf("%s %s", format(values[name]), name))
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(order, name) {
			parts = append(parts, fmt.Sprintf("%s %s", format(values[name]), name))
		}
	}
	return strings.Join(parts, ", ")
}

func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

func when(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func differs(name, id string) string { return when(name != id, " ("+name+")") }

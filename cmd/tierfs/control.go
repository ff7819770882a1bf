package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/tierfs/tierfs/admin"
)

// onMount is a command that talks to the daemon of its one argument.
func (p *program) onMount(use, short string, f func(ctx context.Context, c *admin.Client, path, below string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return interruptible(cmd.Context(), func(ctx context.Context) error {
				client, below, err := admin.Connect(p.runDir, args[0])
				if err != nil {
					return err
				}
				return f(ctx, client, args[0], below)
			})
		},
	}
}

// onWhole is a command for a whole mount: the path of something in it is a mistake,
// not another name for all of it.
func (p *program) onWhole(use, short string, f func(ctx context.Context, c *admin.Client) error) *cobra.Command {
	return p.onMount(use, short, func(ctx context.Context, c *admin.Client, path, below string) error {
		if below != "" {
			return usage(fmt.Errorf("%s: lies inside a mount; name the mount point itself", path))
		}
		return f(ctx, c)
	})
}

func (p *program) unmountCommand() *cobra.Command {
	return p.onWhole("unmount MOUNTPOINT", "Unmount if nobody uses it, and wait for the daemon's end",
		func(ctx context.Context, c *admin.Client) error { return c.Unmount(ctx) })
}

func (p *program) pauseCommand() *cobra.Command {
	return p.onWhole("pause MOUNTPOINT", "Stop uploads, evictions and deletions; reads go on",
		func(ctx context.Context, c *admin.Client) error { return c.Pause(ctx, true) })
}

func (p *program) resumeCommand() *cobra.Command {
	return p.onWhole("resume MOUNTPOINT", "Let uploads, evictions and deletions go on",
		func(ctx context.Context, c *admin.Client) error { return c.Pause(ctx, false) })
}

func (p *program) lsCommand() *cobra.Command {
	var asJSON bool
	cmd := p.onMount("ls MOUNTPOINT/PARTITION", "List a partition's segments: where each is, and why it stays",
		func(ctx context.Context, c *admin.Client, path, below string) error {
			if below == "" {
				return usage(fmt.Errorf("%s: is the mount point; name a partition below it", path))
			}
			list, err := c.Segments(ctx, below)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(p.stdout, list)
			}
			return printSegments(p.stdout, list)
		})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printJSON(w io.Writer, v any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

func printSegments(w io.Writer, list []admin.Segment) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "STEM\tEND\tSIZE\tLOCAL\tSTATE\tSTAYS BECAUSE")
	for _, s := range list {
		end := "-"
		if s.End != nil {
			end = strconv.FormatUint(*s.End, 10)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Stem, end, size(s.Size), size(s.Allocated), s.State, s.Why)
	}
	return table.Flush()
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

func (p *program) evictCommand() *cobra.Command {
	var what admin.EvictRequest
	cmd := p.onWhole("evict MOUNTPOINT", "Upload and evict now what retention says is due, and say what stayed and why",
		func(ctx context.Context, c *admin.Client) error { return p.evict(ctx, c, what) })
	cmd.Flags().StringVar(&what.Topic, "topic", "", `only topics that match, such as "orders-*"`)
	cmd.Flags().BoolVar(&what.All, "all", false, "everything that may go, not only what is due")
	return cmd
}

func (p *program) evict(ctx context.Context, c *admin.Client, what admin.EvictRequest) error {
	bar := p.progress("evicting")
	result, err := c.Evict(ctx, what, func(s admin.EvictStep) {
		bar.ChangeMax64(max(s.Total, 1))
		_ = bar.Set64(s.Done) // an error means that nobody looks
	})
	if err = errors.Join(err, bar.Exit()); err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "uploaded %s%s\nevicted %s%s\n",
		segments(result.Uploaded, result.UploadedBytes), before(result.UploadedBefore, result.UploadedBeforeBytes),
		segments(result.Evicted, result.EvictedBytes), before(result.EvictedBefore, result.EvictedBeforeBytes))
	if len(result.Stayed) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "STAYED BECAUSE\tSEGMENTS\tSIZE")
	for _, s := range result.Stayed {
		fmt.Fprintf(table, "%s\t%d\t%s\n", s.Reason, s.Segments, size(s.Bytes))
	}
	return table.Flush()
}

func segments(n, bytes int64) string { return fmt.Sprintf("%d segments, %s", n, size(bytes)) }

// before is what had been done when the command began, if anything had.
func before(n, bytes int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s before)", segments(n, bytes))
}

// progress is a bar on stderr if that is a terminal, and nothing otherwise.
func (p *program) progress(what string) *progressbar.ProgressBar {
	if !isTerminal(p.stderr) {
		return progressbar.DefaultBytesSilent(1, what)
	}
	return progressbar.NewOptions64(1,
		progressbar.OptionSetWriter(p.stderr), progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(progressRate))
}

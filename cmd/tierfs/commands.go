package main

import (
	"context"
	"fmt"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const about = `tierfs is mounted over a log broker's data directory. The broker goes on reading and writing its segment files; behind
the mount, sealed segments go to an object store, their local copies are dropped, and later reads fetch what they need.

  tierfs mount /var/lib/kafka --store s3://bucket/kafka-1

Settings come from flags, then from the environment (TIERFS_CACHE_SIZE for cache.size), then from the file. Every setting
but a secret has a flag as well (--cache-size), beside those that are listed; "tierfs config" shows all of them.`

// commands returns the tree of commands, and whether one of them has started.
func (p *program) commands() (root *cobra.Command, started *bool) {
	started = new(bool)
	root = &cobra.Command{
		Use:               "tierfs",
		Short:             "Tiered storage for log brokers, as a file system",
		Long:              about,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRun:  func(*cobra.Command, []string) { *started = true },
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q; `tierfs help` lists them", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help() // an error means that nobody reads
			return usage(fmt.Errorf("no command given"))
		},
	}
	root.AddCommand(
		p.mountCommand(), p.daemonCommand(), p.holderCommand(), p.flusherCommand(), p.upgradeCommand(), p.unmountCommand(), p.statusCommand(), p.lsCommand(), p.evictCommand(),
		p.pauseCommand(), p.resumeCommand(), p.checkCommand(), p.probeCommand(), p.configCommand(), p.versionCommand(),
	)
	return root, started
}

// interruptible runs f with a context that ends with Ctrl-C or SIGTERM.
func interruptible(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	return f(ctx)
}

// between accepts so many arguments.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("%d arguments are given; usage: %s", len(args), cmd.UseLine())
		}
		return nil
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/backend"
)

// openStore opens the store that the settings name. location says which it is,
// for people.
func openStore(ctx context.Context, c *config.Config, log *slog.Logger) (store objstore.Store, location string, err error) {
	if err := c.CheckStore(); err != nil {
		return nil, "", usage(err)
	}
	store, location, err = backend.Open(ctx, c.Store.BackendConfig(), log)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; make it, or correct the path", err)
	}
	return store, location, err
}

// closeStore closes what a store may have to close.
func closeStore(s objstore.Store) error {
	if c, ok := s.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// probeCommand tries a store by hand.
func (p *program) probeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe [STORE]",
		Short: "Try each operation on a store, and say what the store supports",
		Args:  between(0, 1),
	}
	flags := addSettingFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var extra []config.Setting
		if len(args) == 1 {
			list, err := config.StoreURL(args[0], "STORE")
			if err != nil {
				return usage(err)
			}
			extra = list
		}
		c, err := flags.load(p, extra...)
		if err != nil {
			return err
		}
		return interruptible(cmd.Context(), func(ctx context.Context) error { return p.probe(ctx, c) })
	}
	return cmd
}

func (p *program) probe(ctx context.Context, c *config.Config) (err error) {
	store, location, err := openStore(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore(store)) }()
	report, err := objstore.Probe(ctx, store, c.Store.Prefix)
	table := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(table, "store\t%s\n", location)
	for _, s := range report.Steps {
		fmt.Fprintf(table, "%s\t%s\n", s.Name, s.Took.Round(10*time.Microsecond))
	}
	if err == nil {
		f := report.Features
		fmt.Fprintf(table, "enforces checksums\t%s\nreturns checksums\t%s\nkeeps what is there\t%s\nkeeps metadata\t%s\n",
			yes(f.EnforcesChecksum), yes(f.ReturnsChecksum), yes(f.ConditionalPut), yes(f.Metadata))
	}
	for _, w := range report.Warnings {
		fmt.Fprintf(table, "warning\t%s\n", w)
	}
	return errors.Join(err, table.Flush())
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

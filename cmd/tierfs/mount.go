package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/holder"
)

func (p *program) mountCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mount [SOURCE [MOUNTPOINT]]",
		Short: "Mount a broker's data directory, over itself without MOUNTPOINT, and serve it until SIGTERM",
		Args:  between(0, 2),
	}
	flags := addSettingFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var extra []config.Setting
		for i, path := range []string{"mount.source", "mount.mountpoint"}[:len(args)] {
			extra = append(extra, config.Setting{Path: path, Value: args[i], Where: []string{"SOURCE", "MOUNTPOINT"}[i]})
		}
		return p.mount(cmd.Context(), func() (*config.Config, error) { return flags.load(p, extra...) })
	}
	return cmd
}

// mount mounts and stays until the mount is gone: as the holder of a daemon, or,
// where systemd keeps what a daemon leaves, as the daemon itself.
func (p *program) mount(ctx context.Context, load func() (*config.Config, error)) (err error) {
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	if os.Getenv("FDSTORE") != "" {
		if err := holder.FlushIO(); err != nil {
			return err
		}
	}
	outer := os.Getenv("NOTIFY_SOCKET") // Connect takes it away
	keep, err := holder.Connect(os.Getenv)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keep.Close()) }()
	if keep.Has(keptFuse) { // of a mount that lives: nothing of it may be looked up by a path
		return p.serveKept(ctx, keep, log)
	}
	c, err := load()
	if err != nil {
		return err
	}
	if err := c.Resolve(); err != nil {
		return usage(err)
	}
	if err := c.CheckStore(); err != nil {
		return usage(err)
	}
	for _, l := range c.Idle() {
		log.Warn("this setting has no effect in this version", "setting", l.Path, "value", l.Value, "from", l.Origin.Where)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s: only root can mount; run this as root", c.Mount.Source)
	}
	if keep.Kind() != holder.Systemd {
		return p.hold(ctx, c, outer, log)
	}
	if err := keepSettings(keep, c); err != nil {
		return err
	}
	return p.serve(ctx, keep, c, log)
}

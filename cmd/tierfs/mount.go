package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/config"
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
		c, err := flags.load(p, extra...)
		if err != nil {
			return err
		}
		if err := c.Resolve(); err != nil {
			return usage(err)
		}
		if err := c.CheckStore(); err != nil {
			return usage(err)
		}
		log := slog.New(slog.NewTextHandler(p.stderr, nil))
		for _, l := range c.Idle() {
			log.Warn("this setting has no effect in this version", "setting", l.Path, "value", l.Value, "from", l.Origin.Where)
		}
		return p.mount(cmd.Context(), c, log)
	}
	return cmd
}

// gcPercent is how much garbage there may be beside what is in use: a burst of cold reads needs a buffer of up to 1 MiB for each
// of them, and memory that tierfs takes is page cache that the broker does not have.
const gcPercent = 25

// processors is what the Go runtime is to have at least. Most of tierfs' threads wait for the kernel's next request. As long as another
// processor idles, the runtime leaves such a thread its own; else it takes it away and gives it back for each request.
const processors = 8

// mount serves until the mount is gone. Signals that come while it starts end
// the start; later ones unmount, if nobody is in the mount. A terminal that goes
// away, or whoever reads the log, takes no mount from under a broker.
func (p *program) mount(ctx context.Context, c *config.Config, log *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(processors, runtime.GOMAXPROCS(0)))
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s: only root can mount; run this as root", c.Mount.Source)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer signal.Stop(signals)
	signal.Ignore(unix.SIGPIPE)
	defer signal.Reset(unix.SIGPIPE)
	starting, stop := context.WithCancel(ctx)
	defer stop()
	started, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-signals:
			stop()
		case <-started:
		}
	}()
	d, err := p.startDaemon(starting, c, log)
	close(started)
	<-watched
	if err != nil {
		return err
	}
	log.Info("mounted", "mountpoint", c.Mount.Mountpoint, "source", c.Mount.Source,
		"volume", d.volume.Identity().ID, "store", d.access.location, "monitoring", d.admin.Address())
	notify(log, sd.SdNotifyReady)
	if starting.Err() != nil { // the signal came too late to end the start
		d.tryUnmount()
	}
	for {
		select {
		case <-signals:
			d.tryUnmount()
		case <-ctx.Done():
			d.tryUnmount()
			ctx = context.WithoutCancel(ctx)
		case <-d.server.Done():
			notify(log, sd.SdNotifyStopping)
			if err := errors.Join(d.close(), d.stillMounted()); err != nil {
				return err
			}
			log.Info("unmounted", "mountpoint", c.Mount.Mountpoint)
			return nil
		}
	}
}

// notify tells systemd, if it started this process.
func notify(log *slog.Logger, state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		log.Warn("systemd cannot be told", "state", state, "err", err)
	}
}

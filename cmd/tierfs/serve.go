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
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/holder"
)

// gcPercent is how much garbage there may be beside what is in use: a burst of cold reads needs a buffer of up to 1 MiB for each
// of them, and memory that tierfs takes is page cache that the broker does not have.
const gcPercent = 25

// processors is what the Go runtime is to have at least. Most of tierfs' threads wait for the kernel's next request. As long as another
// processor idles, the runtime leaves such a thread its own; else it takes it away and gives it back for each request.
const processors = 8

// daemonCommand is what a holder starts.
func (p *program) daemonCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use: "daemon", Hidden: true, Args: between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if check {
				return canTakeOver()
			}
			_ = os.WriteFile("/proc/self/comm", []byte("tierfs"), 0) // it was executed by a descriptor, which is its name now
			log := slog.New(slog.NewTextHandler(p.stderr, nil))
			keep, err := holder.Connect(os.Getenv)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, keep.Close()) }()
			return p.serveKept(cmd.Context(), keep, log)
		},
	}
	cmd.Flags().BoolVar(&p.handedOver, "handed-over", false, "the predecessor had answered every request, or the kernel sends it again")
	cmd.Flags().BoolVar(&check, "check", false, "only say whether this binary can take the mount over")
	return cmd
}

// serveKept serves with the settings that were left to this process.
func (p *program) serveKept(ctx context.Context, keep *holder.Keeper, log *slog.Logger) error {
	c, err := settingsOf(keep)
	if err != nil {
		return err
	}
	return p.serve(ctx, keep, c, log)
}

// serve mounts, or takes a mount over, and serves it until it is gone. Signals that
// come while it starts end the start; later ones unmount, if nobody is in the mount. A
// terminal that goes away, or whoever reads the log, takes no mount from under a
// broker.
func (p *program) serve(ctx context.Context, keep *holder.Keeper, c *config.Config, log *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(processors, runtime.GOMAXPROCS(0)))
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
	d, err := p.startDaemon(starting, keep, c, log)
	close(started)
	<-watched
	if err != nil {
		return err
	}
	d.started()
	if starting.Err() != nil { // the signal came too late to end the start
		d.tryUnmount()
	}
	return d.wait(ctx, signals)
}

// wait serves until the mount is gone.
func (d *daemon) wait(ctx context.Context, signals <-chan os.Signal) error {
	beating := make(chan struct{})
	var heart sync.WaitGroup
	heart.Go(func() { d.beat(beating) })
	defer heart.Wait()
	defer close(beating)
	lost, done := d.keep.Lost(), ctx.Done()
	var again <-chan time.Time
	for {
		select {
		case <-signals:
			d.tryUnmount()
		case <-done:
			d.tryUnmount()
			done = nil
		case <-lost:
			d.log.Warn("the holder has died; starting another one")
			again = d.replaceHolder()
			lost = d.keep.Lost()
		case <-again:
			again = d.replaceHolder()
			lost = d.keep.Lost()
		case u := <-d.upgrades:
			u.failed <- d.execute(u)
		case <-d.server.Done():
			return d.end()
		}
	}
}

// started tells everybody that reads work.
func (d *daemon) started() {
	word, args := "mounted", []any{"mountpoint", d.cfg.Mount.Mountpoint, "source", d.cfg.Mount.Source,
		"volume", d.volume.Identity().ID, "store", d.access.location, "monitoring", d.admin.Address(), "writes", d.writes.mode}
	if d.takeover {
		word = "took the mount over"
		args = append(args, "takeovers", d.table.Takeovers())
	}
	if d.writes.why != "" {
		args = append(args, "because", d.writes.why)
	}
	d.log.Info(word, args...)
	d.tell("ready", d.keep.Ready)
}

// beat gives signs of life until quit is closed: the tables can be reached, whatever
// store and disk do, and whatever an unmount or an upgrade waits for.
func (d *daemon) beat(quit <-chan struct{}) {
	for {
		every := d.keep.BeatEvery() // another holder may want it otherwise
		if every <= 0 {
			every = holderPause
		}
		select {
		case <-quit:
			return
		case <-time.After(every):
		}
		d.server.Alive()
		d.volume.Identity()
		d.tell("a sign of life", d.keep.Beat)
	}
}

func (d *daemon) tell(what string, send func() error) {
	if err := send(); err != nil {
		d.log.Warn("the holder cannot be told", "what", what, "err", err)
	}
}

// holderPause is how long a daemon without a holder waits before it tries again.
const holderPause = 5 * time.Second

// replaceHolder starts another holder for the one that has died. Without one the
// mount is served as before, and dies with this process; then it is time to try again when
// the returned channel says so.
func (d *daemon) replaceHolder() (again <-chan time.Time) {
	err := d.keep.Adopt([]string{os.Args[0], "holder"}, d.environ)
	switch {
	case err == nil:
		d.log.Info("another holder keeps the mount", "pid", d.keep.PID())
	case !errors.Is(err, holder.ErrStopping):
		d.log.Error("there is no holder: if this process dies, so does the mount", "err", err)
		return time.After(holderPause)
	}
	return nil
}

// end is the end of a mount that is gone.
func (d *daemon) end() error {
	d.tell("stopping", d.keep.Stopping)
	if err := errors.Join(d.server.Err(), d.close(), d.stillMounted(), d.dropKept()); err != nil {
		return err
	}
	d.log.Info("unmounted", "mountpoint", d.cfg.Mount.Mountpoint)
	return nil
}

// dropKept takes everything back from the holder.
func (d *daemon) dropKept() error {
	var errs []error
	for _, name := range d.keep.Names() {
		errs = append(errs, d.keep.Drop(name))
	}
	return errors.Join(errs...)
}

// inherit returns a kept descriptor that has to be there.
func inherit(keep *holder.Keeper, name string) (int, error) {
	fd, ok := keep.Take(name)
	if !ok {
		return -1, fmt.Errorf("the predecessor has not left %q; unmount, and mount again", name)
	}
	return fd, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/config"
	"github.com/tierfs/tierfs/holder"
)

// What outlives a daemon, by name; see also package fs, for unlinked files.
const (
	keptSettings = "settings" // memory: the effective settings, as a file of settings
	keptSource   = "source"   // the source directory, locked
	keptLock     = "lock"     // .tierfs/lock, locked
	keptCache    = "cache"    // the chunk cache's directory, locked
	keptTable    = "table"    // see holder.Table
	keptFuse     = "fuse"     // the kernel's side of the mount
	keptControl  = "control"  // the listening control socket
	// keptMonitoring is the listener of admin.listen: somebody else could take the
	// address between two daemons.
	keptMonitoring = "monitoring"
)

// hangLimit is how long a daemon may give no sign of life before it is replaced.
const hangLimit = 30 * time.Second

// hold runs a daemon and starts it again when it dies, until the mount is gone. outer is
// the socket of a service manager that wants to know, or "".
func (p *program) hold(ctx context.Context, c *config.Config, outer string, log *slog.Logger) error {
	binary, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("open the own binary: %w", err)
	}
	settings, err := memory(keptSettings, c.Encode())
	if err != nil {
		return errors.Join(err, binary.Close())
	}
	return p.supervise(ctx, holder.Options{
		Binary: binary,
		Args:   []string{os.Args[0], "daemon"},
		Env:    p.environ,
		Files:  map[string]*os.File{keptSettings: settings},
		Notify: outer,
		Hang:   hangLimit,
		Log:    log,
	})
}

// supervise ends as the last daemon did: it has said why. Whoever reads the log may go
// away, and takes no mount from under a broker.
func (p *program) supervise(ctx context.Context, o holder.Options) error {
	signal.Ignore(unix.SIGPIPE)
	defer signal.Reset(unix.SIGPIPE)
	status, err := holder.Supervise(ctx, o)
	if err != nil {
		return err
	}
	if status != 0 {
		return &exitError{status}
	}
	return nil
}

// exitError is the status that another process has ended with, after it said why.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("the daemon ended with status %d", e.status) }

// holderCommand is what a daemon that has lost its holder starts.
func (p *program) holderCommand() *cobra.Command {
	return &cobra.Command{
		Use: "holder", Hidden: true, Args: between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(p.stderr, nil))
			o, err := holder.Inherit(os.Getenv)
			if err != nil {
				return err
			}
			o.Args, o.Env, o.Hang, o.Log = []string{os.Args[0], "daemon"}, p.environ, hangLimit, log
			return p.supervise(cmd.Context(), o)
		},
	}
}

// keepSettings leaves the settings to successors.
func keepSettings(keep *holder.Keeper, c *config.Config) error {
	f, err := memory(keptSettings, c.Encode())
	if err != nil {
		return err
	}
	defer f.Close()
	return keep.Put(keptSettings, int(f.Fd()))
}

// settingsOf reads the settings that a predecessor or the holder has left.
func settingsOf(keep *holder.Keeper) (*config.Config, error) {
	fd, ok := keep.Take(keptSettings)
	if !ok {
		return nil, errors.New("this command is for tierfs itself; use `tierfs mount`")
	}
	defer unix.Close(fd)
	return loadSettings(fd)
}

func loadSettings(fd int) (*config.Config, error) {
	return config.Load(config.Input{File: fmt.Sprintf("/proc/self/fd/%d", fd)})
}

// memory returns a file that is in memory only.
func memory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("tierfs-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

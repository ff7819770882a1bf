package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/fs"
	"github.com/tierfs/tierfs/holder"
)

func (p *program) upgradeCommand() *cobra.Command {
	return p.onWhole("upgrade MOUNTPOINT", "Hand a living mount over to this binary; nobody in the mount notices",
		func(ctx context.Context, c *admin.Client) error {
			binary, err := os.Readlink("/proc/self/exe")
			if err != nil {
				return err
			}
			return p.upgrade(ctx, c, binary)
		})
}

// takeoverPatience is how long a new binary may take until it serves: opening a large
// volume takes seconds.
const takeoverPatience = 2 * time.Minute

func (p *program) upgrade(ctx context.Context, c *admin.Client, binary string) error {
	before, err := c.Status(ctx, false)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := c.Upgrade(ctx, admin.UpgradeRequest{Binary: binary}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, takeoverPatience)
	defer cancel()
	for {
		after, err := c.Status(ctx, false)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s: the daemon does not answer after the upgrade: %w; see its log", before.Mountpoint, context.Cause(ctx))
		case err != nil || after.Takeovers == before.Takeovers:
			time.Sleep(5 * time.Millisecond) // the connection that was queued dies with the old binary
			continue
		case after.Binary != binary:
			return fmt.Errorf("%s: %s did not take the mount over, %s serves on; the log of the mount says why", after.Mountpoint, binary, after.Binary)
		}
		fmt.Fprintf(p.stdout, "%s: %s %s took over from %s %s after %s\n", after.Mountpoint, after.Binary, after.Version,
			before.Binary, before.Version, time.Since(began).Round(time.Millisecond))
		return nil
	}
}

// upgrade is a binary that shall take the place of this one.
type upgrade struct {
	binary *os.File
	failed chan error // gets one error if it does not
}

// checkPatience is how long a new binary may take to say that it can take over.
const checkPatience = 20 * time.Second

// Upgrade implements admin.Daemon. The binary is asked first whether it understands
// what it would take over; what it does not understand it must not meet.
func (d *daemon) Upgrade(ctx context.Context, what admin.UpgradeRequest) (commit func() error, err error) {
	if d.keep.Kind() == holder.None {
		return nil, errors.New("this mount has no holder, so nothing can take it over; unmount, and mount again")
	}
	binary, err := os.Open(what.Binary)
	if err != nil {
		return nil, err
	}
	if err := d.askBinary(ctx, binary); err != nil {
		return nil, errors.Join(err, binary.Close())
	}
	return func() error {
		u := upgrade{binary, make(chan error, 1)}
		defer binary.Close()
		select {
		case d.upgrades <- u:
			return <-u.failed
		case <-d.server.Done():
			return errors.New("unmounted meanwhile")
		}
	}, nil
}

// askBinary runs a binary beside this one, which looks at the table and the settings.
func (d *daemon) askBinary(ctx context.Context, binary *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	files := []*os.File{binary}
	for _, name := range []string{keptTable, keptSettings} {
		fd, err := inherit(d.keep, name)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		files = append(files, f)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", "daemon", "--check")
	cmd.Args[0], cmd.Env, cmd.ExtraFiles = binary.Name(), d.environ, files
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s cannot take the mount over: %s (%w); the running version serves on", binary.Name(), strings.TrimSpace(said.String()), err)
	}
	return nil
}

// Descriptors of `tierfs daemon --check`.
const (
	checkedTable    = 4
	checkedSettings = 5
)

// canTakeOver is the other side of askBinary.
func canTakeOver() error {
	if _, err := loadSettings(checkedSettings); err != nil {
		return err
	}
	request, reply, err := holder.InitOf(checkedTable)
	if err != nil {
		return err
	}
	return fs.CanTakeOver(request, reply)
}

// drainPatience is how long requests under way may take before an upgrade gives up.
const drainPatience = 10 * time.Second

// execute replaces this process' binary, and with it the process. It returns only if
// that failed; then this process serves on. Without requests that are sent again none
// may be under way.
func (d *daemon) execute(u upgrade) error {
	d.log.Info("handing the mount over", "binary", u.binary.Name())
	if !d.server.Resend() {
		ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
		defer cancel()
		defer d.server.Continue()
		if err := d.server.Drain(ctx); err != nil {
			return fmt.Errorf("requests are under way: %w; this version serves on", err)
		}
	}
	d.flusher.pause()
	defer d.flusher.resume()
	return d.keep.Exec(int(u.binary.Fd()), []string{os.Args[0], "daemon", "--handed-over"}, d.environ)
}

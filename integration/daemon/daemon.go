// Package daemon builds and runs tierfs as an operator does: the real binary, a settings file, the command line and the metrics
// page. It knows nothing of the daemon's inside.
package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
)

// stopGrace is how long an unmount on SIGTERM may take.
const stopGrace = 60 * time.Second

// Build compiles tierfs from the module that the current directory belongs to into the file at path, with the race detector if wanted, and
// with build tags.
func Build(ctx context.Context, path string, race bool, tags ...string) error {
	args := []string{"build", "-o", path, "-tags", strings.Join(tags, ",")}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "github.com/tierfs/tierfs/cmd/tierfs")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build tierfs: %w: %s", err, out)
	}
	return nil
}

// Options describe a daemon.
type Options struct {
	Binary     string
	Dir        string   // its own directory: settings and log
	Source     string   // what is mounted
	Mountpoint string   // "" = over the source
	Settings   string   // TOML besides [admin] and [mount]
	Mount      string   // further lines of [mount]
	Env        []string // on top of the parent's
}

// Daemon is one `tierfs mount`, that is a holder and the daemon that it runs, and its commands. It keeps its settings and its metrics port over restarts. Start, Stop and Kill
// must not run in parallel; the commands may.
type Daemon struct {
	options Options
	config  string // path of the settings
	admin   string // address of the metrics page
	output  *child.Output
	process *child.Process // nil: never started
}

// New writes the settings file. Nothing is started.
func New(o Options) (*Daemon, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	ports, err := child.FreePorts(1)
	if err != nil {
		return nil, err
	}
	output, err := child.NewOutput(filepath.Join(o.Dir, "tierfs.log"))
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		options: o,
		config:  filepath.Join(o.Dir, "tierfs.toml"),
		admin:   fmt.Sprintf("127.0.0.1:%d", ports[0]),
		output:  output,
	}
	settings := fmt.Sprintf("[mount]\n%s\n[admin]\nlisten = %q\n%s", o.Mount, d.admin, o.Settings)
	if err := os.WriteFile(d.config, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	return d, nil
}

// Mountpoint is where the broker's view is.
func (d *Daemon) Mountpoint() string {
	if d.options.Mountpoint != "" {
		return d.options.Mountpoint
	}
	return d.options.Source
}

// Config is the path of the settings file.
func (d *Daemon) Config() string { return d.config }

// Log is what the daemon has printed.
func (d *Daemon) Log() *child.Output { return d.output }

// Process is the `tierfs mount` of the last start: it counts as running until the daemon, which has its output, has ended, too.
func (d *Daemon) Process() *child.Process { return d.process }

// Start mounts, and returns when the daemon says that reads work.
func (d *Daemon) Start(ctx context.Context) error {
	from := d.output.Len()
	process, err := d.Launch()
	if err != nil {
		return err
	}
	if err := d.output.Await(ctx, process, from, "mounted"); err != nil {
		return errors.Join(fmt.Errorf("tierfs mount: %w", err), d.Kill())
	}
	return nil
}

// Launch starts `tierfs mount` and waits for nothing.
func (d *Daemon) Launch() (*child.Process, error) {
	args := []string{"mount", "--config", d.config, d.options.Source}
	if d.options.Mountpoint != "" {
		args = append(args, d.options.Mountpoint)
	}
	cmd := d.command(args)
	cmd.Env = append(cmd.Env, markVariable+"="+d.options.Dir)
	cmd.Stdout, cmd.Stderr = d.output, d.output
	process, err := child.Start(cmd)
	if err != nil {
		return nil, err
	}
	d.process = process
	return process, nil
}

// Stop unmounts by SIGTERM, waits for the daemon's end, and insists on exit status 0 and on no mount being left.
func (d *Daemon) Stop() error {
	if d.process == nil || !d.process.Running() {
		return nil
	}
	if err := d.process.Stop(stopGrace); err != nil {
		return err
	}
	if err := d.process.Err(); err != nil {
		return fmt.Errorf("tierfs mount ended with %w; its last lines:\n%s", err, d.output.Tail(20))
	}
	if mounted, err := Mounted(d.Mountpoint()); err != nil || mounted {
		return errors.Join(err, fmt.Errorf("%s is still mounted after a clean stop", d.Mountpoint()))
	}
	return nil
}

// Close takes everything down, whatever state it is in: the process, the mount, the log. Errors of a clean stop are returned.
func (d *Daemon) Close() error {
	err := d.Stop()
	if d.process != nil {
		err = errors.Join(err, d.Kill())
	}
	for range 4 { // a mount may have been made over another one
		mounted, lookErr := Mounted(d.Mountpoint())
		if lookErr != nil || !mounted {
			err = errors.Join(err, lookErr)
			break
		}
		err = errors.Join(err, unix.Unmount(d.Mountpoint(), unix.MNT_DETACH))
	}
	return errors.Join(err, d.output.Close())
}

// Result is what a command printed and how it ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs a tierfs command with these settings. That it ends with another status than 0 is no error here.
func (d *Daemon) Run(ctx context.Context, args ...string) (Result, error) {
	return d.runWith(ctx, d.options.Binary, args...)
}

func (d *Daemon) runWith(ctx context.Context, binary string, args ...string) (Result, error) {
	cmd := d.command(args)
	cmd.Path = binary
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	process, err := child.Start(cmd)
	if err != nil {
		return Result{}, err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		return Result{}, errors.Join(fmt.Errorf("tierfs %s: %w", strings.Join(args, " "), context.Cause(ctx)), process.Kill())
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: process.ExitCode()}, nil
}

// Do runs a tierfs command that has to succeed and returns its stdout.
func (d *Daemon) Do(ctx context.Context, args ...string) (string, error) {
	return d.DoWith(ctx, d.options.Binary, args...)
}

// DoWith is Do with another binary.
func (d *Daemon) DoWith(ctx context.Context, binary string, args ...string) (string, error) {
	r, err := d.runWith(ctx, binary, args...)
	if err != nil {
		return "", err
	}
	if r.Code != 0 {
		return "", fmt.Errorf("tierfs %s: exit status %d: %s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout, nil
}

func (d *Daemon) command(args []string) *exec.Cmd {
	cmd := exec.Command(d.options.Binary, args...)
	cmd.Dir = d.options.Dir
	cmd.Env = append(os.Environ(), d.options.Env...)
	return cmd
}

// Mounted says whether something is mounted at path, by the kernel's own table.
func Mounted(path string) (bool, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			return true, nil
		}
	}
	return false, nil
}

// Package rig puts the pieces together that every test, the demo and the benchmarks need: a directory, a store, tierfs over it, a
// broker on it, and a client.
//
// It promises that Close leaves nothing behind, in whatever state things are: no process, no mount. The directory itself belongs
// to the caller.
package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/kafka"
)

// Options describe a rig.
type Options struct {
	Install  kafka.Install
	Root     string // an empty directory of its own
	Binary   string // tierfs; "" = there is no daemon, the broker runs on the plain directory
	Store    Store
	Mount    string            // lines of [mount]
	Settings string            // further TOML tables
	Apart    bool              // mount at a point of its own instead of over the source
	Broker   map[string]string // server properties
	Measured bool              // full JVMs
	Heap     string            // of the broker
}

// member is a rig's place in a cluster; the zero value is a cluster of one.
type member struct {
	node       int
	controller *kafka.Broker
	client     *kafka.Driver // of the cluster
}

// Rig is a broker's data directory with everything around it. Its parts may be used directly.
type Rig struct {
	Source string // the data directory
	Daemon *daemon.Daemon
	Broker *kafka.Broker
	Client *kafka.Driver

	below     *os.File // the source as it is below the mount
	own       bool     // the client is not a cluster's
	bootstrap string   // for clients
}

// New makes the directories and starts the client; nothing is mounted and no broker runs yet.
func New(o Options) (*Rig, error) { return newRig(o, member{}) }

func newRig(o Options, m member) (_ *Rig, err error) {
	r := &Rig{Source: filepath.Join(o.Root, "data"), Client: m.client, own: m.client == nil}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	view := r.Source
	if o.Apart {
		view = filepath.Join(o.Root, "view")
	}
	for _, dir := range []string{r.Source, view} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if r.below, err = os.Open(r.Source); err != nil {
		return nil, err
	}
	if o.Binary != "" {
		options := daemon.Options{
			Binary: o.Binary, Dir: filepath.Join(o.Root, "tierfs"), Source: r.Source,
			Settings: o.Store.Settings + o.Settings, Mount: o.Mount, Env: o.Store.Env,
		}
		if o.Apart {
			options.Mountpoint = view
		}
		if r.Daemon, err = daemon.New(options); err != nil {
			return nil, err
		}
	}
	if err := r.addBroker(o, m, view); err != nil || !r.own {
		return r, err
	}
	r.Client, err = kafka.StartDriver(o.Install, o.Root, o.Measured)
	return r, err
}

func (r *Rig) addBroker(o Options, m member, view string) (err error) {
	config := kafka.Config{
		Dir: filepath.Join(o.Root, "broker"), DataDir: view, Properties: o.Broker, Measured: o.Measured, Heap: o.Heap, Node: m.node,
	}
	if m.controller != nil {
		config.Role, config.Controller = kafka.Member, m.controller
	}
	if r.Broker, err = kafka.NewBroker(o.Install, config); err == nil {
		r.bootstrap = r.Broker.Bootstrap()
	}
	return err
}

// Close stops everything, the broker first.
func (r *Rig) Close() error {
	var errs []error
	if r.Client != nil && r.own {
		errs = append(errs, r.Client.Close())
	}
	if r.Broker != nil {
		errs = append(errs, r.Broker.Close())
	}
	if r.Daemon != nil {
		errs = append(errs, r.Daemon.Close())
	}
	if r.below != nil {
		errs = append(errs, r.below.Close())
	}
	return errors.Join(errs...)
}

// Below is a path to the source's own contents, also while the mount covers it.
func (r *Rig) Below() string { return fmt.Sprintf("/proc/self/fd/%d/.", r.below.Fd()) }

// Used is what the source takes on its disk, tierfs' own state included, but not its reserve, which no segment is in.
func (r *Rig) Used() (int64, error) {
	used, err := daemon.DiskUsage(r.Below())
	if err != nil {
		return 0, err
	}
	reserve, err := daemon.DiskUsage(filepath.Join(r.Below(), ".tierfs", "reserve")) // not there before the first mount
	return used - reserve, err
}

// View is the directory that the broker uses.
func (r *Rig) View() string {
	if r.Daemon == nil {
		return r.Source
	}
	return r.Daemon.Mountpoint()
}

// Up mounts (if there is a daemon), formats the directory (if it is new) and starts the broker.
func (r *Rig) Up(ctx context.Context) error {
	if r.Daemon != nil {
		if err := r.Daemon.Start(ctx); err != nil {
			return err
		}
	}
	if err := r.Client.Format(ctx, r.Broker); err != nil {
		return err
	}
	return r.Broker.Start(ctx)
}

// Do sends the client a request about this broker, or its cluster.
func (r *Rig) Do(ctx context.Context, verb string, args ...string) (kafka.Reply, error) {
	return r.Client.Do(ctx, verb, r.words(args)...)
}

// Go sends the client a request about this broker, or its cluster, and does not wait.
func (r *Rig) Go(verb string, args ...string) *kafka.Call { return r.Client.Go(verb, r.words(args)...) }

func (r *Rig) words(args []string) []string {
	return append([]string{"bootstrap=" + r.bootstrap}, args...)
}

// Checkpointed waits until the broker's checkpoints on disk have followed its logs: what was produced before is then below the
// recovery point and the high watermark, as far as its segments are sealed. The broker writes them twice a second.
func (r *Rig) Checkpointed(ctx context.Context) error {
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		path := filepath.Join(r.View(), name)
		for range 3 { // the first one may have been under way already, the second may have met a flush under way
			if err := replaced(ctx, path); err != nil {
				return fmt.Errorf("wait for %s: %w", name, err)
			}
		}
	}
	return nil
}

// replaced waits until the file at path is another inode than now.
func replaced(ctx context.Context, path string) error {
	var before, now unix.Stat_t
	if err := unix.Stat(path, &before); err != nil {
		return err
	}
	for tick := time.Tick(20 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick:
		}
		if err := unix.Stat(path, &now); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		} else if err == nil && (now.Ino != before.Ino || now.Mtim != before.Mtim) {
			return nil
		}
	}
}

// Forget drops what the kernel keeps of the files of the view, so that the next read has to ask tierfs.
func (r *Rig) Forget() error { return dropPages(r.View()) }

// Demo tells the story of tierfs on this machine, with a real Kafka broker and the embedded store, in about a minute.
//
// It works in a temporary directory and leaves nothing behind, no mount, no process, no file, also when it fails or is
// interrupted. Exit status 0 means that every step showed what it says.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/rig"
)

// limit is what the whole demo may take. It needs about a third of it.
const limit = 3 * time.Minute

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v", limit))
	defer cancel()
	install, err := kafka.Locate()
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "tierfs-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	binary, bucket, home := filepath.Join(root, "bin", "tierfs"), filepath.Join(root, "bucket"), filepath.Join(root, "home")
	if err := errors.Join(os.Mkdir(bucket, 0o755), os.Mkdir(home, 0o755), daemon.Build(ctx, binary, false)); err != nil {
		return err
	}
	r, err := rig.New(rig.Options{
		Install: install, Root: home, Binary: binary, Store: rig.FS(bucket),
		Settings: fmt.Sprintf("[retention]\ndelete_grace = %q\n", deleteGrace),
	})
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := r.Close(); closeErr != nil && ctx.Err() == nil {
			err = errors.Join(err, closeErr)
		}
		if err == nil {
			fmt.Println("\nAll stopped, unmounted and removed.")
		}
	}()
	s := &story{rig: r, store: rig.FS(bucket), started: time.Now()}
	for _, step := range []func(context.Context) error{
		s.native, s.refused, s.adopt, s.evict, s.readCold, s.kill, s.restart, s.deleteTopic,
	} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w\ntierfs said last:\n%s", err, r.Daemon.Log().Tail(15))
		}
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/tierfs/tierfs/integration/rig"
)

// consumerRows reads topics from the beginning, each once: evicted ones, of which the cache has nothing, and local ones, both
// without a page in the kernel's cache.
func consumerRows(ctx context.Context, b bench) (rows []row, err error) {
	bucket, err := b.bucket()
	if err != nil {
		return nil, err
	}
	r, err := brokerRig(ctx, b.install, filepath.Join(b.root, "consumer"), b.binary, rig.FS(bucket), "")
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, r.Close()) }()
	for i := range b.rounds + 1 {
		for _, kind := range []string{"cold", "local"} {
			topic := fmt.Sprintf("topic=%s-%d", kind, i)
			if _, err := r.Do(ctx, "create", topic, "min=1024", "max=1024"); err != nil {
				return nil, err
			}
			if _, err := r.Do(ctx, "produce", topic, fmt.Sprint("records=", perRound), "batch=262144"); err != nil {
				return nil, err
			}
		}
	}
	if err := r.Checkpointed(ctx); err != nil {
		return nil, err
	}
	if _, err := r.Daemon.Do(ctx, "evict", "--all", "--topic", "cold-*", r.View()); err != nil {
		return nil, err
	}
	consume := func(kind string) side {
		i := -1
		return side{name: kind, run: func(ctx context.Context) (float64, error) {
			i++
			if err := r.Forget(); err != nil {
				return 0, err
			}
			reply, err := r.Do(ctx, "consume", fmt.Sprintf("topic=%s-%d", kind, i), "compare=no")
			if err == nil && reply.Int("records") != perRound {
				err = fmt.Errorf("consumed %v", reply)
			}
			return rate(reply), err
		}}
	}
	row, err := compare(ctx, b.rounds, "Kafka consumer from offset 0, `fs` store", "MiB/s", "", consume("cold"), consume("local"))
	return append(rows, row), err
}

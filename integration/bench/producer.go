package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/rig"
)

const (
	// perRound is how many records of 1 KiB a topic has that is consumed in one round.
	perRound = 256 << 10
	// toolRecords is how many records of 1 KiB Kafka's tool writes in one round.
	toolRecords = 400_000
)

// segmentBytes makes segments small enough that a round seals some, and large enough that sealing is rare.
const segmentBytes = 64 << 20

// brokerSettings are those of the measured brokers: the defaults of Kafka, but for the segments' size.
var brokerSettings = map[string]string{
	"log.segment.bytes":                       fmt.Sprint(segmentBytes),
	"log.flush.offset.checkpoint.interval.ms": "1000",
}

// brokerRig is a running broker, on the mount or (without a binary) on a plain directory.
func brokerRig(ctx context.Context, install kafka.Install, root, binary string, store rig.Store) (*rig.Rig, error) {
	r, err := rig.New(rig.Options{
		Install: install, Root: root, Binary: binary, Store: store, Broker: brokerSettings, Measured: true, Heap: "1g",
		Settings: "[retention]\ndelete_grace = \"1 s\"\n",
	})
	if err != nil {
		return nil, err
	}
	if err := r.Up(ctx); err != nil {
		return nil, joined(err, r.Close())
	}
	return r, nil
}

// producer has Kafka's own tool write records of 1 KiB to a new topic, which is deleted afterwards.
func producer(b bench, name string, r *rig.Rig, batch int) side {
	round := 0
	return side{name: name, run: func(ctx context.Context) (float64, error) {
		round++
		topic := fmt.Sprintf("produce-%d-%d", batch, round)
		if _, err := r.Do(ctx, "create", "topic="+topic, "partitions=2", "min=1024", "max=1024"); err != nil {
			return 0, err
		}
		rate, err := b.install.ProducerPerformance(ctx, r.Broker, topic, b.scaled(toolRecords), 1024, "acks=all", fmt.Sprint("batch.size=", batch))
		if err != nil {
			return 0, err
		}
		_, err = r.Do(ctx, "delete", "topic="+topic)
		return rate, err
	}}
}

// rate is what a reply of the client says, in MiB/s.
func rate(reply kafka.Reply) float64 {
	return float64(reply.Int("bytes")) / (1 << 20) / reply.Duration("ms").Seconds()
}

// producerRows compares a broker on the mount with one on a plain directory, first while uploads are paused.
func producerRows(ctx context.Context, b bench) (rows []row, err error) {
	native, err := brokerRig(ctx, b.install, filepath.Join(b.root, "producer-native"), "", rig.Store{})
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, native.Close()) }()
	bucket, err := b.bucket()
	if err != nil {
		return nil, err
	}
	mount, err := brokerRig(ctx, b.install, filepath.Join(b.root, "producer-mount"), b.binary, rig.FS(bucket))
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, mount.Close()) }()
	for _, r := range []*rig.Rig{native, mount} { // a broker is slow until its code is compiled
		if _, err := producer(b, "warm", r, 4096).run(ctx); err != nil {
			return nil, err
		}
	}
	for _, mode := range []struct{ command, what, goal string }{{"pause", "uploads paused", "0.65"}, {"resume", "with uploads", ""}} {
		if _, err := mount.Daemon.Do(ctx, mode.command, mount.View()); err != nil {
			return rows, err
		}
		for _, batch := range []int{16 << 10, 256 << 10} {
			what := fmt.Sprintf("Kafka producer, %d KiB batches, %s", batch>>10, mode.what)
			r, err := compare(ctx, b.rounds, what, "MiB/s", mode.goal, producer(b, "mount", mount, batch), producer(b, "native", native, batch))
			if err != nil {
				return rows, err
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

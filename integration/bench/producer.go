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

// brokerRig is a running broker, on the mount or (without a binary) on a plain directory. mount are lines of [mount].
func brokerRig(ctx context.Context, install kafka.Install, root, binary string, store rig.Store, mount string) (*rig.Rig, error) {
	r, err := rig.New(rig.Options{
		Install: install, Root: root, Binary: binary, Store: store, Mount: mount, Broker: brokerSettings, Measured: true, Heap: "1g",
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

// brokers are running ones that are compared.
type brokers struct{ writeback, through, native *rig.Rig }

// each calls f for every broker, the native one last, and stops at the first error. mount is false for the native one.
func (all *brokers) each(f func(r **rig.Rig, name string, mount bool) error) error {
	for _, one := range []struct {
		r     **rig.Rig
		name  string
		mount bool
	}{{&all.writeback, writeback, true}, {&all.through, through, true}, {&all.native, "native", false}} {
		if err := f(one.r, one.name, one.mount); err != nil {
			return err
		}
	}
	return nil
}

func (all *brokers) close() (err error) {
	_ = all.each(func(r **rig.Rig, _ string, _ bool) error {
		if *r != nil {
			err = joined(err, (*r).Close())
		}
		return nil
	})
	return err
}

// start starts them, and has each do some work: a broker is slow until its code is compiled.
func (all *brokers) start(ctx context.Context, b bench) error {
	return all.each(func(r **rig.Rig, name string, mount bool) (err error) {
		root := filepath.Join(b.root, "producer-"+name)
		if !mount {
			*r, err = brokerRig(ctx, b.install, root, "", rig.Store{}, "")
		} else if bucket, bucketErr := b.bucket(); bucketErr != nil {
			err = bucketErr
		} else if *r, err = brokerRig(ctx, b.install, root, b.binary, rig.FS(bucket), writesSetting(name)); err == nil {
			err = writesAs(ctx, (*r).Daemon, name)
		}
		if err != nil {
			return err
		}
		_, err = producer(b, "warm", *r, 4096).run(ctx)
		return err
	})
}

// tell sends a command to each daemon.
func (all *brokers) tell(ctx context.Context, command string) error {
	return all.each(func(r **rig.Rig, _ string, mount bool) (err error) {
		if mount {
			_, err = (*r).Daemon.Do(ctx, command, (*r).View())
		}
		return err
	})
}

// producerRows compares brokers on mounts of both ways of writing with one on a plain directory, first while uploads are paused.
func producerRows(ctx context.Context, b bench) (rows []row, err error) {
	var all brokers
	defer func() { err = joined(err, all.close()) }()
	if err := all.start(ctx, b); err != nil {
		return nil, err
	}
	for _, mode := range []struct{ command, what, goal string }{{"pause", "uploads paused", "0.85 (aim 0.97)"}, {"resume", "with uploads", ""}} {
		if err := all.tell(ctx, mode.command); err != nil {
			return rows, err
		}
		for _, batch := range []int{16 << 10, 256 << 10} {
			what := fmt.Sprintf("Kafka producer, %d KiB batches, %s", batch>>10, mode.what)
			back := producer(b, writeback, all.writeback, batch)
			back.goal = mode.goal
			more, err := compareAll(ctx, b.rounds, what, "MiB/s",
				back, producer(b, through, all.through, batch), producer(b, "native", all.native, batch))
			if err != nil {
				return rows, err
			}
			rows = append(rows, more...)
		}
	}
	return rows, nil
}

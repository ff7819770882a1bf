package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/kafka"
	"github.com/tierfs/tierfs/integration/rig"
)

const (
	pace        = 10_000 // records/s
	paced       = 300_000
	pacedWarmup = 60_000 // of those, at the start: the tool's own code is compiled meanwhile
)

// latency is what Kafka's tool says of the time from a record's send to its acknowledgement, in milliseconds.
type latency struct {
	mean float64
	p99  float64 // the tool has whole milliseconds
}

// latencyRows compares how long records of 1 KiB take to be acknowledged at a pace that all sides keep up with, while uploads are paused.
func latencyRows(ctx context.Context, b bench) (_ []row, err error) {
	var all brokers
	defer func() { err = joined(err, all.close()) }()
	if err := all.start(ctx, b); err != nil {
		return nil, err
	}
	if err := all.tell(ctx, "pause"); err != nil {
		return nil, err
	}
	sides := []side{{name: writeback, goal: "at most 1.2 (aim 1.1)"}, {name: through}, {name: "native"}}
	p99s, means := make([][]float64, len(sides)), make([][]float64, len(sides))
	var runs []func(counted bool) error
	for i, r := range []*rig.Rig{all.writeback, all.through, all.native} {
		round := 0
		runs = append(runs, func(counted bool) error {
			round++
			l, err := b.latency(ctx, r, fmt.Sprint("paced-", round))
			if counted {
				p99s[i], means[i] = append(p99s[i], l.p99), append(means[i], l.mean)
			}
			return err
		})
	}
	what := fmt.Sprintf("Kafka producer at %d records/s, uploads paused: latency, ", pace)
	if err := alternate(b.rounds, runs...); err != nil {
		return nil, fmt.Errorf("%s%w", what, err)
	}
	rows := against(what+"p99", "ms", sides, p99s)
	sides[0].goal = ""
	return append(rows, against(what+"mean", "ms", sides, means)...), nil
}

// latency measures it once, on a topic of its own.
func (b bench) latency(ctx context.Context, r *rig.Rig, topic string) (latency, error) {
	if _, err := r.Do(ctx, "create", "topic="+topic, "partitions=2", "min=1024", "max=1024"); err != nil {
		return latency{}, err
	}
	l, err := pacedProducer(ctx, r.Broker, topic, b.scaled(paced), b.scaled(pacedWarmup))
	if err != nil {
		return latency{}, err
	}
	_, err = r.Do(ctx, "delete", "topic="+topic)
	return l, err
}

// steadyLine is what ProducerPerformance prints at its end of all records but those of the warm-up.
var steadyLine = regexp.MustCompile(`steady state records sent, ([0-9.]+) records/sec \([0-9.]+ MB/sec\), ([0-9.]+) ms avg latency, .* ([0-9]+) ms 99th,`)

// pacedProducer is a run of Kafka's own tool, in a JVM of its own. A broker that does not keep the pace is an error.
func pacedProducer(ctx context.Context, broker *kafka.Broker, topic string, records, warmup int) (latency, error) {
	root, err := kafka.ModuleRoot()
	if err != nil {
		return latency{}, err
	}
	cmd := exec.Command("java", "-Xms512m", "-Xmx512m", "-cp", filepath.Join(root, "build/kafka/libs")+"/*",
		"-Dlog4j2.configurationFile="+filepath.Join(root, "integration/kafka/log4j2.xml"), "-Dlog.level=WARN",
		"org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", fmt.Sprint(records), "--warmup-records", fmt.Sprint(warmup),
		"--record-size", "1024", "--throughput", fmt.Sprint(pace), "--bootstrap-server", broker.Bootstrap(), "--command-property", "acks=all")
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	process, err := child.Start(cmd)
	if err != nil {
		return latency{}, err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		return latency{}, errors.Join(context.Cause(ctx), process.Kill())
	}
	m := steadyLine.FindSubmatch(out.Bytes())
	if process.ExitCode() != 0 || m == nil {
		return latency{}, fmt.Errorf("ProducerPerformance ended with %d: %s%s", process.ExitCode(), out.String(), stderr.String())
	}
	rate, rateErr := strconv.ParseFloat(string(m[1]), 64)
	mean, meanErr := strconv.ParseFloat(string(m[2]), 64)
	p99, p99Err := strconv.ParseFloat(string(m[3]), 64)
	if err := errors.Join(rateErr, meanErr, p99Err); err != nil {
		return latency{}, err
	}
	if rate < 0.95*pace {
		return latency{}, fmt.Errorf("%.0f records/s instead of %d: the broker does not keep the pace", rate, pace)
	}
	return latency{mean: mean, p99: p99}, nil
}

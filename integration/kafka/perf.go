package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/tierfs/tierfs/integration/child"
)

// sent is what ProducerPerformance prints: now and then while it runs, and at the end of all.
var sent = regexp.MustCompile(`(\d+) records sent, [0-9.,]+ records/sec \(([0-9.]+) MB/sec\)`)

// ProducerPerformance has Kafka's own tool write records of size bytes to an existing topic, as fast as it can, and returns the
// MiB/s that it prints at its end. It is a JVM of its own each time, as for everybody who runs it. properties are the producer's,
// as key=value.
func (i Install) ProducerPerformance(ctx context.Context, b *Broker, topic string, records, size int, properties ...string) (float64, error) {
	args := append([]string{
		"--topic", topic, "--num-records", strconv.Itoa(records), "--record-size", strconv.Itoa(size), "--throughput", "-1",
		"--bootstrap-server", b.Bootstrap(), "--command-property",
	}, properties...)
	cmd := i.java("WARN", steady("512m"), "org.apache.kafka.tools.ProducerPerformance", args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	process, err := child.Start(cmd)
	if err != nil {
		return 0, err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		return 0, errors.Join(context.Cause(ctx), process.Kill())
	}
	lines := sent.FindAllSubmatch(out.Bytes(), -1)
	if process.ExitCode() != 0 || len(lines) == 0 || string(lines[len(lines)-1][1]) != strconv.Itoa(records) {
		return 0, fmt.Errorf("%w: ProducerPerformance ended with %d: %s%s", ErrClient, process.ExitCode(), out.String(), stderr.String())
	}
	return strconv.ParseFloat(string(lines[len(lines)-1][2]), 64)
}

package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tierfs/tierfs/integration/child"
)

// stopGrace is how long a clean shutdown of a broker may take.
const stopGrace = 60 * time.Second

// Config describes a broker.
type Config struct {
	Dir        string // its own directory: settings, log, cluster metadata
	DataDir    string // log.dirs; it must exist when the broker starts
	Heap       string // JVM heap, "512m" when empty
	Node       int    // node.id, 1 when 0
	Role       Role
	Controller *Broker           // the controller that a Member follows
	Measured   bool              // full JVM instead of a quickly started one
	Properties map[string]string // server properties on top of the defaults below
}

// Role is what a process is in its cluster.
type Role int

const (
	Alone      Role = iota // a broker that is its own controller: a whole cluster
	Controller             // a controller that is no broker
	Member                 // a broker that follows a controller of another process
)

// Broker is one Kafka process. It keeps its ports and its cluster id over restarts. Start, Stop and Kill must not run in parallel.
type Broker struct {
	install    Install
	config     Config
	bootstrap  string
	controller string // address of its own controller
	properties string // path
	output     *child.Output
	process    *child.Process // nil: never started
}

// NewBroker chooses ports and writes the settings. The data directory still has to be formatted.
func NewBroker(install Install, config Config) (*Broker, error) {
	if err := os.MkdirAll(config.Dir, 0o755); err != nil {
		return nil, err
	}
	ports, err := child.FreePorts(2)
	if err != nil {
		return nil, err
	}
	output, err := child.NewOutput(filepath.Join(config.Dir, "broker.log"))
	if err != nil {
		return nil, err
	}
	b := &Broker{
		install:    install,
		config:     config,
		bootstrap:  fmt.Sprintf("127.0.0.1:%d", ports[0]),
		controller: fmt.Sprintf("127.0.0.1:%d", ports[1]),
		properties: filepath.Join(config.Dir, "server.properties"),
		output:     output,
	}
	if err := os.WriteFile(b.properties, []byte(b.serverProperties()), 0o644); err != nil {
		return nil, err
	}
	return b, nil
}

// serverProperties are settings under which a whole life of a segment passes in seconds.
func (b *Broker) serverProperties() string {
	p := map[string]string{
		"controller.listener.names":                                  "CONTROLLER",
		"log.dirs":                                                   b.config.DataDir,
		"metadata.log.dir":                                           filepath.Join(b.config.Dir, "metadata"),
		"broker.session.timeout.ms":                                  "4000", // a killed broker comes back when its old session is over
		"broker.heartbeat.interval.ms":                               "500",
		"auto.create.topics.enable":                                  "false",
		"offsets.topic.replication.factor":                           "1",
		"offsets.topic.num.partitions":                               "1",
		"transaction.state.log.replication.factor":                   "1",
		"transaction.state.log.min.isr":                              "1",
		"transaction.state.log.num.partitions":                       "1",
		"group.initial.rebalance.delay.ms":                           "0",
		"log.segment.bytes":                                          "4194304",
		"log.retention.ms":                                           "-1",
		"log.retention.check.interval.ms":                            "1000",
		"log.segment.delete.delay.ms":                                "1000",
		"log.initial.task.delay.ms":                                  "500",
		"log.flush.offset.checkpoint.interval.ms":                    "500",
		"log.flush.start.offset.checkpoint.interval.ms":              "500",
		"replica.high.watermark.checkpoint.interval.ms":              "500",
		"log.cleaner.dedupe.buffer.size":                             "10485760",
		"transaction.remove.expired.transaction.cleanup.interval.ms": "3600000",
	}
	maps.Copy(p, b.roleProperties())
	maps.Copy(p, b.config.Properties)
	var lines strings.Builder
	for _, key := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&lines, "%s=%s\n", key, p[key])
	}
	return lines.String()
}

func (b *Broker) node() int { return max(1, b.config.Node) }

// voter names the one controller of the cluster.
func (b *Broker) voter() string {
	if b.config.Role == Member {
		return b.config.Controller.voter()
	}
	return fmt.Sprintf("%d@%s", b.node(), b.controller)
}

// roleProperties are the settings by which processes find each other.
func (b *Broker) roleProperties() map[string]string {
	broker, controller := "PLAINTEXT://"+b.bootstrap, "CONTROLLER://"+b.controller
	p := map[string]string{
		"node.id":                  fmt.Sprint(b.node()),
		"controller.quorum.voters": b.voter(),
		"process.roles":            "broker,controller",
		"listeners":                broker + "," + controller,
		"advertised.listeners":     broker,
	}
	switch b.config.Role {
	case Controller:
		p["process.roles"], p["listeners"] = "controller", controller
		delete(p, "advertised.listeners")
	case Member:
		p["process.roles"], p["listeners"] = "broker", broker
	}
	return p
}

// Properties is the path of the broker's settings, for Driver.Format.
func (b *Broker) Properties() string { return b.properties }

// Bootstrap is the address that clients connect to. It stays the same over restarts.
func (b *Broker) Bootstrap() string { return b.bootstrap }

// PID is the process id of the last start.
func (b *Broker) PID() int { return b.process.PID() }

// Log is what the broker has printed.
func (b *Broker) Log() *child.Output { return b.output }

// Process is the broker's process of the last start.
func (b *Broker) Process() *child.Process { return b.process }

// Start starts the broker and returns when it serves.
func (b *Broker) Start(ctx context.Context) error {
	heap := b.config.Heap
	if heap == "" {
		heap = "512m"
	}
	flags := quick(heap)
	if b.config.Measured {
		flags = steady(heap)
	}
	cmd := b.install.java("INFO", flags, "kafka.Kafka", b.properties)
	cmd.Dir = b.config.Dir
	cmd.Stdout, cmd.Stderr = b.output, b.output
	from := b.output.Len()
	process, err := child.Start(cmd)
	if err != nil {
		return err
	}
	b.process = process
	if err := b.output.Await(ctx, process, from, "Kafka Server started"); err != nil {
		return errors.Join(fmt.Errorf("broker: %w", err), process.Kill())
	}
	return nil
}

// Stop shuts the broker down cleanly and waits for its end. One that does not run is no error.
func (b *Broker) Stop() error {
	if b.process == nil || !b.process.Running() {
		return nil
	}
	return b.process.Stop(stopGrace)
}

// Kill ends the broker by SIGKILL and waits for its end.
func (b *Broker) Kill() error { return b.process.Kill() }

// Close stops the broker and closes its log.
func (b *Broker) Close() error { return errors.Join(b.Stop(), b.output.Close()) }

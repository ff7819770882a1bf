package rig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/tierfs/tierfs/integration/kafka"
)

// Cluster is several brokers, each with a directory, a mount, a daemon and a volume of its own, over one store. Their controller is
// a process apart, so that whatever happens to a broker happens to a broker only.
type Cluster struct {
	Nodes  []*Rig // in the order of their broker ids, which begin with 1
	Client *kafka.Driver

	controller *kafka.Broker
}

// controllerNode is the controller's node id.
const controllerNode = 100

// NewCluster makes the directories of so many brokers and starts the client; nothing is mounted and no broker runs yet. All rigs
// are of the same options.
func NewCluster(brokers int, o Options) (_ *Cluster, err error) {
	c := &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	dir := filepath.Join(o.Root, "controller")
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	config := kafka.Config{Dir: dir, DataDir: data, Heap: o.Heap, Measured: o.Measured, Node: controllerNode, Role: kafka.Controller}
	if c.controller, err = kafka.NewBroker(o.Install, config); err != nil {
		return nil, err
	}
	if c.Client, err = kafka.StartDriver(o.Install, o.Root, o.Measured); err != nil {
		return nil, err
	}
	var all []string
	for i := range brokers {
		own := o
		own.Root = filepath.Join(o.Root, "node-"+strconv.Itoa(i+1))
		r, err := newRig(own, member{node: i + 1, controller: c.controller, client: c.Client})
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, r)
		all = append(all, r.bootstrap)
	}
	for _, r := range c.Nodes {
		r.bootstrap = strings.Join(all, ",")
	}
	return c, nil
}

// Up starts the controller and brings every node up.
func (c *Cluster) Up(ctx context.Context) error {
	if err := c.Client.Format(ctx, c.controller); err != nil {
		return err
	}
	return errors.Join(c.controller.Start(ctx), c.Each(func(r *Rig) error { return r.Up(ctx) }))
}

// Each calls f for every node, in parallel, and returns all errors.
func (c *Cluster) Each(f func(*Rig) error) error {
	errs := make([]error, len(c.Nodes))
	var all sync.WaitGroup
	for i, r := range c.Nodes {
		all.Go(func() { errs[i] = f(r) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Close stops everything: the client, the nodes, and the controller last, since a broker that stops asks it.
func (c *Cluster) Close() error {
	var errs []error
	if c.Client != nil {
		errs = append(errs, c.Client.Close())
	}
	errs = append(errs, c.Each(func(r *Rig) error { return r.Close() }))
	if c.controller != nil {
		errs = append(errs, c.controller.Close())
	}
	return errors.Join(errs...)
}

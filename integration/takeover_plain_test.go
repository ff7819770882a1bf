package integration

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// writesModes are the ways to treat what is written, under each of which a mount is taken over.
var writesModes = []string{"through", "writeback"}

// eachWrites runs a test in each of these modes, which it has to hand to writing: the long way, in the default one only the short way.
func eachWrites(t *testing.T, test func(t *testing.T, mode string)) {
	modes := writesModes
	if !soak() {
		modes = []string{"writeback"}
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) { test(t, mode) })
	}
}

// writing is a store, and a mode for the mounts that use it.
func writing(store rig.Store, mode string) rig.Store {
	store.Env = append(slices.Clone(store.Env), "TIERFS_MOUNT_WRITES="+mode)
	return store
}

// mountAs mounts, and insists on the mode.
func (p *plain) mountAs(mode string) {
	p.t.Helper()
	p.mount()
	if s := p.status(); s.Writes != mode {
		p.t.Fatalf("the mode is %q instead of %q", s.Writes, mode)
	}
}

// die ends the daemon by SIGKILL and waits until another one serves. It returns how long nobody did.
func (p *plain) die() time.Duration {
	p.t.Helper()
	before := p.status()
	began := time.Now()
	_, err := p.daemon.KillRole(daemon.Serves)
	p.must(err)
	p.must(p.daemon.TakenOver(p.ctx, before.Takeovers+1))
	return time.Since(began)
}

// within fails the test if a call that waits for the mount does not return in time. The call then ends when the mount is taken down.
func (p *plain) within(limit time.Duration, what string, call func() error) {
	p.t.Helper()
	if err := p.returns(limit, what, call); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// returns is within, for a call that may return an error.
func (p *plain) returns(limit time.Duration, what string, call func() error) error {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- call() }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		p.t.Fatalf("%s: not within %v", what, limit)
	}
	return nil
}

// reads starts another process that reads a file, past the page cache, and waits until it hangs in the read.
func (p *plain) reads(name string) *reading {
	p.t.Helper()
	p.must(rig.DropFile(p.view(name)))
	r := &reading{name: name}
	cmd := exec.Command("cat", p.view(name))
	cmd.Stdout, cmd.Stderr = &r.got, &r.said
	var err error
	r.Process, err = child.Start(cmd)
	p.must(err)
	p.t.Cleanup(func() { _ = r.Kill() }) // it may have ended
	p.hangs(r.Process)
	return r
}

// reading is a process that reads a file.
type reading struct {
	*child.Process
	name      string
	got, said strings.Builder
}

// ends waits for the end of it.
func (r *reading) ends(limit time.Duration) error {
	select {
	case <-r.Done():
		return nil
	case <-time.After(limit):
		return fmt.Errorf("who reads %s has not ended after %v", r.name, limit)
	}
}

// segmentsIn are the paths of a topic's segments, the active one last.
func (p *plain) segmentsIn(topic string) []string {
	p.t.Helper()
	var names []string
	for name := range p.logs {
		if strings.HasPrefix(name, topic+"-0/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// dead reports whether an error is what a mount that nobody serves gives.
func dead(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

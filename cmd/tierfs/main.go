// Command tierfs mounts a log broker's data directory with tiered storage, and
// asks and tells the mounts of this machine.
//
// This package parses the command line and wires the other packages together;
// it decides nothing about segments. `tierfs mount` stays in the foreground as the
// holder of the daemon that serves the mount, its child, or, under systemd with an fd
// store, as the daemon itself (package holder). The other commands talk to the daemon
// over its control socket (package admin), or work on a source or a store directly.
//
// Exit status: 0 done, 1 it failed or found something, 2 usage. An error is one
// line on stderr.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tierfs/tierfs/admin"
	"github.com/tierfs/tierfs/config"
)

// version is set by the linker; see the Makefile.
var version = ""

func main() {
	p := program{stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), runDir: admin.RunDir}
	err := p.run(context.Background(), os.Args[1:])
	var said *exitError
	if err != nil && !errors.Is(err, errFound) && !errors.As(err, &said) {
		fmt.Fprintln(os.Stderr, "tierfs: "+oneLine(err))
	}
	os.Exit(exitStatus(err))
}

// program is what a command has of the world around it.
type program struct {
	stdout, stderr io.Writer
	environ        []string
	runDir         string
	handedOver     bool // this process is another one's, after an upgrade
}

// run runs one command.
func (p *program) run(ctx context.Context, args []string) error {
	root, started := p.commands()
	root.SetArgs(args)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && !*started { // the command line itself is wrong
		return usage(err)
	}
	return err
}

// errFound: a check found something. It has been printed.
var errFound = errors.New("found something wrong")

// usageError is an error of whoever typed the command or wrote the settings.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(err error) error { return &usageError{err} }

func exitStatus(err error) int {
	var u *usageError
	var c *config.Error
	var d *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &d):
		return d.status
	case errors.As(err, &u), errors.As(err, &c):
		return 2
	}
	return 1
}

// oneLine writes an error in one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

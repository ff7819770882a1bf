// Bench measures what BENCHMARKS.md reports: what the mount costs a broker against the same disk without it, and what tierfs makes
// of its store. It prints a markdown table of ratios, each the ratio of two medians from alternating rounds in one run, with every
// number that it comes from.
//
// It works in a temporary directory and leaves nothing behind, also when it is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/kafka"
)

// bench is what the groups of rows share.
type bench struct {
	install kafka.Install
	root    string // for everything that a group writes
	binary  string
	rounds  int
}

// bucket makes an empty directory for the embedded store.
func (b bench) bucket() (string, error) { return os.MkdirTemp(b.root, "bucket-") }

var groups = []struct {
	name string
	rows func(context.Context, bench) ([]row, error)
}{
	{"fio", fioRows}, {"producer", producerRows}, {"upload", uploadRows}, {"consumer", consumerRows},
}

func main() {
	rounds := flag.Int("rounds", 5, "counted rounds of each row")
	only := flag.String("only", "", "comma-separated groups of rows: fio, producer, upload, consumer; all when empty")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *rounds, *only)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, only string) (err error) {
	install, err := kafka.Locate()
	if err != nil {
		return err
	}
	machine, err := describe(ctx)
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "tierfs-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	b := bench{install: install, root: root, binary: filepath.Join(root, "tierfs"), rounds: rounds}
	if err := daemon.Build(ctx, b.binary, false); err != nil {
		return err
	}
	var all []row
	for _, group := range groups {
		if only != "" && !strings.Contains(","+only+",", ","+group.name+",") {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring: %s\n", group.name)
		rows, err := group.rows(ctx, b)
		if err != nil {
			return fmt.Errorf("%s: %w", group.name, joined(err, context.Cause(ctx)))
		}
		all = append(all, rows...)
	}
	fmt.Printf("%s\n\n", machine)
	return table(os.Stdout, all)
}

// joined is errors.Join that keeps a lone error as it is.
func joined(a, b error) error {
	if b == nil {
		return a
	}
	return errors.Join(a, b)
}

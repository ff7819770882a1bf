// Bench measures what BENCHMARKS.md reports: what the mount costs a broker against the same disk without it, and what tierfs makes
// of its store. It prints a markdown table: ratios, each of two medians from alternating rounds in one run, and absolute numbers,
// with every number that they come from.
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
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/kafka"
)

// bench is what the groups of rows share.
type bench struct {
	install kafka.Install
	root    string // for everything that a group writes
	binary  string
	rounds  int
	quick   bool // an eighth of everything: to see that it runs
}

// scaled is how many of something a run has.
func (b bench) scaled(n int) int {
	if b.quick {
		return n / 8
	}
	return n
}

// bucket makes an empty directory for the embedded store.
func (b bench) bucket() (string, error) { return os.MkdirTemp(b.root, "bucket-") }

var groups = []struct {
	name string
	rows func(context.Context, bench) ([]row, error)
}{
	{"fio", fioRows}, {"appends", appendRows}, {"producer", producerRows}, {"latency", latencyRows}, {"upload", uploadRows}, {"consumer", consumerRows},
	{"hot", hotRows}, {"takeover", takeoverRows}, {"memory", memoryRows}, {"many", manyRows}, {"pass", passRows},
}

// helpers are what this program is with such a word as its first argument.
var helpers = map[string]func(args []string) error{"reader": reader, "load": runLoad}

func main() {
	if len(os.Args) > 1 && helpers[os.Args[1]] != nil {
		if err := helpers[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	var b bench
	flag.IntVar(&b.rounds, "rounds", 5, "counted rounds of each row")
	flag.BoolVar(&b.quick, "quick", false, "an eighth of everything, to see that it runs; the numbers mean nothing")
	only := flag.String("only", "", "comma-separated groups of rows: fio, appends, producer, latency, upload, consumer, hot, takeover, memory, many, pass; all when empty")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, b, *only)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, b bench, only string) (err error) {
	b.install, err = kafka.Locate()
	if err != nil {
		return err
	}
	machine, err := describe(ctx)
	if err != nil {
		return err
	}
	b.root, err = os.MkdirTemp("", "tierfs-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.root)) }()
	b.binary = filepath.Join(b.root, "tierfs")
	if err := daemon.Build(ctx, b.binary, false); err != nil {
		return err
	}
	var all []row
	for _, group := range groups {
		if only != "" && !strings.Contains(","+only+",", ","+group.name+",") {
			continue
		}
		began := time.Now()
		rows, err := group.rows(ctx, b)
		fmt.Fprintf(os.Stderr, "measured: %s, in %v\n", group.name, time.Since(began).Round(time.Second))
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

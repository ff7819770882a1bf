package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
)

// retryPause is how long a cold reader waits after an error, as a consumer does.
const retryPause = 50 * time.Millisecond

// Readers are processes of their own, as a broker is: this program again, with "reader" as its first argument.

// hotReads is a reader of one file, at random places.
type hotReads struct {
	path  string
	size  int  // of a read, in bytes
	count int  // of reads
	warm  bool // the file is in the page cache; else no read finds anything there
}

// run has a process of its own do the reads, and returns the 99th percentile of their times in microseconds.
func (h hotReads) run(ctx context.Context) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, "reader", "-hot", "-size", fmt.Sprint(h.size), "-count", fmt.Sprint(h.count), fmt.Sprint("-warm=", h.warm), h.path)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("reader: %w", err)
	}
	var report struct{ P99 float64 }
	return report.P99, json.Unmarshal(out, &report)
}

// coldReaders starts a process with so many threads that read segments until it is killed: sequentially, each one segment after
// the other, or at random places.
func coldReaders(threads int, sequential bool, paths []string) (*child.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append([]string{"reader", "-threads", fmt.Sprint(threads), fmt.Sprint("-sequential=", sequential)}, paths...)...)
	cmd.Stderr = os.Stderr
	return child.Start(cmd)
}

// reader is what such a process does.
func reader(args []string) error {
	flags := flag.NewFlagSet("reader", flag.ContinueOnError)
	hot := flags.Bool("hot", false, "time reads of one file, and print what they took")
	size := flags.Int("size", 4096, "bytes of a read")
	count := flags.Int("count", 1, "reads to time")
	warm := flags.Bool("warm", false, "the file is in the page cache")
	threads := flags.Int("threads", 1, "readers that are not timed")
	sequential := flags.Bool("sequential", false, "those read whole files")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *hot {
		return timeReads(hotReads{path: flags.Arg(0), size: *size, count: *count, warm: *warm})
	}
	var all sync.WaitGroup
	for n := range *threads {
		all.Go(func() {
			for i := n; ; i++ {
				if err := coldRead(flags.Arg(i%flags.NArg()), *sequential); err != nil {
					time.Sleep(retryPause)
				}
			}
		})
	}
	all.Wait()
	return nil
}

// coldRead reads a file, or 4 KiB somewhere in it.
func coldRead(path string, sequential bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !sequential {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil { // one READ for one read
			return err
		}
		_, err = f.ReadAt(make([]byte, 4096), rand.Int64N(info.Size()/4096)*4096)
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil { // read again what another one has read
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return err
}

// timeReads reads each block of the file once, in random order, and again from the start until there are enough.
func timeReads(h hotReads) error {
	f, err := os.Open(h.path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	blocks := int(info.Size() / int64(h.size))
	if blocks == 0 {
		return errors.New("the file is smaller than a read")
	}
	advice := []int{unix.FADV_DONTNEED, unix.FADV_RANDOM}
	if h.warm {
		if _, err := io.Copy(struct{ io.Writer }{io.Discard}, f); err != nil {
			return err
		}
		advice = nil
	}
	buf := make([]byte, h.size)
	var took []time.Duration
	for len(took) < h.count {
		for _, a := range advice {
			if err := unix.Fadvise(int(f.Fd()), 0, 0, a); err != nil {
				return err
			}
		}
		order := rand.Perm(blocks)
		for _, block := range order[:min(blocks, h.count-len(took))] {
			began := time.Now()
			if _, err := f.ReadAt(buf, int64(block)*int64(h.size)); err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	p99 := float64(took[len(took)*99/100].Nanoseconds()) / 1000
	return json.NewEncoder(os.Stdout).Encode(struct{ P99 float64 }{p99})
}

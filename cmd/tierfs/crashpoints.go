//go:build crashpoints

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// crashVariable names the file with the orders. It must not lie in the mount.
const crashVariable = "TIERFS_CRASHPOINTS"

// orders are what a test tells the daemon to do at its named steps, in a file that
// the test replaces while the daemon runs, so that what prepares a crash does not
// meet it. Each line is one:
//
//	crash POINT@N   at the N-th pass since the file was changed, end by SIGKILL, and the holder with it
//	die POINT@N     the same without the holder
//	hold POINT      stand still there for as long as the file says so
//
// Points are the names of package tier's steps, with ":done" behind them. Both are
// announced on stderr. A file that is missing has no orders.
type orders struct {
	path   string
	holder int // process; 0: none
	stderr func(format string, args ...any)

	mu     sync.Mutex
	last   string
	passed map[string]int
}

// crashpoints returns what is called at each step.
func (p *program) crashpoints(holder int) func(step string) {
	o := &orders{holder: holder, stderr: func(format string, args ...any) { fmt.Fprintf(p.stderr, format, args...) }}
	for _, entry := range p.environ {
		if path, ok := strings.CutPrefix(entry, crashVariable+"="); ok {
			o.path = path
		}
	}
	if o.path == "" {
		return nil
	}
	return o.step
}

const holdPace = time.Millisecond

func (o *orders) step(point string) {
	for held := false; ; held = true {
		crash, die, hold := o.pass(point, held)
		switch {
		case crash, die:
			o.stderr("crashing at %s\n", point)
			if crash && o.holder > 0 {
				endBoth(o.holder)
			}
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		case !hold:
			return
		case !held:
			o.stderr("holding at %s\n", point)
		}
		time.Sleep(holdPace)
	}
}

// endBoth ends the holder and this process at once: neither may replace the other. A
// third process does it, to which the holder stands still meanwhile.
func endBoth(holder int) {
	kill := fmt.Sprintf("kill -STOP %d; kill -KILL %d; kill -KILL %[1]d", holder, unix.Getpid())
	if err := exec.Command("/bin/sh", "-c", kill).Start(); err == nil {
		select {}
	}
}

// pass says what is ordered for one pass of a point; again: it has been counted.
func (o *orders) pass(point string, again bool) (crash, die, hold bool) {
	b, _ := os.ReadFile(o.path)
	o.mu.Lock()
	defer o.mu.Unlock()
	if text := string(b); text != o.last {
		o.last, o.passed = text, map[string]int{}
	}
	for line := range strings.Lines(o.last) {
		verb, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, count, _ := strings.Cut(what, "@")
		if name != point {
			continue
		}
		switch verb {
		case "crash", "die":
			if !again {
				o.passed[point]++
			}
			n, err := strconv.Atoi(count)
			now := err == nil && o.passed[point] == n
			crash, die = crash || now && verb == "crash", die || now && verb == "die"
		case "hold":
			hold = true
		}
	}
	return crash, die, hold
}

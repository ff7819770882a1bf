package holder

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRestartWithAllDescriptors(t *testing.T) {
	r := startRig(t, plan{Files: []string{"source", "lock"}})
	d := r.next()
	d.want("process", "kind")
	d.want("binary lock source", "names")
	d.ask("ready")
	d.ask("put table one")
	d.ask("put table two")
	d.ask("put gone x")
	d.ask("drop gone")
	d.ask("drop never")
	for range 3 {
		d.kill(unix.SIGKILL)
		d = r.next()
		d.want("binary lock source table", "names")
		d.want("two", "get table")
		d.want("file source", "get source")
		d.ask("ready")
	}
	d.ask("stopping")
	d.ask("exit 7")
	if got := r.exit(); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
}

// A put and the death right behind it: the descriptor is there in the next life, and a drop has been done.
func TestPutThenDeath(t *testing.T) {
	r := startRig(t, plan{Role: "child:rounds"})
	if got := r.exit(); got != 42 {
		t.Errorf("exit status %d, want 42", got)
	}
	if got := strings.Count(r.output(), "the daemon died and is replaced"); got != rounds {
		t.Errorf("%d deaths, want %d", got, rounds)
	}
}

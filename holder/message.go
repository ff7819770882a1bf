package holder

import (
	"errors"
	"fmt"
	"strings"
)

// Names that have a meaning of their own.
const (
	Binary     = "binary" // what the supervisor executes as the daemon
	nameHolder = "holder" // the socket to the supervisor
	nameDaemon = "daemon" // the pidfd of a daemon that is to be adopted
)

const (
	maxMessage = 4096
	maxName    = 255
	// maxNames is the length of LISTEN_FDNAMES that execve(2) takes for sure: one string may have 128 KiB.
	maxNames = 120_000
)

var (
	// ErrFull says that no more descriptors can be kept.
	ErrFull = errors.New("the holder keeps as many descriptors as it can")

	errName    = errors.New("not a name for a kept descriptor")
	errMessage = errors.New("bad message")
)

// A message is what one datagram from the daemon says.
type message struct {
	ready, reloading, stopping, beat bool
	store, remove                    bool
	name                             string // of store and remove
}

// parseMessage reads a datagram that came with fds descriptors. Keys that it does not know mean nothing, as with systemd.
func parseMessage(b []byte, fds int) (message, error) {
	if len(b) > maxMessage {
		return message{}, fmt.Errorf("%w: longer than %d bytes", errMessage, maxMessage)
	}
	var m message
	for line := range strings.SplitSeq(string(b), "\n") {
		switch line {
		case "READY=1":
			m.ready = true
		case "RELOADING=1":
			m.reloading = true
		case "STOPPING=1":
			m.stopping = true
		case "WATCHDOG=1":
			m.beat = true
		case "FDSTORE=1":
			m.store = true
		case "FDSTOREREMOVE=1":
			m.remove = true
		}
		if name, ok := strings.CutPrefix(line, "FDNAME="); ok {
			m.name = name
		}
	}
	return m, m.check(fds)
}

func (m message) check(fds int) error {
	want := 0
	if m.store {
		want = 1
	}
	if fds != want {
		return fmt.Errorf("%w: it has %d descriptors, not %d", errMessage, fds, want)
	}
	if m.store && m.remove {
		return fmt.Errorf("%w: stores and removes", errMessage)
	}
	if m.store || m.remove {
		return checkName(m.name)
	}
	return nil
}

// checkName holds a name to what systemd takes, without the names that we use ourselves.
func checkName(name string) error {
	if name == "" || len(name) > maxName || name == nameHolder || name == nameDaemon {
		return fmt.Errorf("%w: %q", errName, name)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || c == ':' {
			return fmt.Errorf("%w: %q", errName, name)
		}
	}
	return nil
}

// storeText asks to keep a descriptor. FDPOLL=0: systemd would otherwise drop one that reports an error or a hang-up. The
// fuse device does so as soon as the mount is gone, and a successor must learn that from the device and not from a missing
// descriptor; what we keep is let go when we say so, and only then.
func storeText(name string) string { return "FDSTORE=1\nFDNAME=" + name + "\nFDPOLL=0" }

func removeText(name string) string { return "FDSTOREREMOVE=1\nFDNAME=" + name }

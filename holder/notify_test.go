package holder

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A fakeSystemd reads NOTIFY_SOCKET as systemd does: it keeps what has one name beside each other, and closes what comes
// with BARRIER=1.
type fakeSystemd struct {
	conn *net.UnixConn
	wait sync.WaitGroup

	mu     sync.Mutex
	kept   []string // name=content
	heard  []string
	silent bool // it reads, but lets nobody know
	hold   []int
}

func startSystemd(t *testing.T, address string) *fakeSystemd {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	check(t, err)
	s := &fakeSystemd{conn: conn}
	s.wait.Go(s.serve)
	t.Cleanup(func() {
		check(t, conn.Close())
		s.wait.Wait()
		for _, fd := range s.hold {
			closeFD(fd)
		}
	})
	return s
}

func (s *fakeSystemd) serve() {
	buf, oob := make([]byte, 4096), make([]byte, 256)
	for {
		n, oobn, _, _, err := s.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		controls, _ := unix.ParseSocketControlMessage(oob[:oobn])
		fd := -1
		for _, c := range controls {
			if fds, err := unix.ParseUnixRights(&c); err == nil {
				fd = fds[0]
			}
		}
		s.hear(string(buf[:n]), fd)
	}
}

func (s *fakeSystemd) hear(text string, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text = strings.ReplaceAll(text, "\n", " ")
	s.heard = append(s.heard, text)
	_, rest, _ := strings.Cut(text, "FDNAME=")
	name, _, _ := strings.Cut(rest, " ")
	switch {
	case strings.HasPrefix(text, "FDSTOREREMOVE=1"):
		s.kept = slices.DeleteFunc(s.kept, func(k string) bool { return strings.HasPrefix(k, name+"=") })
	case strings.HasPrefix(text, "FDSTORE=1"):
		content, _ := readFD(fd)
		s.kept = append(s.kept, name+"="+content)
	case s.silent && fd >= 0:
		s.hold = append(s.hold, fd)
		return
	}
	closeFD(fd)
}

func (s *fakeSystemd) has() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.kept, " ")
}

func (s *fakeSystemd) hasHeard(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.heard, text)
}

// waitToHear is for messages that nobody waits for.
func (s *fakeSystemd) waitToHear(t *testing.T, text string) {
	t.Helper()
	for until := time.Now().Add(patience); !s.hasHeard(text); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the service manager never hears %q", text)
		}
	}
}

func connect(t *testing.T, env map[string]string) *Keeper {
	t.Helper()
	k, err := Connect(func(name string) string { return env[name] })
	check(t, err)
	t.Cleanup(func() { check(t, k.Close()) })
	return k
}

func put(t *testing.T, k *Keeper, name, content string) {
	t.Helper()
	check(t, putContent(k, name, content))
}

func TestSystemd(t *testing.T) {
	addresses := map[string]string{
		"path":     filepath.Join(t.TempDir(), "notify"),
		"abstract": "@tierfs-holder-test-" + ownPID(),
	}
	for kind, address := range addresses {
		t.Run(kind, func(t *testing.T) {
			systemd := startSystemd(t, address)
			k := connect(t, map[string]string{
				"NOTIFY_SOCKET": address, "FDSTORE": "2", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": ownPID(),
			})
			if k.Kind() != Systemd || k.PID() != os.Getppid() || k.BeatEvery() != 1500*time.Millisecond {
				t.Errorf("kind %s, pid %d, beats every %v", k.Kind(), k.PID(), k.BeatEvery())
			}
			check(t, k.Ready())
			put(t, k, "a", "1")
			put(t, k, "b", "2")
			put(t, k, "a", "3")
			if got := systemd.has(); got != "b=2 a=3" {
				t.Errorf("when Put has returned, systemd keeps %s", got)
			}
			if err := putContent(k, "c", "4"); !errors.Is(err, ErrFull) {
				t.Errorf("put of a third one: %v", err)
			}
			check(t, k.Drop("b"))
			put(t, k, "c", "4")
			if got := systemd.has(); got != "a=3 c=4" {
				t.Errorf("systemd keeps %s", got)
			}
			check(t, k.Beat())
			check(t, k.Stopping())
			for _, text := range []string{"READY=1", "WATCHDOG=1", "STOPPING=1", "FDSTORE=1 FDNAME=a FDPOLL=0"} {
				systemd.waitToHear(t, text)
			}
			if err := k.Adopt([]string{"x"}, nil); err == nil {
				t.Error("adopted beside systemd")
			}
		})
	}
}

// A Put of which nobody knows whether it was taken is no Put.
func TestSystemdDoesNotAnswer(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	systemd := startSystemd(t, address)
	k := connect(t, map[string]string{"NOTIFY_SOCKET": address, "FDSTORE": "2"})
	k.notify.wait = 50 * time.Millisecond
	put(t, k, "a", "1")
	systemd.mu.Lock()
	systemd.silent = true
	systemd.mu.Unlock()
	if err := putContent(k, "a", "2"); !errors.Is(err, ErrNotTaken) {
		t.Errorf("put: %v", err)
	}
	if got, err := getContent(k, "a"); got != "1" || err != nil {
		t.Errorf("kept: %s, %v", got, err)
	}
	check(t, os.Remove(address))
	if err := putContent(k, "b", "2"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("put without a service manager: %v", err)
	}
	if err := k.Ready(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("ready without a service manager: %v", err)
	}
}

// Without an fd store the service manager only hears how we are.
func TestPlainNotify(t *testing.T) {
	address := filepath.Join(t.TempDir(), "notify")
	systemd := startSystemd(t, address)
	k := connect(t, map[string]string{"NOTIFY_SOCKET": address})
	if k.Kind() != None || k.PID() != 0 || k.BeatEvery() != 0 {
		t.Errorf("kind %s, pid %d, beats every %v", k.Kind(), k.PID(), k.BeatEvery())
	}
	put(t, k, "a", "1")
	check(t, k.Drop("a"))
	check(t, k.Ready())
	check(t, k.Stopping())
	systemd.waitToHear(t, "STOPPING=1")
	systemd.mu.Lock()
	defer systemd.mu.Unlock()
	if got := strings.Join(systemd.heard, " "); got != "READY=1 STOPPING=1" {
		t.Errorf("the service manager heard %s", got)
	}
}

func TestNoHolder(t *testing.T) {
	k := connect(t, nil)
	put(t, k, "a", "1")
	put(t, k, "a", "2")
	put(t, k, "b", "3")
	check(t, k.Drop("b"))
	check(t, errors.Join(k.Drop("b"), k.Ready(), k.Beat(), k.Stopping()))
	if got, err := getContent(k, "a"); got != "2" || err != nil {
		t.Errorf("kept: %s, %v", got, err)
	}
	if _, ok := k.Take("b"); ok || k.Kind() != None || len(k.Names()) != 1 {
		t.Errorf("kind %s, kept %v", k.Kind(), k.Names())
	}
	select {
	case <-k.Lost():
		t.Error("nobody was lost")
	default:
	}
}

func TestNames(t *testing.T) {
	k := connect(t, nil)
	for _, name := range []string{"", "a:b", "a b", "a\nb", "ä", "holder", "daemon", strings.Repeat("x", maxName+1)} {
		if err := putContent(k, name, ""); !errors.Is(err, errName) {
			t.Errorf("put of %q: %v", name, err)
		}
	}
	n, long := 0, strings.Repeat("x", maxName-4)
	for ; n < 1000; n++ {
		if err := putContent(k, long+strconv.Itoa(1000+n), ""); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if length := n * (maxName + 1); length > maxNames+1 || length < maxNames-maxName {
		t.Errorf("%d names are kept, %d bytes", n, length)
	}
	put(t, k, long+"1000", "again")
}

// What the supervisor hears it tells the service manager above.
func TestOuterNotify(t *testing.T) {
	t.Parallel()
	address := filepath.Join(t.TempDir(), "notify")
	systemd := startSystemd(t, address)
	r := startRig(t, plan{Notify: address})
	d := r.next()
	d.ask("ready")
	d.kill(unix.SIGKILL)
	d = r.next()
	d.ask("ready")
	d.ask("beat")
	d.ask("stopping")
	d.ask("exit 0")
	r.exit()
	systemd.waitToHear(t, "STOPPING=1")
	systemd.mu.Lock()
	defer systemd.mu.Unlock()
	if got := strings.Join(systemd.heard, " "); got != "READY=1 WATCHDOG=1 STOPPING=1" {
		t.Errorf("the service manager heard %s", got)
	}
}

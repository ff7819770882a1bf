package holder

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// passed returns descriptors that an exec would hand on, as LISTEN_FDS_AT says them.
func passed(t *testing.T, contents ...string) (fds []int, at string) {
	t.Helper()
	var numbers []string
	for _, content := range contents {
		fd, err := memfd(content)
		check(t, err)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		check(t, err)
		fds, numbers = append(fds, fd), append(numbers, strconv.Itoa(fd))
	}
	return fds, strings.Join(numbers, ",")
}

func TestConnectTakesDescriptors(t *testing.T) {
	fds, at := passed(t, "1", "2", "3")
	t.Setenv("LISTEN_FDS", "3")
	k := connect(t, map[string]string{
		"LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:a", "LISTEN_FDS_AT": at, "LISTEN_PID": ownPID(),
	})
	if os.Getenv("LISTEN_FDS") != "" {
		t.Error("the variables are left for children")
	}
	if !k.Has("a") || !k.Has("b") || k.Has("c") {
		t.Error("it does not have what was passed, or more")
	}
	if got := strings.Join(k.Names(), " "); got != "a b" {
		t.Errorf("kept: %s", got)
	}
	if got, err := getContent(k, "a"); got != "1" || err != nil {
		t.Errorf("of two with a name, kept is %s, %v", got, err)
	}
	if _, err := unix.FcntlInt(uintptr(fds[2]), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the second of a name is open: %v", err)
	}
	for _, fd := range fds[:2] {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d would be inherited: %d, %v", fd, flags, err)
		}
	}
}

func TestConnectRefuses(t *testing.T) {
	fds, at := passed(t, "1")
	defer closeFD(fds[0])
	for name, env := range map[string]map[string]string{
		"no number":        {"LISTEN_FDS": "x", "LISTEN_PID": ownPID()},
		"negative":         {"LISTEN_FDS": "-1", "LISTEN_PID": ownPID()},
		"too few names":    {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a:b", "LISTEN_FDS_AT": at, "LISTEN_PID": ownPID()},
		"too few numbers":  {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b", "LISTEN_FDS_AT": at, "LISTEN_PID": ownPID()},
		"not open":         {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "LISTEN_FDS_AT": "99999", "LISTEN_PID": ownPID()},
		"stdin":            {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "LISTEN_FDS_AT": "0", "LISTEN_PID": ownPID()},
		"unknown address":  {"NOTIFY_SOCKET": "vsock:2:1"},
		"no pid of holder": {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "holder", "LISTEN_FDS_AT": dup(t, fds[0])},
		"holder no socket": {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "holder", "LISTEN_FDS_AT": dup(t, fds[0]), "HOLDER_PID": "1"},
	} {
		if k, err := Connect(func(name string) string { return env[name] }); err == nil {
			t.Errorf("%s: connected: %v", name, k.Names())
		}
	}
}

func dup(t *testing.T, fd int) string {
	t.Helper()
	fd, err := dupFD(fd)
	check(t, err)
	return strconv.Itoa(fd)
}

// What is for a process above us is not touched.
func TestConnectLeavesOthers(t *testing.T) {
	for _, env := range []map[string]string{
		{"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "LISTEN_FDS_AT": "3", "LISTEN_PID": "1"},
		{"LISTEN_FDS": "1", "LISTEN_FDNAMES": "holder", "LISTEN_FDS_AT": "3", "LISTEN_PID": "1"},
		{"LISTEN_FDS": "1", "LISTEN_FDNAMES": "a", "LISTEN_FDS_AT": "3"},
		{"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
	} {
		if k := connect(t, env); len(k.Names()) > 0 || k.Kind() != None || k.BeatEvery() != 0 {
			t.Errorf("%v: took %v, kind %s", env, k.Names(), k.Kind())
		}
	}
}

func TestWithoutVariables(t *testing.T) {
	env := []string{"PATH=/bin", "NOTIFY_SOCKET=/x", "LISTEN_FDS=1", "LISTEN_FDSX=1", "WATCHDOG_USEC"}
	if got, want := withoutVariables(env), []string{"PATH=/bin", "LISTEN_FDSX=1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestParseMessage(t *testing.T) {
	for text, want := range map[string]message{
		"":                                   {},
		"READY=1\nSTATUS=fine":               {ready: true},
		"READY=0":                            {},
		"STOPPING=1":                         {stopping: true},
		"WATCHDOG=1\n":                       {beat: true},
		"RELOADING=1\nMONOTONIC_USEC=7":      {reloading: true},
		"FDSTOREREMOVE=1\nFDNAME=a.7":        {remove: true, name: "a.7"},
		"FDNAME=x":                           {name: "x"},
		strings.Repeat("x", maxMessage):      {},
		"READY=1\x00":                        {},
		"FDSTOREREMOVE=1\nREADY=1\nFDNAME=a": {remove: true, ready: true, name: "a"},
	} {
		if got, err := parseMessage([]byte(text), 0); got != want || err != nil {
			t.Errorf("%.50q: got %+v, %v", text, got, err)
		}
	}
	if got, err := parseMessage([]byte(storeText("a")), 1); got != (message{store: true, name: "a"}) || err != nil {
		t.Errorf("store: got %+v, %v", got, err)
	}
	for _, bad := range []struct {
		text string
		fds  int
	}{
		{"READY=1", 1},
		{storeText("a"), 0},
		{storeText("a"), 2},
		{storeText("holder"), 1},
		{"FDSTORE=1", 1},
		{"FDSTORE=1\nFDSTOREREMOVE=1\nFDNAME=a", 1},
		{"FDSTOREREMOVE=1", 0},
		{"FDSTOREREMOVE=1\nFDNAME=a:b", 0},
		{strings.Repeat("x", maxMessage+1), 0},
	} {
		if got, err := parseMessage([]byte(bad.text), bad.fds); err == nil {
			t.Errorf("%.50q with %d descriptors: got %+v", bad.text, bad.fds, got)
		}
	}
}

// Whatever is said, what is understood can be kept, and be handed on.
func FuzzParseMessage(f *testing.F) {
	f.Add([]byte(storeText("unlinked.17")), 1)
	f.Add([]byte(removeText("table")), 0)
	f.Add([]byte("READY=1\nSTATUS=x\nWATCHDOG=1"), 0)
	f.Add([]byte("FDSTORE=1\nFDNAME=a\nFDNAME=b:"), 1)
	f.Fuzz(func(t *testing.T, b []byte, fds int) {
		m, err := parseMessage(b, fds)
		if err != nil {
			return
		}
		if m.store != (fds == 1) || m.store && m.remove {
			t.Fatalf("%q with %d descriptors: %+v", b, fds, m)
		}
		if !m.store && !m.remove {
			return
		}
		env := listenEnv([]string{m.name, "z"}, nil)
		if names := strings.Split(strings.TrimPrefix(env[1], "LISTEN_FDNAMES="), ":"); !slices.Equal(names, []string{m.name, "z"}) {
			t.Fatalf("the name %q cannot be handed on: %q", m.name, env)
		}
	})
}

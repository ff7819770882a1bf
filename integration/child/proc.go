package child

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// OpenFiles lists the descriptors of a process that point below dir, as "fd path". A descriptor that is closed meanwhile is left out.
func OpenFiles(pid int, dir string) ([]string, error) {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(fds)
	if err != nil {
		return nil, err
	}
	var open []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(fds, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		if strings.HasPrefix(target, dir+"/") {
			open = append(open, e.Name()+" "+target)
		}
	}
	return open, nil
}

// Status is a line of a process' /proc status that is a number, such as VmRSS, which is in KiB.
func Status(pid int, line string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(l, line+":"); ok {
			value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d has no %s: it has ended", pid, line)
}

// portsGiven is how many ports this process has asked for. They are given once: a server that is down keeps its port.
var portsGiven atomic.Int64

// Ports that are given lie below those that the kernel gives to outgoing connections.
const (
	firstPort = 12_000
	lastPort  = 32_000
)

// FreePorts returns n loopback TCP ports that nobody listens on at this moment, and that this process was not given before.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for tried := 0; len(ports) < n; tried++ {
		if tried == lastPort-firstPort {
			return nil, fmt.Errorf("no %d ports from %d to %d are free", n, firstPort, lastPort-1)
		}
		port := firstPort + (os.Getpid()*64+int(portsGiven.Add(1)))%(lastPort-firstPort)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

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

// FreePorts returns n loopback TCP ports that nobody listens on at this moment.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // held open until all are chosen, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

package holder

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// variables are all that a holder says in the environment. None of them is for a child of the daemon.
var variables = []string{
	"LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS_AT", "HOLDER_PID",
	"NOTIFY_SOCKET", "FDSTORE", "WATCHDOG_USEC", "WATCHDOG_PID",
}

// withoutVariables returns env without what a holder says.
func withoutVariables(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(variables, name)
	})
}

func unsetVariables() error {
	for _, name := range variables {
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return nil
}

// inherited takes the descriptors that were passed to this process, by name, and sets close-on-exec on them. Of several
// with one name the first is taken and the others are closed.
func inherited(getenv func(string) string) (map[string]int, error) {
	if getenv("LISTEN_FDS") == "" {
		return map[string]int{}, nil
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	if pid := getenv("LISTEN_PID"); pid != strconv.Itoa(os.Getpid()) {
		if pid != "" || !slices.Contains(names, nameHolder) {
			return map[string]int{}, nil // for a process above us
		}
	}
	numbers, err := listenNumbers(getenv)
	if err != nil {
		return nil, err
	}
	if len(numbers) > 0 && len(names) != len(numbers) {
		return nil, fmt.Errorf("LISTEN_FDS=%d, but LISTEN_FDNAMES has %d names", len(numbers), len(names))
	}
	fds := make(map[string]int, len(numbers))
	for i, fd := range numbers {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return nil, fmt.Errorf("inherited descriptor %d (%s): %w", fd, names[i], err)
		}
		if _, double := fds[names[i]]; double {
			closeFD(fd)
			continue
		}
		fds[names[i]] = fd
	}
	return fds, nil
}

func listenNumbers(getenv func(string) string) ([]int, error) {
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || n < 0 || n > 1<<20 {
		return nil, fmt.Errorf("LISTEN_FDS=%q is not a number of descriptors", getenv("LISTEN_FDS"))
	}
	numbers := make([]int, n)
	at := getenv("LISTEN_FDS_AT")
	if at == "" {
		for i := range numbers {
			numbers[i] = 3 + i
		}
		return numbers, nil
	}
	parts := strings.Split(at, ",")
	if len(parts) != n {
		return nil, fmt.Errorf("LISTEN_FDS=%d, but LISTEN_FDS_AT has %d numbers", n, len(parts))
	}
	for i, part := range parts {
		if numbers[i], err = strconv.Atoi(part); err != nil || numbers[i] < 3 {
			return nil, fmt.Errorf("LISTEN_FDS_AT: %q is not a descriptor", part)
		}
	}
	return numbers, nil
}

// listenEnv says which names are passed, from descriptor 3 on or at the given numbers.
func listenEnv(names []string, at []int) []string {
	env := []string{"LISTEN_FDS=" + strconv.Itoa(len(names)), "LISTEN_FDNAMES=" + strings.Join(names, ":")}
	if at != nil {
		numbers := make([]string, len(at))
		for i, fd := range at {
			numbers[i] = strconv.Itoa(fd)
		}
		env = append(env, "LISTEN_FDS_AT="+strings.Join(numbers, ","))
	}
	return env
}

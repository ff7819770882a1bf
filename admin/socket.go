package admin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// RunDir is where control sockets are.
const RunDir = "/run/tierfs"

// SocketPath is the control socket of a volume below runDir.
func SocketPath(runDir, volume string) string {
	return filepath.Join(runDir, volume+".sock")
}

// listenSocket opens the control socket of a volume. A socket that nobody
// answers on is replaced.
func listenSocket(runDir, volume string) (net.Listener, error) {
	if err := privateDir(runDir); err != nil {
		return nil, err
	}
	path := SocketPath(runDir, volume)
	probe, err := net.DialTimeout("unix", path, 5*time.Second)
	switch {
	case err == nil:
		_ = probe.Close()
		return nil, fmt.Errorf("%s: another tierfs answers there; unmount it first", path)
	case errors.Is(err, unix.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace a dead control socket: %w", err)
		}
	case !errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%s: %w; remove it if no tierfs serves this volume", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), l.Close())
	}
	return l, nil
}

// privateDir makes the directory, or makes sure that only its owner, who is
// this user, can enter it.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory of control sockets: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: not a directory of this user's; remove it", dir)
	}
	if st.Mode&0o077 == 0 {
		return nil
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("directory of control sockets: %w", err)
	}
	return nil
}

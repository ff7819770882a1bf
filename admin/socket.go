package admin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/mountinfo"
)

// RunDir is where control sockets are.
const RunDir = "/run/tierfs"

const socketSuffix = ".sock"

// SocketPath is the control socket of that name below runDir, which is the source
// of the mount: see [Server.Name].
func SocketPath(runDir, name string) string {
	return filepath.Join(runDir, name+socketSuffix)
}

// maxCopies is how many sources of one volume can be mounted on one machine at once.
const maxCopies = 16

// listenSocket opens the control socket of a volume. A socket that nobody answers
// on is replaced. A name that another tierfs answers to, or that a dead mount has, is
// that of another source of the same volume, a copy or the original, since a source
// is served by one process only: this one's name then ends in a number.
func listenSocket(runDir, volume string) (*net.UnixListener, error) {
	if err := privateDir(runDir); err != nil {
		return nil, err
	}
	mounts, err := mountinfo.Mounts()
	if err != nil {
		return nil, err
	}
	name := volume
	for n := range maxCopies {
		if !slices.ContainsFunc(mounts, func(m mountinfo.Mount) bool { return m.Type == mountinfo.FSType && m.Source == name }) {
			l, err := listenAt(SocketPath(runDir, name))
			if !errors.Is(err, errAnswers) {
				return l, err
			}
		}
		name = fmt.Sprintf("%s-%d", volume, n+2)
	}
	return nil, fmt.Errorf("%s: %w, and so for %d copies of the volume; unmount one first", SocketPath(runDir, volume), errAnswers, maxCopies)
}

var errAnswers = errors.New("another tierfs answers there")

func listenAt(path string) (*net.UnixListener, error) {
	probe, err := net.DialTimeout("unix", path, 5*time.Second)
	switch {
	case err == nil:
		_ = probe.Close()
		return nil, errAnswers
	case errors.Is(err, unix.ECONNREFUSED):
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace a dead control socket: %w", err)
		}
	case !errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%s: %w; remove it if no tierfs serves this volume", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if errors.Is(err, unix.EADDRINUSE) { // since the look above
		return nil, errAnswers
	}
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), l.Close())
	}
	return l, nil
}

// inheritSocket goes on with the socket of a predecessor.
func inheritSocket(f *os.File) (*net.UnixListener, error) {
	l, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("the predecessor's control socket: %w", err)
	}
	control, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("the predecessor's control socket is of another kind"), l.Close())
	}
	control.SetUnlinkOnClose(true) // a listener from a descriptor does not by itself
	return control, nil
}

// Name is what the control socket is called, to be the mount's source: the
// volume's id, or that with a number when another source of the volume is served
// on this machine.
func (s *Server) Name() string {
	return strings.TrimSuffix(filepath.Base(s.control.Addr().String()), socketSuffix)
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

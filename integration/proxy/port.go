package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// port is a loopback port that stays the proxy's also while nobody listens: a socket is bound to it that never listens, so that
// connections are refused and nobody else gets it.
type port struct {
	fd   int
	addr string
}

func reserve() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	p := &port{fd: fd}
	if err = p.bind(); err != nil {
		return nil, errors.Join(fmt.Errorf("bind: %w", err), p.close())
	}
	return p, nil
}

func (p *port) bind() error {
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(p.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	name, err := unix.Getsockname(p.fd)
	if err != nil {
		return err
	}
	p.addr = fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	return nil
}

func (p *port) listen() (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(failed, err)
	}}
	return config.Listen(context.Background(), "tcp4", p.addr)
}

func (p *port) close() error { return unix.Close(p.fd) }

// server listens on the port until it is closed.
type server struct {
	http  *http.Server
	ended chan struct{}
}

func serve(p *port, h http.Handler, conns *sync.WaitGroup) (*server, error) {
	l, err := p.listen()
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	s := &server{http: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}, ended: make(chan struct{})}
	s.http.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew: // said by who accepts
			conns.Add(1)
		case http.StateClosed:
			conns.Done()
		}
	}
	go func() {
		defer close(s.ended)
		_ = s.http.Serve(l) // always an error; it ends by close alone
	}()
	return s, nil
}

// close ends all connections and waits for the end of listening. A nil server is closed.
func (s *server) close() {
	if s == nil {
		return
	}
	_ = s.http.Close() // of sockets: nothing is lost
	<-s.ended
}

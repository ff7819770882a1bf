package holder

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// receive hears at most limit messages of the daemon (negative: all there are) and does what they ask for.
func (s *supervisor) receive(limit int) {
	for n := 0; s.sock >= 0 && n != limit; n++ {
		size, fds, err := receiveMessage(s.sock, s.buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.ECONNRESET):
			continue // reported once, before what is in the queue: the daemon died and had not read everything
		case errors.Is(err, errMessage):
			s.bad(err)
			continue
		case err != nil:
			s.log.Error("the daemon cannot be heard any more", "error", err)
			s.deaf()
			return
		case size == 0 && len(fds) == 0 && hungUp(s.sock):
			s.deaf()
			return
		}
		m, err := parseMessage(s.buf[:size], len(fds))
		if err != nil {
			for _, fd := range fds {
				closeFD(fd)
			}
			s.bad(err)
			continue
		}
		s.obey(m, fds)
	}
}

// bad logs a message that means nothing, one in a second: a daemon that has gone mad shall not fill the log.
func (s *supervisor) bad(err error) {
	if now := time.Now(); now.Sub(s.badAt) >= time.Second {
		s.log.Warn("the daemon sent a message that is not understood", "error", err)
		s.badAt = now
	}
}

// deaf is called when the daemon's end is closed, as a rule because it is about to be gone.
func (s *supervisor) deaf() {
	closeFD(s.sock)
	s.sock = -1
	if s.dying.IsZero() && s.pidfd >= 0 {
		s.dying = time.Now()
		s.complain = s.dying.Add(complain)
	}
}

func (s *supervisor) obey(m message, fds []int) {
	s.beat = time.Now()
	switch {
	case m.store:
		s.keep(m.name, fds[0])
	case m.remove:
		if fd, ok := s.kept[m.name]; ok && m.name != Binary {
			closeFD(fd)
			delete(s.kept, m.name)
		}
	}
	if m.reloading {
		s.ready = false
	}
	if m.ready {
		s.isReady()
	}
	if m.stopping {
		s.stopping = true
		s.tellOuter("STOPPING=1")
	}
	if m.beat {
		s.tellOuter("WATCHDOG=1")
	}
}

// keep takes a descriptor over under a name. The binary of the last READY is kept beside its replacement until that one
// has shown that it works.
func (s *supervisor) keep(name string, fd int) {
	old, ok := s.kept[name]
	s.kept[name] = fd
	switch {
	case !ok:
	case name == Binary && s.everReady && s.previous < 0:
		s.previous = old
	default:
		closeFD(old)
	}
}

func (s *supervisor) isReady() {
	if !s.everReady {
		s.tellOuter("READY=1")
	}
	s.everReady, s.ready, s.failures = true, true, 0
	for _, say := range s.unsaid {
		say()
	}
	s.unsaid = nil
	closeFD(s.previous)
	s.previous = -1
	for _, sig := range s.pending {
		s.signal(sig)
	}
	s.pending = nil
}

// tellOuter passes on what the service manager above is to know. It never waits: a service manager that does not listen
// is none of the daemon's worries.
func (s *supervisor) tellOuter(text string) {
	if s.opt.Notify == "" {
		return
	}
	if err := (notifySocket{path: s.opt.Notify, wait: time.Millisecond}).send(text, -1); err != nil {
		s.log.Warn("the service manager was not told", "message", text, "error", err)
	}
}

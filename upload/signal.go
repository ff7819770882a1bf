package upload

import (
	"sync"
	"time"
)

// signal tells any number of waiters that something changed. The zero value is
// ready for use.
type signal struct {
	mu sync.Mutex
	c  chan struct{}
}

// wait returns a channel that the next fire closes. Take it before looking.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c == nil {
		s.c = make(chan struct{})
	}
	return s.c
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		close(s.c)
		s.c = nil
	}
}

// bell wakes one loop. Ringing twice before it looks is ringing once.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// alarm returns a channel that receives at t, or never if t is zero.
func alarm(t time.Time) <-chan time.Time {
	if t.IsZero() {
		return nil
	}
	return time.After(time.Until(t))
}

// earlier returns the earlier of two times, of which a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// pace lets a loop look at events no more often than once in a while, so that
// many changes in a row cost one look.
type pace struct {
	every time.Duration
	until time.Time
}

// events returns c once the pause is over; else nil, and when to ask again.
func (p *pace) events(c <-chan struct{}) (<-chan struct{}, time.Time) {
	if time.Now().Before(p.until) {
		return nil, p.until
	}
	return c, time.Time{}
}

// looked begins the pause.
func (p *pace) looked() { p.until = time.Now().Add(p.every) }

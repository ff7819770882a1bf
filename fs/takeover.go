package fs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// TakeOver serves a mount that another process served before: opt.Fuse and opt.Table
// are what it left. Nothing of the predecessor may run any more, not one thread:
// a write of its could overtake one of ours. Writeback, NoResend, FsName and the device
// are those that the mount was made with, whatever opt says.
//
// What the kernel was not answered is sent again, if the mount has [Server.Resend];
// else the predecessor must have been drained. When TakeOver returns, requests are
// answered. With an error (ErrCannotTakeOver, or what the tables say) the kernel was
// told nothing and opt.Fuse is still the caller's.
func TakeOver(ctx context.Context, opt Options) (*Server, error) {
	if opt.Table == nil || opt.Fuse <= 0 {
		return nil, fmt.Errorf("%w: nothing was left", ErrCannotTakeOver)
	}
	request, reply := opt.Table.Init()
	if err := begun(request, reply); err != nil {
		return nil, err
	}
	opt.asNegotiated(reply)
	if opt.NoResend && !opt.Drained {
		return nil, fmt.Errorf("%w: the kernel does not send again what its daemon had not answered", ErrCannotTakeOver)
	}
	s, err := newServer(ctx, &opt)
	if err != nil {
		return nil, err
	}
	s.prepare(opt.Fuse, opt)
	s.features = negotiated(reply)
	s.name, opt.FsName = opt.Table.Mount()
	if err := s.inherit(request, reply, opt); err != nil {
		s.fs.abandon()
		s.device.close()
		s.stop()
		return nil, err
	}
	opt.Table.CountTakeover()
	s.serve()
	s.tune(opt)
	return s, nil
}

// inherit makes everything as it was for the predecessor.
func (s *Server) inherit(request, reply []byte, opt Options) error {
	unix.CloseOnExec(s.device.fd)
	if err := s.device.replay(request, reply); err != nil {
		return err
	}
	s.fs.rebuild()
	if err := s.device.setPolled(opt.polled || opt.NoResend); err != nil {
		return err
	}
	if opt.NoResend {
		return nil
	}
	if status := s.device.Resend(); !status.Ok() {
		return fmt.Errorf("ask the kernel for what was not answered: %w", errors.Join(ErrCannotTakeOver, unix.Errno(status)))
	}
	return nil
}

// leave makes the server end as a kill would, at whatever moment this is: no further
// reply is written, and everything stays as it is for a successor. It returns the
// descriptor of /dev/fuse, which is the caller's from now on, once no handler runs
// any more. Done is closed when a notification that was under way is over, too, which
// may take a successor. Only for a polled device.
func (s *Server) leave() (fuse int) {
	s.device.silent.Store(true)
	s.device.end(nil)
	s.device.rouse()
	select {
	case <-s.left:
	case <-s.done: // the mount was gone before
	}
	return s.device.fd
}

package fs

import (
	"fmt"
	"log/slog"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Alive returns when the locks that every request needs can be had. It never waits for
// the store or the disk, so a daemon in which it does not return is stuck.
func (s *Server) Alive() {
	s.fs.inodes.size()
	s.fs.handles.size()
}

// GathersWrites reports whether the mount whose INIT has this reply is one with
// Writeback.
func GathersWrites(reply []byte) bool {
	if len(reply) < outHeaderBytes {
		return false
	}
	var opt Options
	opt.asNegotiated(reply)
	return opt.Writeback
}

// CanTakeOver fails with ErrCannotTakeOver if this version would answer a mount's INIT
// in another way than the version did that made the mount. It changes nothing.
func CanTakeOver(request, reply []byte) error {
	if err := begun(request, reply); err != nil {
		return err
	}
	opt := Options{Log: slog.New(slog.DiscardHandler)}
	opt.asNegotiated(reply)
	return newDevice(-1, fuse.NewProtocolServer(&fileSystem{}, mountOptions(opt)), opt.Log, nil).replay(request, reply)
}

// begun fails with ErrCannotTakeOver if a mount's INIT was not answered.
func begun(request, reply []byte) error {
	if len(request) < inHeaderBytes || len(reply) < outHeaderBytes {
		return fmt.Errorf("%w: it was never begun", ErrCannotTakeOver)
	}
	return nil
}

// asNegotiated sets what the mount whose INIT has this reply was made with.
func (o *Options) asNegotiated(reply []byte) {
	features := negotiated(reply)
	o.Writeback = features&fuse.CAP_WRITEBACK_CACHE != 0
	o.NoResend = features&fuse.CAP_HAS_RESEND == 0
}

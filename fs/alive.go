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
	return len(reply) >= outHeaderBytes && negotiated(reply)&fuse.CAP_WRITEBACK_CACHE != 0
}

// CanTakeOver fails with ErrCannotTakeOver if this version would answer a mount's INIT
// in another way than the version did that made the mount. It changes nothing.
func CanTakeOver(request, reply []byte) error {
	if len(request) < inHeaderBytes || len(reply) < outHeaderBytes {
		return fmt.Errorf("%w: it was never begun", ErrCannotTakeOver)
	}
	features := negotiated(reply)
	opt := Options{
		Log:       slog.New(slog.DiscardHandler),
		Writeback: features&fuse.CAP_WRITEBACK_CACHE != 0,
		NoResend:  features&fuse.CAP_HAS_RESEND == 0,
	}
	return newDevice(-1, fuse.NewProtocolServer(&fileSystem{}, mountOptions(opt)), opt.Log, nil).replay(request, reply)
}

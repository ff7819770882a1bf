package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// FuseOp is an operation of the kernel. It is a number so that counting a
// request is an index into an array.
type FuseOp uint8

// The operations, in the order of their names below.
const (
	OpOther FuseOp = iota
	OpLookup
	OpForget
	OpGetAttr
	OpStatx
	OpSetAttr
	OpAccess
	OpCreate
	OpOpen
	OpRead
	OpWrite
	OpFlush
	OpFsync
	OpRelease
	OpFallocate
	OpLseek
	OpCopyFileRange
	OpMkdir
	OpMknod
	OpRmdir
	OpUnlink
	OpRename
	OpLink
	OpSymlink
	OpReadlink
	OpOpenDir
	OpReadDir
	OpReadDirPlus
	OpFsyncDir
	OpReleaseDir
	OpStatFs
	OpGetXAttr
	OpSetXAttr
	OpListXAttr
	OpRemoveXAttr
	OpIoctl
	numFuseOps
)

var fuseOpNames = [numFuseOps]string{
	"other", "lookup", "forget", "getattr", "statx", "setattr", "access", "create", "open", "read", "write",
	"flush", "fsync", "release", "fallocate", "lseek", "copy_file_range", "mkdir", "mknod", "rmdir", "unlink",
	"rename", "link", "symlink", "readlink", "opendir", "readdir", "readdirplus", "fsyncdir", "releasedir",
	"statfs", "getxattr", "setxattr", "listxattr", "removexattr", "ioctl",
}

// String returns the value of the label op.
func (op FuseOp) String() string {
	if op >= numFuseOps {
		op = OpOther
	}
	return fuseOpNames[op]
}

// Fuse counts the requests of the kernel.
type Fuse struct {
	requests  [numFuseOps]prometheus.Counter
	seconds   [numFuseOps]prometheus.Observer
	takeovers prometheus.Counter
}

func newFuse(r registry) *Fuse {
	requests := r.counters(descFuseRequests)
	seconds := r.histograms(descFuseSeconds, prometheus.ExponentialBuckets(0.00001, 4, 12))
	f := &Fuse{takeovers: r.counter(descTakeovers)}
	for op := range numFuseOps {
		f.requests[op] = requests.WithLabelValues(op.String())
		f.seconds[op] = seconds.WithLabelValues(op.String())
	}
	return f
}

// Request counts one answered request and how long its handler took. It
// allocates nothing.
func (f *Fuse) Request(op FuseOp, took time.Duration) {
	if f == nil {
		return
	}
	if op >= numFuseOps {
		op = OpOther
	}
	f.requests[op].Inc()
	f.seconds[op].Observe(took.Seconds())
}

// Takeover counts that this daemon took the mount over from another one.
func (f *Fuse) Takeover() {
	if f != nil {
		f.takeovers.Inc()
	}
}

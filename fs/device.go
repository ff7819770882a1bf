package fs

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	minReaders = 2
	maxReaders = 16

	// smallRequest is what is copied out of the large buffer it was read into, so
	// that a handler that waits does not keep one.
	smallRequest = 4096

	// requestStart is where a request is read to in its buffer: the bytes of a WRITE then
	// begin with a page.
	requestStart = pageBytes - int(unsafe.Sizeof(fuse.WriteIn{}))
)

// A device reads the kernel's requests from one descriptor of /dev/fuse, has them
// answered, and writes the replies. A goroutine that has read a request answers it
// itself; when none is left that reads, it starts another one before. The protocol is
// go-fuse's; the loop is our own, so that what a successor needs is in our hands: the
// bytes of the first exchange, and memory that a crash cannot make a request fail by.
type device struct {
	fd       int
	protocol *fuse.ProtocolServer
	log      *slog.Logger
	buffers  *buffers
	work     sync.Pool // of *exchange
	readers  int       // that may wait for a request at once, but for one
	gone     func()    // called once, when no further request can come

	// polled devices have O_NONBLOCK set and wait in poll(2), from which the eventfd
	// wakes them; else they wait in read(2), which only the kernel ends.
	polled bool
	wake   int

	silent atomic.Bool            // no reply is written any more
	before func(operation uint32) // tests: called before a reply is written

	mu      sync.Mutex
	state   deviceState   // guarded by mu
	idle    int           // guarded by mu: goroutines that wait for a request
	running int           // guarded by mu: goroutines in all
	err     error         // guarded by mu: why it ended, unless the mount is gone
	still   chan struct{} // guarded by mu: closed when nothing runs while draining
	ended   chan struct{} // closed when nothing runs any more, for good
}

type deviceState int

const (
	deviceServes deviceState = iota
	deviceDrains             // may serve again
	deviceEnded
)

// exchange is one request and its reply.
type exchange struct {
	small   [smallRequest]byte // first, for its alignment
	request message
	in, out [1][]byte
}

func newDevice(fd int, protocol *fuse.ProtocolServer, log *slog.Logger, gone func()) *device {
	return &device{
		fd:       fd,
		protocol: protocol,
		log:      log,
		buffers:  newBuffers(log),
		work:     sync.Pool{New: func() any { return new(exchange) }},
		readers:  min(max(runtime.GOMAXPROCS(0), minReaders), maxReaders),
		gone:     gone,
		wake:     -1,
		ended:    make(chan struct{}),
	}
}

// loop answers requests until there are goroutines enough that wait for one, or
// until the device ends.
func (d *device) loop() {
	defer d.leave()
	for d.enter() {
		buf := d.buffers.get(largePayload)
		n, err := d.read(buf[requestStart:])
		if err == nil && n < inHeaderBytes {
			err = fmt.Errorf("a request of %d bytes", n)
		}
		if err != nil {
			d.buffers.put(buf)
			d.failed(err)
			return
		}
		request := message(buf[requestStart : requestStart+n])
		d.received(request.forgets())
		d.exchange(request, buf)
	}
}

// read waits for a request.
func (d *device) read(p []byte) (int, error) {
	for {
		n, err := unix.Read(d.fd, p)
		switch err {
		case nil:
			return n, nil
		case unix.EINTR, unix.ENOENT: // a signal; a request that was taken back
		case unix.EAGAIN:
			if err := d.poll(); err != nil {
				return 0, err
			}
		default:
			return 0, err
		}
	}
}

// poll waits until there may be a request, or fails with errWoken.
func (d *device) poll() error {
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}, {Fd: int32(d.wake), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, -1)
	switch {
	case err == unix.EINTR:
		return nil
	case err != nil:
		return err
	case fds[1].Revents != 0:
		return errWoken
	}
	return nil
}

// exchange answers one request and gives back the buffer that it was read into.
func (d *device) exchange(request message, buf []byte) {
	x := d.work.Get().(*exchange)
	x.request = request
	if len(request) <= len(x.small) {
		x.request = x.small[:copy(x.small[:], request)]
		d.buffers.put(buf)
		buf = nil
	}
	out := d.buffers.get(x.request.payload())
	x.in[0], x.out[0] = x.request, out[pageBytes-outHeaderBytes:]
	n, status := d.protocol.HandleRequest(x.in[:], x.out[:])
	if n == 0 && !status.Ok() {
		n = failure(x.out[0], x.request.unique(), status)
	}
	if d.before != nil {
		d.before(x.request.opcode())
	}
	if n > 0 && !d.silent.Load() {
		if err := d.write(x.out[0][:n]); err != nil {
			d.log.Error("a reply was refused by the kernel",
				"operation", x.request.opcode(), "unique", x.request.unique(), "bytes", n, "err", err)
		}
	}
	d.buffers.put(out)
	if buf != nil {
		d.buffers.put(buf)
	}
	x.request, x.in[0], x.out[0] = nil, nil, nil
	d.work.Put(x)
}

// write writes a reply. That nobody waits for it any more is no error: the caller
// was killed, or the mount is gone.
func (d *device) write(reply []byte) error {
	err := retry(func() error {
		_, err := unix.Write(d.fd, reply)
		return err
	})
	if err == unix.ENOENT || err == unix.ENODEV {
		return nil
	}
	return err
}

package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// pipedDevice is a device whose kernel is this test: each packet of the socket is a
// message.
func pipedDevice(t *testing.T, raw fuse.RawFileSystem) (d *device, kernel int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	for _, fd := range pair {
		check(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20))
	}
	log := slog.New(slog.DiscardHandler)
	d = newDevice(pair[0], fuse.NewProtocolServer(raw, mountOptions(Options{Log: log})), log, func() {})
	check(t, d.setPolled(true))
	t.Cleanup(func() {
		d.end(nil)
		d.rouse()
		<-d.ended
		d.close()
		_ = unix.Close(pair[0])
		_ = unix.Close(pair[1])
	})
	return d, pair[1]
}

// request is a message of an operation with a body behind its header.
func requestBytes(op uint32, unique uint64, node uint64, body []byte) []byte {
	m := make([]byte, inHeaderBytes, inHeaderBytes+len(body))
	binary.NativeEndian.PutUint32(m, uint32(inHeaderBytes+len(body)))
	binary.NativeEndian.PutUint32(m[4:], op)
	binary.NativeEndian.PutUint64(m[8:], unique)
	binary.NativeEndian.PutUint64(m[16:], node)
	return append(m, body...)
}

func send(t testing.TB, kernel int, m []byte) {
	t.Helper()
	_, err := unix.Write(kernel, m)
	check(t, err)
}

// answer is the number, the error and the rest of the next reply.
func answer(t testing.TB, kernel int) (unique uint64, errno unix.Errno, body []byte) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(kernel), Events: unix.POLLIN}}
	check(t, retry(func() error {
		n, err := unix.Poll(fds, 20000)
		if err == nil && n == 0 {
			err = errors.New("no reply")
		}
		return err
	}))
	m := make([]byte, 2<<20)
	n, err := unix.Read(kernel, m)
	check(t, err)
	if n < outHeaderBytes || int(binary.NativeEndian.Uint32(m)) != n {
		t.Fatalf("a reply of %d bytes says %d", n, binary.NativeEndian.Uint32(m))
	}
	return binary.NativeEndian.Uint64(m[8:]), unix.Errno(-int32(binary.NativeEndian.Uint32(m[4:]))), m[outHeaderBytes:n]
}

// a scripted file system answers READ and STATFS as the test likes.
type scripted struct {
	fuse.RawFileSystem
	read   func(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status)
	writev func(in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status)
	statfs func() fuse.Status
	forget func()
}

func (s *scripted) String() string { return "scripted" }
func (s *scripted) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	return s.read(cancel, in, buf)
}
func (s *scripted) Writev(_ <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	return s.writev(in, data)
}
func (s *scripted) StatFs(<-chan struct{}, *fuse.InHeader, *fuse.StatfsOut) fuse.Status {
	return s.statfs()
}
func (s *scripted) Forget(uint64, uint64) { s.forget() }

const (
	opStatFs = 17
	opWrite  = 16
	opUnique = 1000 // first number of a test's requests
)

func readBody(size uint32) []byte {
	b := make([]byte, 40)
	binary.NativeEndian.PutUint32(b[16:], size)
	return b
}

func writeBody(data []byte) []byte {
	b := make([]byte, 40)
	binary.NativeEndian.PutUint32(b[16:], uint32(len(data)))
	return append(b, data...)
}

// Every size of READ is answered in full and from its own buffer; what lay in the
// buffer before is not given away.
func TestDeviceReads(t *testing.T) {
	s := &scripted{read: func(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
		if len(buf) != int(in.Size) {
			t.Errorf("a buffer of %d bytes for %d", len(buf), in.Size)
		}
		n := copy(buf, pattern(int(in.Size)-int(in.Offset), byte(in.Size)))
		return inPlace(n), fuse.OK
	}}
	d, kernel := pipedDevice(t, s)
	d.start()
	for i, size := range []int{0, 1, 4096, 4097, middlePayload, middlePayload + 1, maxRequest} {
		for _, short := range []int{0, min(size, 7)} {
			body := readBody(uint32(size))
			binary.NativeEndian.PutUint64(body[8:], uint64(short))
			send(t, kernel, requestBytes(opRead, uint64(opUnique+i), 5, body))
			unique, errno, got := answer(t, kernel)
			if unique != uint64(opUnique+i) || errno != 0 || !bytes.Equal(got, pattern(size-short, byte(size))) {
				t.Errorf("READ of %d, %d less: %d, %v, %d bytes", size, short, unique, errno, len(got))
			}
		}
	}
}

func TestDeviceWrites(t *testing.T) {
	var mu sync.Mutex
	var got []byte
	s := &scripted{writev: func(in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
		mu.Lock()
		defer mu.Unlock()
		got = bytes.Join(data, nil)
		return in.Size, fuse.OK
	}}
	d, kernel := pipedDevice(t, s)
	d.start()
	for _, size := range []int{0, 1, smallRequest - 80, smallRequest - 79, 4096, maxRequest} {
		send(t, kernel, requestBytes(opWrite, opUnique, 5, writeBody(pattern(size, 3))))
		_, errno, body := answer(t, kernel)
		if errno != 0 || int(binary.NativeEndian.Uint32(body)) != size || !bytes.Equal(got, pattern(size, 3)) {
			t.Errorf("WRITE of %d: %v, %d bytes arrived", size, errno, len(got))
		}
	}
}

// What goes wrong in a handler, or before it, is answered; nobody is left waiting.
func TestDeviceAnswersFailures(t *testing.T) {
	s := &scripted{
		statfs: func() fuse.Status { panic("for the test") },
		read: func(<-chan struct{}, *fuse.ReadIn, []byte) (fuse.ReadResult, fuse.Status) {
			return nil, fuse.EIO
		},
	}
	d, kernel := pipedDevice(t, s)
	d.start()
	for name, tc := range map[string]struct {
		request []byte
		want    unix.Errno
	}{
		"panic":               {requestBytes(opStatFs, opUnique, 1, nil), unix.EIO},
		"error":               {requestBytes(opRead, opUnique, 1, readBody(4096)), unix.EIO},
		"too short":           {requestBytes(opRead, opUnique, 1, nil), unix.EIO},
		"unknown operation":   {requestBytes(4711, opUnique, 1, nil), unix.ENOSYS},
		"copy of 64 bits":     {requestBytes(53, opUnique, 1, make([]byte, 64)), unix.ENOSYS},
		"synchronize all":     {requestBytes(50, opUnique, 1, make([]byte, 8)), unix.ENOSYS},
		"interrupt of no one": {requestBytes(36, opUnique, 0, make([]byte, 8)), unix.EAGAIN},
	} {
		send(t, kernel, tc.request)
		if unique, errno, _ := answer(t, kernel); unique != opUnique || errno != tc.want {
			t.Errorf("%s: %d, %v", name, unique, errno)
		}
	}
}

// While handlers wait another goroutine reads, and an interrupt finds its request.
func TestDeviceInterrupts(t *testing.T) {
	const waiting = 100
	s := &scripted{read: func(cancel <-chan struct{}, _ *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
		<-cancel
		return nil, fuse.EINTR
	}}
	d, kernel := pipedDevice(t, s)
	d.start()
	for i := range waiting {
		send(t, kernel, requestBytes(opRead, uint64(opUnique+2*i), 5, readBody(4096)))
	}
	left := map[uint64]bool{}
	for i := range waiting {
		left[uint64(opUnique+2*i)] = true
	}
	interrupt := func(unique uint64) {
		send(t, kernel, requestBytes(36, unique|1, 0, binary.NativeEndian.AppendUint64(nil, unique)))
	}
	for unique := range left {
		interrupt(unique)
	}
	for len(left) > 0 {
		unique, errno, _ := answer(t, kernel)
		switch {
		case unique&1 != 0 && errno == unix.EAGAIN: // it was faster than its request
			interrupt(unique &^ 1)
		case errno != unix.EINTR || !left[unique]:
			t.Fatalf("%d: %v", unique, errno)
		}
		delete(left, unique)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idle > d.readers+1 {
		t.Errorf("%d goroutines wait for requests", d.idle)
	}
}

// However many forgets come, they get no goroutine more.
func TestDeviceForgets(t *testing.T) {
	hold, begun := make(chan struct{}), make(chan struct{}, 100)
	s := &scripted{
		forget: func() { begun <- struct{}{}; <-hold },
		statfs: func() fuse.Status { return fuse.OK },
	}
	d, kernel := pipedDevice(t, s)
	d.start()
	for range 10 {
		send(t, kernel, requestBytes(opForget, opUnique, 5, make([]byte, 8)))
	}
	<-begun
	d.mu.Lock()
	if d.running != 1 {
		t.Errorf("%d goroutines", d.running)
	}
	d.mu.Unlock()
	close(hold)
	send(t, kernel, requestBytes(opStatFs, opUnique, 1, nil))
	if _, errno, _ := answer(t, kernel); errno != 0 {
		t.Error(errno)
	}
}

func TestDeviceDrain(t *testing.T) {
	hold, begun := make(chan struct{}), make(chan struct{}, 1)
	s := &scripted{statfs: func() fuse.Status { begun <- struct{}{}; <-hold; return fuse.OK }}
	d, kernel := pipedDevice(t, s)
	d.start()
	send(t, kernel, requestBytes(opStatFs, opUnique, 1, nil))
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := d.drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a request under way: %v", err)
	}
	send(t, kernel, requestBytes(opStatFs, opUnique+2, 1, nil))
	<-begun // it goes on
	close(hold)
	check(t, d.drain(t.Context()))
	for range 2 {
		_, errno, _ := answer(t, kernel)
		if errno != 0 {
			t.Error(errno)
		}
	}
	send(t, kernel, requestBytes(opStatFs, opUnique+4, 1, nil))
	check(t, d.drain(t.Context()))
	select {
	case <-begun:
		t.Error("a request was read while nothing may run")
	default:
	}
	d.start()
	<-begun
	if unique, _, _ := answer(t, kernel); unique != opUnique+4 {
		t.Error(unique)
	}
}

// A device that cannot read says so, answers what it has read, and ends.
func TestDeviceFails(t *testing.T) {
	d, kernel := pipedDevice(t, &scripted{})
	gone := make(chan struct{})
	d.gone = func() { close(gone) }
	d.start()
	send(t, kernel, []byte("no request"))
	<-d.ended
	<-gone
	if d.cause() == nil {
		t.Error("no cause")
	}
	d.start()
	if err := d.drain(t.Context()); err != unix.ENODEV {
		t.Error(err)
	}
}

func TestNotifications(t *testing.T) {
	d, kernel := pipedDevice(t, &scripted{})
	for name, tc := range map[string]struct {
		tell func() fuse.Status
		code int32
		body []byte
	}{
		"inode":  {func() fuse.Status { return d.InodeNotify(0x0102, -1, 0) }, 2, binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, 0x0102), 1<<64-1), 0)},
		"pages":  {func() fuse.Status { return d.InodeNotify(7, 4096, 8192) }, 2, binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, 7), 4096), 8192)},
		"names":  {d.EpochNotify, 8, nil},
		"resend": {d.Resend, 7, nil},
	} {
		if status := tc.tell(); status != fuse.OK {
			t.Errorf("%s: %v", name, status)
		}
		unique, errno, body := answer(t, kernel)
		if unique != 0 || int32(-errno) != tc.code || !bytes.Equal(body, tc.body) {
			t.Errorf("%s: number %d, code %d, %x", name, unique, -int32(errno), body)
		}
	}
}

func TestBuffers(t *testing.T) {
	b := newBuffers(slog.New(slog.DiscardHandler))
	defer b.close()
	var lent [][]byte
	for range 300 {
		for _, payload := range []int{0, 4096, 4097, middlePayload, middlePayload + 1} {
			p := b.get(payload)
			if len(p) < pageBytes+payload {
				t.Fatalf("%d bytes for %d", len(p), payload)
			}
			p[0], p[len(p)-1] = 1, 1
			lent = append(lent, p)
		}
	}
	for _, p := range lent {
		b.put(p)
	}
	for i := range b.classes {
		if c := &b.classes[i]; len(c.free) != c.keep {
			t.Errorf("%d of %d bytes are kept", len(c.free), c.size)
		}
	}
	big := b.get(8 << 20)
	if len(big) < 8<<20 {
		t.Errorf("%d bytes", len(big))
	}
	b.put(big)
	if !b.locked() {
		t.Error("not locked: root may")
	}
}

// Buffers are locked: that is what keeps a crash from failing a request.
func TestBuffersAreLocked(t *testing.T) {
	lockedKiB := func() string {
		status, err := os.ReadFile("/proc/self/status")
		check(t, err)
		_, after, _ := strings.Cut(string(status), "VmLck:")
		kib, _, _ := strings.Cut(after, "kB")
		return strings.TrimSpace(kib)
	}
	b := newBuffers(slog.New(slog.DiscardHandler))
	before := lockedKiB()
	p := b.get(largePayload)
	if after := lockedKiB(); after == before {
		t.Errorf("%s KiB locked, before and after", after)
	}
	b.put(p)
	b.close()
}

// One request allocates what the library needs for it, and no buffer.
func TestDeviceAllocations(t *testing.T) {
	s := &scripted{
		read: func(_ <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
			return inPlace(in.Size), fuse.OK
		},
		writev: func(in *fuse.WriteIn, _ [][]byte) (uint32, fuse.Status) { return in.Size, fuse.OK },
	}
	d, _ := pipedDevice(t, s)
	null, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(null)
	for name, m := range map[string][]byte{
		"write":      requestBytes(opWrite, opUnique, 5, writeBody(make([]byte, 4096))),
		"read":       requestBytes(opRead, opUnique, 5, readBody(4096)),
		"large read": requestBytes(opRead, opUnique, 5, readBody(maxRequest)),
	} {
		d.fd = null
		once := func() {
			buf := d.buffers.get(largePayload)
			d.exchange(buf[requestStart:requestStart+copy(buf[requestStart:], m)], buf)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		count := testing.AllocsPerRun(1000, once)
		runtime.ReadMemStats(&after)
		size := (after.TotalAlloc - before.TotalAlloc) / 1001
		if count > 4 || size > 4096 {
			t.Errorf("%s: %v allocations, %d bytes", name, count, size)
		}
		t.Logf("%s: %v allocations, %d bytes", name, count, size)
	}
}

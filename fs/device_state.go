package fs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	errWoken = errors.New("woken")

	// errNotPolled: a device that waits in read(2) cannot be told to stop.
	errNotPolled = errors.New("requests are resent on this mount: there is no need to wait for them")
)

// setPolled decides how the device waits for requests. The flag belongs to the open
// file description, which predecessor, successor and holder share.
func (d *device) setPolled(polled bool) error {
	if err := unix.SetNonblock(d.fd, polled); err != nil {
		return fmt.Errorf("/dev/fuse: %w", err)
	}
	if !polled {
		return nil
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	d.polled, d.wake = true, wake
	return nil
}

// start begins to serve, also after drain.
func (d *device) start() {
	if d.polled {
		d.unwake()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == deviceEnded {
		return
	}
	d.state = deviceServes
	d.running++
	go d.loop()
}

// enter reports whether the goroutine is to wait for a request.
func (d *device) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != deviceServes || d.idle > d.readers {
		return false
	}
	d.idle++
	return true
}

// received takes note that a goroutine has a request now. The kernel may send any
// number of forgets, for which nobody waits: they get no goroutine more.
func (d *device) received(forgets bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle--
	if d.state == deviceServes && d.idle == 0 && !forgets {
		d.running++
		go d.loop()
	}
}

// failed takes note of an error that ends a wait for a request.
func (d *device) failed(err error) {
	d.mu.Lock()
	d.idle--
	d.mu.Unlock()
	switch err {
	case errWoken:
	case unix.ENODEV:
		d.end(nil)
	default:
		d.log.Error("requests can no longer be read: the mount will not answer", "err", err)
		d.end(fmt.Errorf("read from /dev/fuse: %w", err))
	}
}

// end makes every goroutine leave when it is done.
func (d *device) end(err error) {
	d.mu.Lock()
	first := d.state != deviceEnded
	if first {
		d.state, d.err = deviceEnded, err
		if d.running == 0 {
			close(d.ended)
		}
	}
	d.mu.Unlock()
	if first {
		d.gone()
	}
}

// leave is the end of a goroutine.
func (d *device) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	if d.running > 0 {
		return
	}
	switch {
	case d.state == deviceEnded:
		close(d.ended)
	case d.still != nil:
		close(d.still)
		d.still = nil
	}
}

// drain makes the device read no further request and waits until those that were
// read are answered. If ctx ends first, the device goes on. Polled devices only.
func (d *device) drain(ctx context.Context) error {
	if !d.polled {
		return errNotPolled
	}
	still := make(chan struct{})
	d.mu.Lock()
	switch {
	case d.state == deviceEnded:
		d.mu.Unlock()
		return unix.ENODEV
	case d.running == 0:
		close(still)
	default:
		d.still = still
	}
	d.state = deviceDrains
	d.mu.Unlock()
	d.rouse()
	select {
	case <-still:
		return nil
	case <-d.ended:
		return unix.ENODEV
	case <-ctx.Done():
	}
	d.mu.Lock()
	d.still = nil
	d.mu.Unlock()
	d.start()
	return fmt.Errorf("requests are still being answered: %w", ctx.Err())
}

// rouse ends every wait in poll.
func (d *device) rouse() {
	if d.polled {
		one := binary.NativeEndian.AppendUint64(nil, 1)
		_, _ = unix.Write(d.wake, one)
	}
}

func (d *device) unwake() {
	fds := []unix.PollFd{{Fd: int32(d.wake), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
		_, _ = unix.Read(d.wake, make([]byte, 8))
	}
}

// close gives back what the device has besides fd, when it has ended.
func (d *device) close() {
	if d.polled {
		_ = unix.Close(d.wake)
	}
	d.buffers.close()
}

// cause is why the device ended; nil when the mount is gone, or while it serves.
func (d *device) cause() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

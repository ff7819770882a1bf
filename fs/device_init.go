package fs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrCannotTakeOver means that a mount cannot be served by this process. Nothing was
// changed: whoever served it before, or another version, still can.
var ErrCannotTakeOver = errors.New("the mount cannot be taken over")

// hello reads the kernel's INIT and answers it. choose may give the device another
// protocol when it has seen what the kernel can; keep gets both messages, of which a
// successor needs the bytes, before the kernel has the answer.
func (d *device) hello(choose func(request []byte), keep func(request, reply []byte) error) error {
	buf := d.buffers.get(largePayload)
	defer d.buffers.put(buf)
	n, err := d.read(buf[requestStart:])
	if err != nil {
		return fmt.Errorf("read INIT: %w", err)
	}
	request := buf[requestStart : requestStart+n]
	choose(request)
	reply, err := d.introduce(request)
	if err != nil {
		return err
	}
	if err := keep(request, reply); err != nil {
		return err
	}
	if err := d.write(reply); err != nil {
		return fmt.Errorf("answer INIT: %w", err)
	}
	return nil
}

// introduce gives an INIT to the protocol, which learns from it what the kernel can,
// and returns the reply. The kernel is not asked.
func (d *device) introduce(request []byte) ([]byte, error) {
	out := make([]byte, pageBytes)
	n, status := d.protocol.HandleRequest([][]byte{request}, [][]byte{out})
	if n < outHeaderBytes || !status.Ok() {
		return nil, fmt.Errorf("INIT of %d bytes: %w", len(request), unix.EPROTO)
	}
	if errno := message(out).number(4); errno != 0 {
		return nil, fmt.Errorf("INIT of %d bytes: %w", len(request), unix.Errno(-int32(errno)))
	}
	return out[:n], nil
}

// replay is introduce for a successor: the reply must be the one that the kernel
// has.
func (d *device) replay(request, reply []byte) error {
	now, err := d.introduce(request)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCannotTakeOver, err)
	}
	if differs := initDifference(reply, now); differs != "" {
		return fmt.Errorf("%w: it was made with %s", ErrCannotTakeOver, differs)
	}
	return nil
}

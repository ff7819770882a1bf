package fs

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// initRequest is the INIT of a kernel with some features.
func initRequest(features uint64) []byte {
	body := make([]byte, 64)
	for i, v := range []uint32{7, 45, 128 << 10, uint32(features) | fuse.CAP_INIT_EXT, uint32(features >> 32)} {
		binary.NativeEndian.PutUint32(body[4*i:], v)
	}
	return requestBytes(26, 2, 0, body)
}

func optionsDevice(t *testing.T, opt Options) *device {
	t.Helper()
	opt.Log = slog.New(slog.DiscardHandler)
	d := newDevice(-1, fuse.NewProtocolServer(&scripted{}, mountOptions(opt)), opt.Log, func() {})
	t.Cleanup(d.buffers.close)
	return d
}

const everything = ^uint64(0)

// A successor that would answer the first exchange in another way is told what
// differs.
func TestReplay(t *testing.T) {
	request := initRequest(everything)
	reply, err := optionsDevice(t, Options{}).introduce(request)
	check(t, err)
	check(t, optionsDevice(t, Options{}).replay(request, reply))

	err = optionsDevice(t, Options{Writeback: true}).replay(request, reply)
	if !errors.Is(err, ErrCannotTakeOver) || !strings.Contains(err.Error(), "features") {
		t.Errorf("another feature: %v", err)
	}
	err = optionsDevice(t, Options{}).replay(request, reply[:len(reply)-4])
	if !errors.Is(err, ErrCannotTakeOver) {
		t.Errorf("another length: %v", err)
	}
	reply[len(reply)-1] = 1
	if err = optionsDevice(t, Options{}).replay(request, reply); !errors.Is(err, ErrCannotTakeOver) {
		t.Errorf("another byte: %v", err)
	}
	request[inHeaderBytes] = 6
	if err = optionsDevice(t, Options{}).replay(request, reply); !errors.Is(err, ErrCannotTakeOver) {
		t.Errorf("another protocol: %v", err)
	}
}

func TestNegotiation(t *testing.T) {
	for name, tc := range map[string]struct {
		opt       Options
		kernel    uint64
		has, lack uint64
	}{
		"by default": {Options{}, everything, wantedFlags | fuse.CAP_HAS_RESEND, unwantedFlags | fuse.CAP_WRITEBACK_CACHE},
		"writeback":  {Options{Writeback: true}, everything, fuse.CAP_WRITEBACK_CACHE | fuse.CAP_HAS_RESEND, unwantedFlags},
		"masked":     {Options{NoResend: true}, everything, wantedFlags, fuse.CAP_HAS_RESEND},
		"old kernel": {Options{Writeback: true}, wantedFlags, wantedFlags, fuse.CAP_HAS_RESEND | fuse.CAP_WRITEBACK_CACHE},
	} {
		request := initRequest(tc.kernel)
		reply, err := optionsDevice(t, tc.opt).introduce(request)
		check(t, err)
		if got := negotiated(reply); got&tc.has != tc.has || got&tc.lack != 0 {
			t.Errorf("%s: %#x, lacks %#x, has %#x too many", name, got, tc.has&^got, got&tc.lack)
		}
		if got := offered(request); got != tc.kernel|fuse.CAP_INIT_EXT {
			t.Errorf("%s: offered %#x", name, got)
		}
	}
}

package fs

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// connected is a file system with a connection that polls as fd does.
func connected(t *testing.T, fd int) *fileSystem {
	f := unmounted(t)
	f.fuseFD = fd
	return f
}

func working(t *testing.T) *fileSystem {
	null, err := os.Open("/dev/null")
	check(t, err)
	t.Cleanup(func() { check(t, null.Close()) })
	return connected(t, int(null.Fd()))
}

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestSignalDoesNotEndRequest(t *testing.T) {
	caller := exec.Command("sleep", "1000")
	check(t, caller.Start())
	t.Cleanup(func() { _ = caller.Process.Kill(); _ = caller.Wait() })
	r := working(t).request(closedChannel(), uint32(caller.Process.Pid))
	defer r.stop()
	select {
	case <-r.Done():
		t.Error("ended")
	case <-time.After(2 * killPoll):
	}
	if r.Err() != nil {
		t.Error(r.Err())
	}
}

func TestRequestEndsWithItsCaller(t *testing.T) {
	gone := exec.Command("true")
	check(t, gone.Run())
	r := working(t).request(closedChannel(), uint32(gone.Process.Pid))
	defer r.stop()
	<-r.Done()
	if errnoOf(r.Err()) != unix.EINTR {
		t.Error(r.Err())
	}
}

func TestRequestEndsWithTheConnection(t *testing.T) {
	var pipe [2]int
	check(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	check(t, unix.Close(pipe[0])) // the other end polls POLLERR now
	defer unix.Close(pipe[1])
	r := connected(t, pipe[1]).request(closedChannel(), 0)
	defer r.stop()
	<-r.Done()
}

func TestRequestEndsWithItsHandler(t *testing.T) {
	r := working(t).request(nil, 1)
	done := r.Done()
	r.stop()
	<-done
}

func TestRequestCostsNothingUnlessWaitedFor(t *testing.T) {
	r := working(t).request(nil, 1)
	if r.Err() != nil || r.inner != nil {
		t.Error("somebody watches")
	}
	r.stop()
}

// The interrupt of a request that was resent may have gone to the predecessor: nobody
// says again that its caller is to die.
func TestResentRequestEndsWithItsCaller(t *testing.T) {
	gone := exec.Command("true")
	check(t, gone.Run())
	f := working(t)
	in := fuse.InHeader{Unique: 8, Caller: fuse.Caller{Pid: uint32(gone.Process.Pid)}}
	first := f.requestOf(nil, &in)
	defer first.stop()
	select {
	case <-first.Done():
		t.Error("nobody has interrupted it")
	case <-time.After(2 * killPoll):
	}
	in.Unique |= resentBit
	again := f.requestOf(nil, &in)
	defer again.stop()
	<-again.Done()
	if plain(in.Unique) != 8 || resent(plain(in.Unique)) {
		t.Errorf("the first number of %#x", in.Unique)
	}
}

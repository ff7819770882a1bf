package holder

import (
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// Many goroutines keep, drop and look; in the end both sides have the same.
func TestParallel(t *testing.T) {
	ours, theirs, err := socketPair()
	check(t, err)
	k := &Keeper{kept: map[string]int{}, lost: make(chan struct{})}
	k.link, err = newLink(theirs, os.Getpid(), k.lose)
	check(t, err)
	s := &supervisor{kept: map[string]int{}, buf: make([]byte, maxMessage+1), sock: ours, pidfd: -1, previous: -1, wake: -1}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 50 {
				own, shared := "own"+strconv.Itoa(g), "shared"+strconv.Itoa(i%3)
				for _, name := range []string{own, shared} {
					if err := putContent(k, name, strconv.Itoa(i)); err != nil {
						t.Error(err)
					}
				}
				if got, err := getContent(k, own); got != strconv.Itoa(i) || err != nil {
					t.Errorf("own: %s, %v", got, err)
				}
				if err := k.Drop(shared); err != nil {
					t.Error(err)
				}
				_, _, _, _ = k.Kind(), k.PID(), k.BeatEvery(), k.Lost()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		s.receive(-1)
	}
	names := make([]string, 0, len(s.kept))
	for name := range s.kept {
		names = append(names, name)
	}
	slices.Sort(names)
	if !slices.Equal(names, k.Names()) {
		t.Errorf("the holder keeps %v, the daemon %v", names, k.Names())
	}
	s.close()
	<-k.Lost()
	check(t, k.Close())
}

// What a daemon has not read when it dies makes the kernel report a reset, before all that the daemon said.
func TestDeathWithUnreadMessage(t *testing.T) {
	ours, theirs, err := socketPair()
	check(t, err)
	s := &supervisor{kept: map[string]int{}, buf: make([]byte, maxMessage+1), sock: ours, pidfd: -1, previous: -1, wake: -1}
	check(t, sendMessage(ours, watchdogVar(0), -1))
	fd, err := memfd("x")
	check(t, err)
	check(t, sendMessage(theirs, storeText("a"), fd))
	closeFD(fd)
	closeFD(theirs)
	s.receive(-1)
	if _, ok := s.kept["a"]; !ok || s.sock >= 0 {
		t.Errorf("kept %v, socket %d", s.kept, s.sock)
	}
	s.close()
}

package handle

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A handle whose inode is gone is stale, also at the moment when the number of the
// inode is being given to a new file.
func TestOpenWhileNumbersAreReused(t *testing.T) {
	dir := t.TempDir()
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	var gone atomic.Pointer[Handle]
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				h := gone.Load()
				if h == nil {
					continue
				}
				fd, err := h.Open(root, unix.O_PATH)
				if err == nil {
					_ = unix.Close(fd) // not gone yet
				} else if !errors.Is(err, unix.ESTALE) {
					t.Errorf("got %v, want ESTALE", err)
					return
				}
			}
		})
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		name := filepath.Join(dir, "file")
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		h, err := At(int(f.Fd()), "")
		if err != nil {
			t.Fatal(err)
		}
		gone.Store(&h)
		if err := errors.Join(f.Close(), os.Remove(name)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

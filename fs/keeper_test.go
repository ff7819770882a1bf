package fs

import (
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// fakeKeeper is a holder that lives in the test: it has duplicates, by name.
type fakeKeeper struct {
	mu   sync.Mutex
	kept map[string]int
}

func (k *fakeKeeper) Put(name string, fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if old, ok := k.kept[name]; ok {
		_ = unix.Close(old)
	}
	k.kept[name] = own
	return nil
}

func (k *fakeKeeper) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fd, ok := k.kept[name]; ok {
		_ = unix.Close(fd)
		delete(k.kept, name)
	}
	return nil
}

func (k *fakeKeeper) Take(name string) (int, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd, ok := k.kept[name]
	if !ok {
		return -1, false
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return own, err == nil
}

func (k *fakeKeeper) Names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.kept))
}

func (k *fakeKeeper) close() {
	for _, name := range k.Names() {
		_ = k.Drop(name)
	}
}

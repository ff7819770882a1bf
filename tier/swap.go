package tier

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tierfs/tierfs/handle"
)

// A swap is a system call that changes a segment's name below, N.log to N.remote
// or back, behind the kernel's back. Lookups try one name after the other and must
// not miss a file that is swapped in between; they take no lock, but look again.
// Listings do: one must not see a file under both of its names, or under none.
type swaps struct {
	begun atomic.Int64 // counted before the system call

	// listed is held shared by each listing and exclusively by each swap, one lock
	// for many directories: they meet only where they share it.
	listed [64]sync.RWMutex
	seed   maphash.Seed
}

func (s *swaps) init() { s.seed = maphash.MakeSeed() }

func (s *swaps) lock(dir handle.Handle) *sync.RWMutex {
	return &s.listed[maphash.String(s.seed, dir.Bytes)%uint64(len(s.listed))]
}

// swap runs the system call that swaps a name of the directory. The caller holds
// the lock of the file, so that there is one swap of it at a time.
func (v *Volume) swap(dir handle.Handle, rename func() error) error {
	mu := v.swaps.lock(dir)
	mu.Lock()
	defer mu.Unlock()
	v.swaps.begun.Add(1)
	return rename()
}

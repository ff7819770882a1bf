package tier

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/tierfs/tierfs/objstore/sim"
)

func TestOwner(t *testing.T) {
	w := newWorld(t, 2)
	w.do(w.v.CheckOwner(t.Context()))
	w.do(w.v.CheckOwner(t.Context()))
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))

	copied := newWorld(t, 0)
	copied.close()
	copied.store = w.store
	for _, f := range []string{"volume", "epoch"} {
		b, err := os.ReadFile(filepath.Join(w.path, ".tierfs", f))
		w.do(err)
		copied.write(filepath.Join(".tierfs", f), b)
	}
	copied.open()
	if err := copied.v.CheckOwner(t.Context()); err == nil {
		t.Fatal("a copy owns the volume")
	}
	w.do(w.v.CheckOwner(t.Context()))
	copied.take = true
	copied.reopen()
	w.do(copied.v.CheckOwner(t.Context()))
	if err := w.v.CheckOwner(t.Context()); err == nil {
		t.Fatal("the original still owns the volume")
	}

	old := newWorld(t, 0)
	old.do(old.v.CheckOwner(t.Context()))
	epoch, err := os.ReadFile(filepath.Join(old.path, ".tierfs/epoch"))
	old.do(err)
	for range 2 {
		old.reopen()
		old.do(old.v.CheckOwner(t.Context()))
	}
	old.close()
	old.write(".tierfs/epoch", epoch)
	old.open()
	if err := old.v.CheckOwner(t.Context()); err == nil {
		t.Fatal("a rolled-back source owns the volume")
	}
}

// TestAnotherStoreIsNotClaimed: a known volume's store that is suddenly empty is a
// wrong one, or one that is not mounted. Its objects are not to be taken for missing.
func TestAnotherStoreIsNotClaimed(t *testing.T) {
	w := newWorld(t, 2)
	w.do(w.v.CheckOwner(t.Context()))
	right := w.store
	w.store = sim.New(sim.Options{})
	w.reopen()
	if err := w.v.CheckOwner(t.Context()); !errors.Is(err, ErrNotOwner) {
		t.Fatalf("got %v, want ErrNotOwner", err)
	}
	if len(w.store.Keys()) != 0 {
		t.Fatal("the empty store was claimed")
	}
	w.store = right
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))
	w.store, w.take = sim.New(sim.Options{}), true
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))
}

// A disk that was rolled back knows no claim that the store has seen: it is
// refused at every mount, not only at its first.
func TestRolledBackSourceStaysRefused(t *testing.T) {
	w := newWorld(t, 0)
	w.do(w.v.CheckOwner(t.Context()))
	epoch, err := os.ReadFile(filepath.Join(w.path, ".tierfs/epoch"))
	w.do(err)
	w.reopen()
	w.do(w.v.CheckOwner(t.Context()))
	w.close()
	w.write(".tierfs/epoch", epoch)
	for i := range 3 {
		w.open()
		if err := w.v.CheckOwner(t.Context()); !errors.Is(err, ErrNotOwner) {
			t.Errorf("mount %d of a rolled-back source: %v", i+1, err)
		}
		w.close()
	}
}

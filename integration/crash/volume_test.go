package crash

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/child"
	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// patience bounds every wait for what has to come.
const patience = 30 * time.Second

// grace is how long an object outlives its segment.
const grace = "100 ms"

// volume is one source with its store, its daemon, its broker's load and the ledger of what it has to hold. It lives through many
// kills.
type volume struct {
	t      *testing.T
	ctx    context.Context
	daemon *daemon.Daemon
	ledger *ledger
	store  rig.Store
	orders string   // the file with the daemon's orders
	root   *os.File // the source as it is below the mount
	verb   string   // of the orders that kill: crash or die
	writes string   // mode
	load   *load
	death  *death // the last one that was expected

	orderMu  sync.Mutex // guards the orders
	standing []string   // those that go with all others
	spent    bool       // the daemon has died: nothing is ordered any more

	made       atomic.Int64 // partitions
	checkpoint sync.Mutex   // guards the broker's checkpoints
	offsets    map[string]uint64
}

// newVolume makes a volume; nothing is mounted yet. Its source is in disk, or with the rest where that is "".
func newVolume(t *testing.T, disk, verb, writes string) *volume {
	t.Helper()
	dir := t.TempDir()
	v := &volume{t: t, ctx: t.Context(), ledger: newLedger(), orders: filepath.Join(dir, "orders"), offsets: map[string]uint64{}, verb: verb, writes: writes}
	source, bucket := filepath.Join(cmp.Or(disk, dir), "data"), filepath.Join(dir, "bucket")
	v.must(errors.Join(os.Mkdir(source, 0o755), os.Mkdir(bucket, 0o755)))
	v.store = rig.FS(bucket)
	var err error
	v.root, err = os.Open(source)
	v.must(err)
	v.daemon, err = daemon.New(daemon.Options{
		Binary: tierfs, Dir: filepath.Join(dir, "tierfs"), Source: source,
		Mount:    fmt.Sprintf("layout = \"kafka\"\nwrites = %q", writes),
		Settings: v.store.Settings + fmt.Sprintf("[retention]\ndelete_grace = %q\ndefault_local_retention_age = \"36500 d\"\n[upload]\nloop_backoff_max = \"100 ms\"\n", grace),
		Env:      []string{"TIERFS_CRASHPOINTS=" + v.orders},
	})
	v.must(err)
	t.Cleanup(v.close)
	return v
}

func (v *volume) close() {
	v.stopLoad()
	v.order()
	if err := errors.Join(v.daemon.Close(), v.root.Close()); err != nil {
		v.t.Error(err)
	}
	if v.t.Failed() {
		v.t.Logf("tierfs:\n%s", v.daemon.Log().Tail(60))
	}
}

func (v *volume) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

// below is a path in the source itself.
func (v *volume) below(path string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", v.root.Fd(), path)
}

// order replaces the daemon's orders. Behind a death nothing is ordered.
func (v *volume) order(lines ...string) {
	v.orderMu.Lock()
	defer v.orderMu.Unlock()
	if v.spent {
		lines = nil
	}
	v.must(v.writeOrders(slices.Concat(lines, v.standing)))
}

// writeOrders is called with the lock held.
func (v *volume) writeOrders(lines []string) error {
	text := ""
	if len(lines) > 0 {
		text = strings.Join(lines, "\n") + "\n"
	}
	return errors.Join(os.WriteFile(v.orders+".new", []byte(text), 0o600), os.Rename(v.orders+".new", v.orders))
}

// died waits for the end of the daemon at a point.
func (v *volume) died(p *child.Process, from int, point string) error {
	select {
	case <-p.Done():
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("%s was not reached; the daemon's last lines:\n%s", point, v.daemon.Log().Tail(20)), v.daemon.Kill())
	}
	if said := v.daemon.Log().Text()[from:]; !strings.Contains(said, "crashing at "+point+"\n") {
		return fmt.Errorf("the daemon did not end at %s but by %v; its last lines:\n%s", point, p.Err(), v.daemon.Log().Tail(20))
	}
	return nil
}

// eventually looks until something is so.
func (v *volume) eventually(what string, holds func() (bool, error)) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		ok, err := holds()
		switch {
		case ok && err == nil:
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s: %w", what, err)
		case time.Now().After(deadline):
			return fmt.Errorf("%s: not within %v", what, patience)
		case v.ctx.Err() != nil:
			return v.ctx.Err()
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (v *volume) isRemote(path string) bool { return exists(v.below(markerOf(path) + ".remote")) }

func (v *volume) isUploaded(path string) bool { return exists(v.below(markerOf(path) + ".uploaded")) }

// markerOf is what a segment's marker is called, without its suffix.
func markerOf(path string) string {
	if base, ok := strings.CutSuffix(path, ".log"); ok {
		return base
	}
	return path
}

// found reads what the broker sees, of the wanted paths.
func (v *volume) found(of func(path string) bool) (map[string][]byte, error) {
	found := map[string][]byte{}
	root := v.daemon.Mountpoint()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil || rel == ".":
			return err
		case !of(rel) && e.IsDir():
			return fs.SkipDir
		case !of(rel):
			return nil
		case e.IsDir():
			found[rel+"/"] = nil
			return nil
		}
		found[rel], err = os.ReadFile(path)
		return err
	})
	return found, err
}

// look holds everything that the broker sees against the ledger.
func (v *volume) look(when string) {
	v.t.Helper()
	v.lookAt(when, "")
}

// lookAt is look at what begins with one of the prefixes.
func (v *volume) lookAt(when string, prefixes ...string) {
	v.t.Helper()
	of := func(path string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path, p) })
	}
	found, err := v.found(of)
	v.must(err)
	if wrong := v.ledger.settle(found, of); len(wrong) > 0 {
		v.t.Fatalf("%s:\n%s", when, strings.Join(wrong, "\n"))
	}
}

// check runs `tierfs check`.
func (v *volume) check(when string) {
	v.t.Helper()
	r, err := v.daemon.Run(v.ctx, "check", "--config", v.daemon.Config(), v.daemon.Mountpoint())
	v.must(err)
	if r.Code != 0 {
		v.t.Fatalf("%s tierfs check says, with status %d:\n%s%s", when, r.Code, r.Stdout, r.Stderr)
	}
}

// byDeath tells an error that the end of the mount makes from others. What the kernel was half through with when the mount ended
// is EIO: then the daemon has to be dead. A daemon that is replaced explains nothing.
func (v *volume) byDeath(err error) bool {
	switch {
	case v.verb == die:
		return false
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED):
		return true
	case !errors.Is(err, unix.EIO):
		return false
	}
	select {
	case <-v.daemon.Process().Done():
		return true
	case <-time.After(patience):
		return false
	}
}

// same fails unless a file reads as it was acknowledged.
func (v *volume) same(path string) error {
	wanted, _ := v.ledger.of(path)
	have, err := os.ReadFile(v.at(path))
	if err == nil && !bytes.Equal(have, wanted) {
		err = fmt.Errorf("%s has %d bytes, acknowledged were %d; they differ at %d", path, len(have), len(wanted), differ(have, wanted))
	}
	return err
}

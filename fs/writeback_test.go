package fs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier/tiertest"
)

// TestGathered counts what the kernel sends: appends of a broker arrive together, and an
// fsync leaves them whole below.
func TestGathered(t *testing.T) {
	m := mountTest(t, gathered)
	f, err := os.OpenFile(m.path("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	check(t, err)
	defer f.Close()
	const size, appends = 16384, 256 // 4 MiB
	var want []byte
	for i := range appends {
		want = append(want, pattern(size, byte(i))...)
		_, err := f.Write(want[len(want)-size:])
		check(t, err)
	}
	check(t, f.Sync())
	if n := m.count(metrics.OpWrite); n > appends/8 {
		t.Errorf("%d WRITEs for %d appends", n, appends)
	}
	below, err := os.ReadFile(m.below("log"))
	if check(t, err); !bytes.Equal(below, want) {
		t.Error("below are other bytes")
	}
	if n := m.count(metrics.OpRead); n > 0 {
		t.Errorf("%d READs by a file that is only written", n)
	}
}

const (
	smallCap  = 2 << 20 // what the kernel may gather on a disk of 24 MiB
	fullChild = "full"
)

// TestFullWhileGathering fills the disk below. What write(2) accepted is there in the end, and
// the writer learns soon that there is no room: with write(2) itself.
func TestFullWhileGathering(t *testing.T) {
	disk := tiertest.SmallDisk(t, 0)
	m := mountTest(t, gathered, func(c *mountConfig) {
		c.disk, c.options.DirtyCap, c.fs.MaxDirty = disk, smallCap, smallCap
	})
	if m.volume.LateReserve() < smallCap {
		t.Fatalf("a reserve of %d bytes", m.volume.LateReserve())
	}
	out, err := child(fullChild, m.mnt, filepath.Join(disk, "ballast")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	if !m.volume.Full() {
		t.Error("the volume is not full")
	}
	check(t, os.Remove(filepath.Join(disk, "ballast")))
	m.volume.CheckRoom()
	if m.volume.Full() || m.volume.LateReserve() < smallCap {
		t.Errorf("there is room, but full %v, reserve %d", m.volume.Full(), m.volume.LateReserve())
	}
	out, err = child("append", m.path("log")).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// fillChild writes until write(2) fails, and looks at what it had written.
func fillChild(args []string) error {
	log, ballast := filepath.Join(args[0], "log"), args[1]
	f, err := os.OpenFile(log, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	if err := tiertest.Eat(ballast); err != nil {
		return err
	}
	var want []byte
	for i := 0; ; i++ {
		more := pattern(16384, byte(i))
		time.Sleep(time.Millisecond) // the kernel has to be told while the reserve lasts
		n, err := f.Write(more)
		want = append(want, more[:n]...)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil || len(want) > 2*smallCap+smallCap/2 {
			return fmt.Errorf("after %d bytes: %w", len(want), err)
		}
	}
	if _, err := os.Create(filepath.Join(args[0], "new")); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("create: %w", err)
	}
	if err := f.Sync(); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("first fsync: %w", err)
	}
	if err := f.Sync(); err != nil { // it has been told
		return fmt.Errorf("second fsync: %w", err)
	}
	if _, err := f.Stat(); err != nil {
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	got := make([]byte, len(want)+1)
	n, err := f.ReadAt(got, 0)
	if err != io.EOF || !bytes.Equal(got[:n], want) {
		return fmt.Errorf("%d bytes of %d, right %v: %w", n, len(want), bytes.Equal(got[:n], want[:min(n, len(want))]), err)
	}
	fmt.Printf("%d bytes were accepted by a full disk, all are there\n", len(want))
	return nil
}

func appendChild(args []string) error {
	f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	for range 10 {
		if _, err := f.Write(make([]byte, 16384)); err != nil {
			return err
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// TestLimitKept moves what the kernel may gather, as the kernel does when the memory in use changes.
func TestLimitKept(t *testing.T) {
	const limit = 8 << 20
	m := mountTest(t, gathered, func(c *mountConfig) { c.options.DirtyCap, c.fs.MaxDirty = limit, limit })
	kept := m.server.limit
	check(t, dirtyLimit{kept.device, 4 * limit}.set())
	look := make(chan time.Time)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		m.server.keepLimit(look)
	}()
	for range 2 { // the second is taken when the first is done
		look <- time.Now()
	}
	for _, name := range []string{"max_bytes", "min_bytes"} {
		text, err := os.ReadFile(kept.file(name))
		check(t, err)
		now, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if check(t, err); now < limit*15/16 || now > limit*17/16 {
			t.Errorf("%s: %d bytes instead of %d", name, now, limit)
		}
	}
	m.close()
	<-stopped
}

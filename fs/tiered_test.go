package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/handle"
	"github.com/tierfs/tierfs/layout"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/tier"
)

// A tieredMount is a mount with a store in memory, over a directory t-0 of generic
// segments.
type tieredMount struct {
	*testMount
	store *sim.Store
}

func tieredTest(t *testing.T, configure ...func(*mountConfig)) *tieredMount {
	t.Helper()
	store := sim.New(sim.Options{})
	dir, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Close(dir)) })
	cache, err := chunkcache.New(chunkcache.Options{Dir: dir, Store: store, ChunkSize: 1 << 20})
	check(t, err)
	t.Cleanup(func() { check(t, cache.Close()) })
	base := func(c *mountConfig) {
		c.options = tier.Options{Layout: layout.Generic, Store: store, Cache: cache, Prefix: "p", FetchTimeout: 10 * time.Second}
		c.prepare = func(src string) { check(t, os.Mkdir(src+"/t-0", 0o755)) }
	}
	return &tieredMount{mountTest(t, append([]func(*mountConfig){base}, configure...)...), store}
}

func segmentPath(start int) string { return fmt.Sprintf("t-0/%020d.log", start) }

// fill writes sealed segments of size bytes and an active one.
func (m *tieredMount) fill(sealed, size int) {
	m.t.Helper()
	for i := range sealed {
		check(m.t, os.WriteFile(m.path(segmentPath(i*1000)), pattern(size, byte(i)), 0o640))
	}
	check(m.t, os.WriteFile(m.path(segmentPath(sealed*1000)), []byte("active"), 0o640))
}

// tierOut uploads and evicts whatever may go, and returns how many went.
func (m *tieredMount) tierOut() int {
	m.t.Helper()
	n, err := m.tryTierOut(context.Background())
	check(m.t, err)
	return n
}

func (m *tieredMount) tryTierOut(ctx context.Context) (evicted int, err error) {
	for _, p := range m.volume.Partitions() {
		for _, s := range p.Segments() {
			if err := m.upload(ctx, p, s); !harmless(err) {
				return evicted, fmt.Errorf("upload %s: %w", s.Name(), err)
			}
		}
		for _, s := range p.Segments() {
			switch err := m.volume.Evict(ctx, p, s); {
			case err == nil:
				evicted++
			case !harmless(err):
				return evicted, fmt.Errorf("evict %s: %w", s.Name(), err)
			}
		}
	}
	return evicted, nil
}

// harmless: the segment is not for tiering now, or it is gone meanwhile.
func harmless(err error) bool {
	refused, notWhole := (*tier.Refused)(nil), (*tier.NotWhole)(nil)
	return err == nil || errors.As(err, &refused) || errors.As(err, &notWhole) ||
		errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ENOENT)
}

func (m *tieredMount) upload(ctx context.Context, p *tier.Partition, s tier.Segment) error {
	u, err := m.volume.Prepare(ctx, p, s)
	if err != nil {
		return err
	}
	defer u.Close()
	for _, o := range u.Objects {
		if err := m.store.Put(ctx, o.Key, o.Body, objstore.PutOptions{Metadata: o.Metadata}); err != nil {
			return u.Abort() // the bytes have changed under it
		}
	}
	return u.Commit()
}

func TestEvictedFile(t *testing.T) {
	const size = 3<<20 + 4321
	m := tieredTest(t)
	m.fill(2, size)
	name := segmentPath(0)
	want := pattern(size, 0)
	check(t, os.Chown(m.path(name), 12, 34))
	check(t, unix.Setxattr(m.path(name), "user.a", []byte("b"), 0))
	held, err := os.OpenFile(m.path(name), os.O_RDWR, 0)
	check(t, err)
	defer held.Close()
	before := stat(t, m.path(name))

	if n := m.tierOut(); n != 2 {
		t.Fatalf("evicted %d segments, want 2", n)
	}
	t.Run("attributes stay, blocks go", func(t *testing.T) {
		m.waitFor("the kernel is told", func() bool { return stat(t, m.path(name)).Blocks < before.Blocks })
		after := stat(t, m.path(name))
		if below := stat(t, m.below("t-0", "00000000000000000000.remote")); after.Blocks != below.Blocks || below.Ino != before.Ino {
			t.Errorf("%d blocks, %d below", after.Blocks, below.Blocks)
		}
		after.Blocks, after.Ctim, after.Atim = before.Blocks, before.Ctim, before.Atim
		if after != before {
			t.Errorf("got  %+v\nwant %+v", after, before)
		}
		buf := make([]byte, 10)
		if n, err := unix.Getxattr(m.path(name), "user.a", buf); string(buf[:max(n, 0)]) != "b" || err != nil {
			t.Errorf("xattr: %q, %v", buf[:n], err)
		}
	})
	t.Run("names stay", func(t *testing.T) {
		want := []string{"00000000000000000000.log", "00000000000000001000.log", "00000000000000002000.log"}
		if got := listNames(t, m.path("t-0")); !slices.Equal(got, want) {
			t.Errorf("names: %q", got)
		}
	})
	t.Run("warm pages stay", func(t *testing.T) {
		_ = m.sh("cat " + name + ">/dev/null")
		reads := m.count(metrics.OpRead)
		if got := m.sh("cat " + name + " | wc -c"); got != strconv.Itoa(size) {
			t.Error(got)
		}
		if n := m.count(metrics.OpRead) - reads; n != 0 {
			t.Errorf("%d READs", n)
		}
	})
	t.Run("cold reads", func(t *testing.T) {
		dropFD(t, held)
		got, err := io.ReadAll(io.NewSectionReader(held, 0, size+100))
		if !bytes.Equal(got, want) || err != nil {
			t.Errorf("through the old handle: %d bytes, %v", len(got), err)
		}
		if m.store.Count("get") == 0 {
			t.Error("nothing was fetched")
		}
		part := make([]byte, 10)
		if n, err := unix.Pread(int(held.Fd()), part, size); n != 0 || err != nil {
			t.Errorf("at the end: %d, %v", n, err)
		}
	})
	t.Run("mapped and sent", func(t *testing.T) {
		dropFD(t, held)
		out, err := child("map", m.path(name)).Output()
		if !bytes.Equal(out, want) || err != nil {
			t.Errorf("mapped: %d bytes, %v", len(out), err)
		}
	})
	t.Run("lseek", func(t *testing.T) {
		end, err := unix.Seek(int(held.Fd()), 5, unix.SEEK_HOLE)
		data, err2 := unix.Seek(int(held.Fd()), 5, unix.SEEK_DATA)
		if end != size || data != 5 || err != nil || err2 != nil {
			t.Errorf("hole at %d, %v; data at %d, %v", end, err, data, err2)
		}
		_, err = unix.Seek(int(held.Fd()), size, unix.SEEK_DATA)
		wantErrno(t, "behind the end", err, unix.ENXIO)
	})
	t.Run("copy_file_range", func(t *testing.T) {
		to, err := os.Create(m.path("copy"))
		check(t, err)
		defer to.Close()
		off := int64(1000)
		n, err := unix.CopyFileRange(int(held.Fd()), &off, int(to.Fd()), nil, 100000, 0)
		check(t, err)
		if got, _ := os.ReadFile(m.path("copy")); n != 100000 || !bytes.Equal(got, want[1000:101000]) {
			t.Errorf("copied %d", n)
		}
	})
}

func mapChild(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(bytes.Clone(mem))
	return errors.Join(err, unix.Munmap(mem), f.Close())
}

func TestChangeEvictedFile(t *testing.T) {
	const size = 200000
	want := pattern(size, 0)
	for name, c := range map[string]struct {
		change func(t *testing.T, m *tieredMount, path string) error
		want   []byte
		gets   bool
	}{
		"write": {func(t *testing.T, m *tieredMount, path string) error {
			return writeAt(path, 70000, "changed")
		}, slices.Concat(want[:70000], []byte("changed"), want[70007:]), true},
		"append": {func(t *testing.T, m *tieredMount, path string) error {
			return writeAt(path, size, "more")
		}, slices.Concat(want, []byte("more")), true},
		"truncate": {func(t *testing.T, m *tieredMount, path string) error { return os.Truncate(path, 1000) }, want[:1000], true},
		"empty":    {func(t *testing.T, m *tieredMount, path string) error { return os.Truncate(path, 0) }, nil, false},
		"truncating open": {func(t *testing.T, m *tieredMount, path string) error {
			return os.WriteFile(path, []byte("new"), 0)
		}, []byte("new"), false},
		"punch": {func(t *testing.T, m *tieredMount, path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			check(t, err)
			defer f.Close()
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 5000)
		}, slices.Concat(make([]byte, 5000), want[5000:]), true},
	} {
		t.Run(name, func(t *testing.T) {
			m := tieredTest(t)
			m.fill(1, size)
			path := m.path(segmentPath(0))
			ino := stat(t, path).Ino
			if n := m.tierOut(); n != 1 {
				t.Fatalf("evicted %d", n)
			}
			check(t, c.change(t, m, path))
			if got, err := os.ReadFile(path); !bytes.Equal(got, c.want) || err != nil {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
			if got, err := os.ReadFile(m.below(segmentPath(0))); !bytes.Equal(got, c.want) || err != nil {
				t.Errorf("below: %d bytes, %v", len(got), err)
			}
			if st := stat(t, path); st.Ino != ino || st.Size != int64(len(c.want)) {
				t.Errorf("inode %d, size %d", st.Ino, st.Size)
			}
			if (m.store.Count("get") > 0) != c.gets {
				t.Errorf("%d GETs", m.store.Count("get"))
			}
		})
	}
}

func writeAt(path string, off int64, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(s), off)
	return errors.Join(err, f.Close())
}

// Opening, attributes, renaming, unlinking and links never ask the store.
func TestEvictedFileWithoutStore(t *testing.T) {
	const size = 200000
	m := tieredTest(t)
	m.fill(2, size)
	m.tierOut()
	m.store.SetHook(func(context.Context, string, string) error { return errors.New("the store is away") })
	path := m.path(segmentPath(0))
	held, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer held.Close()
	dropFD(t, held)
	check(t, os.Chmod(path, 0o600))
	check(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(2, 0)))
	check(t, held.Sync())
	check(t, os.Link(path, m.path("linked")))
	check(t, os.Rename(path, path+".deleted"))
	for _, p := range []string{path + ".deleted", m.path("linked")} {
		if st := stat(t, p); st.Size != size || st.Mtim.Sec != 2 || st.Mode&0o777 != 0o600 || st.Nlink != 2 {
			t.Errorf("%s: %+v", p, st)
		}
	}
	check(t, os.Remove(path+".deleted"))
	check(t, os.Remove(m.path("linked")))
	check(t, os.Rename(m.path("t-0"), m.path("t-0.x-delete")))

	m.store.SetHook(nil)
	got, err := io.ReadAll(io.NewSectionReader(held, 0, size))
	if !bytes.Equal(got, pattern(size, 0)) || err != nil {
		t.Errorf("the unlinked open segment: %d bytes, %v", len(got), err)
	}
	got, err = os.ReadFile(m.path("t-0.x-delete/00000000000000001000.log"))
	if !bytes.Equal(got, pattern(size, 1)) || err != nil {
		t.Errorf("in the renamed directory: %d bytes, %v", len(got), err)
	}
}

// A read that the store does not answer fails at its deadline with EIO, and the
// kernel's repetition of it at once.
func TestColdReadDeadline(t *testing.T) {
	m := tieredTest(t, func(c *mountConfig) { c.options.FetchTimeout = time.Second })
	m.fill(1, 200000)
	path := m.path(segmentPath(0))
	m.tierOut()
	dropPages(t, path)
	m.store.SetHook(func(ctx context.Context, op, key string) error {
		<-ctx.Done()
		return ctx.Err()
	})
	defer m.store.SetHook(nil)
	began := time.Now()
	_, err := os.ReadFile(path)
	wantErrno(t, "read", err, unix.EIO)
	if took := time.Since(began); took < 900*time.Millisecond || took > 1900*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	if !strings.Contains(m.log.String(), "request failed") {
		t.Errorf("log: %s", m.log)
	}
}

// Who waits for the store without limit can still be killed, but no other signal
// fails the read.
func TestKillColdReader(t *testing.T) {
	m := tieredTest(t, func(c *mountConfig) { c.options.FetchTimeout = -1 })
	m.fill(1, 200000)
	m.tierOut()
	dropPages(t, m.path(segmentPath(0)))
	var waiting atomic.Int32
	release := make(chan struct{})
	m.store.SetHook(func(ctx context.Context, op, key string) error {
		waiting.Add(1)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	defer m.store.SetHook(nil)
	start := func() *exec.Cmd {
		// O_DIRECT: no read-ahead, so that the reader itself waits for the answer.
		cmd := exec.Command("dd", "if="+m.path(segmentPath(0)), "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
		check(t, cmd.Start())
		return cmd
	}
	victim, survivor := start(), start()
	m.waitFor("a fetch", func() bool { return waiting.Load() > 0 })
	for range 3 {
		check(t, survivor.Process.Signal(unix.SIGURG))
		check(t, victim.Process.Signal(unix.SIGURG))
		time.Sleep(50 * time.Millisecond)
	}
	check(t, victim.Process.Kill())
	dead := make(chan error, 1)
	go func() { dead <- victim.Wait() }()
	select {
	case err := <-dead:
		if err == nil {
			t.Error("the victim has read something")
		}
	case <-time.After(5 * time.Second):
		t.Error("the victim does not die")
		close(release)
		<-dead
		return
	}
	close(release)
	check(t, survivor.Wait())
}

// Listings and lookups that run while segments leave and come back never miss one.
func TestNamesDuringEvictions(t *testing.T) {
	const segments = 30
	m := tieredTest(t)
	m.fill(segments, 1000)
	dir, err := os.Open(m.below("t-0"))
	check(t, err)
	defer dir.Close()
	h, err := handle.At(int(dir.Fd()), "")
	check(t, err)
	d := tier.Dir{FD: int(dir.Fd()), Handle: h}
	stop := make(chan struct{})
	problems := make(chan string, 2)
	watch := func(look func() string) {
		for {
			select {
			case <-stop:
				problems <- ""
				return
			default:
			}
			if p := look(); p != "" {
				problems <- p
				return
			}
		}
	}
	go watch(func() string {
		names, err := os.ReadDir(m.path("t-0"))
		if len(names) != segments+1 || err != nil {
			return fmt.Sprintf("%d names, %v", len(names), err)
		}
		return ""
	})
	go watch(func() string {
		for i := range segments {
			e, err := m.volume.Lookup(d, strings.TrimPrefix(segmentPath(i*1000), "t-0/"))
			if err != nil || e.Stat.Size != 1000 {
				return fmt.Sprintf("lookup of %d: size %d, %v", i, e.Stat.Size, err)
			}
			e.File.Release()
		}
		return ""
	})
	for range 3 {
		m.tierOut()
		for _, p := range m.volume.Partitions() {
			for _, s := range p.Segments() {
				check(t, m.volume.Rehydrate(t.Context(), s.File))
			}
		}
	}
	close(stop)
	for range 2 {
		if p := <-problems; p != "" {
			t.Error(p)
		}
	}
}

// The model again, while segments are uploaded and evicted all the time: between
// two operations, and during them.
func TestModelWithEvictions(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("between, seed ", seed), func(t *testing.T) {
			m := tieredTest(t)
			evicted := 0
			runModel(t, m.in("t-0"), seed, modelOps, func() { evicted += m.tierOut() })
			if evicted == 0 {
				t.Error("nothing was evicted")
			}
			t.Logf("%d evictions, %d GETs", evicted, m.store.Count("get"))
		})
		t.Run(fmt.Sprint("during, seed ", seed), func(t *testing.T) {
			m := tieredTest(t)
			ctx, stop := context.WithCancel(t.Context())
			evicted := 0
			ended := make(chan error)
			go func() {
				for ctx.Err() == nil {
					n, err := m.tryTierOut(ctx)
					if evicted += n; err != nil && ctx.Err() == nil {
						ended <- err
						return
					}
				}
				ended <- nil
			}()
			defer func() {
				stop()
				check(t, <-ended)
				t.Logf("%d evictions, %d GETs", evicted, m.store.Count("get"))
			}()
			runModel(t, m.in("t-0"), seed, modelOps, nil)
		})
	}
}

// in is the mount seen from a directory in it.
func (m *tieredMount) in(dir string) *testMount {
	inner := *m.testMount
	inner.mnt = m.path(dir)
	return &inner
}

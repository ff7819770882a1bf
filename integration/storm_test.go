package integration

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stormAt makes the test binary a client that is interrupted all the time: see storm. Its value is the directory to work in, and
// behind a colon the one with the right bytes of what is there already.
const stormAt = "TIERFS_TEST_STORM"

// stormRounds is how often each worker of a storm does everything.
func stormRounds() int {
	if soak() {
		return 2000
	}
	return 15
}

// TestSignalStorm compares a Go program that is interrupted a thousand times a second, and preempted all the time, on a mount with
// the same on a directory of its own: it sees the right bytes, and no error that it would not see there.
func TestSignalStorm(t *testing.T) {
	p := newPlain(t, fsStore(t), "[cache]\nsize = \"16 MiB\"\n", "cold", "held")
	native := t.TempDir()
	p.must(os.CopyFS(native, os.DirFS(p.source)))
	p.mount()
	p.evict()
	for name, dir := range map[string]string{"native": native, "mount": p.source} {
		cmd := exec.CommandContext(p.ctx, os.Args[0])
		cmd.Env = append(os.Environ(), stormAt+"="+dir+":"+native, "GOMAXPROCS=16")
		out, err := cmd.CombinedOutput()
		t.Logf("%s: %s", name, out)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := p.metric("tierfs_store_requests_total", "op", "get"); n == 0 {
		t.Error("nothing was read from the store")
	}
	p.stop()
}

// storm is the client. It uses the bare system calls: package os would repeat one that is interrupted.
func storm(where string) error {
	dir, native, _ := strings.Cut(where, ":")
	alarms, urgent := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(alarms, unix.SIGALRM)
	signal.Notify(urgent, unix.SIGURG)
	var seen [2]atomic.Int64
	for i, c := range []chan os.Signal{alarms, urgent} {
		go func() {
			for range c {
				seen[i].Add(1)
			}
		}()
	}
	every := unix.Itimerval{Interval: unix.Timeval{Usec: 1000}, Value: unix.Timeval{Usec: 1000}}
	if _, err := unix.Setitimer(unix.ITIMER_REAL, every); err != nil {
		return err
	}
	stop := make(chan struct{})
	var spinning sync.WaitGroup
	for range 2 { // what runs long is preempted by SIGURG
		spinning.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					runtime.GC()
				}
			}
		})
	}
	errs := make(chan error)
	const workers = 6
	for w := range workers {
		go func() { errs <- stormWorker(dir, native, w) }()
	}
	var failed []error
	for range workers {
		failed = append(failed, <-errs)
	}
	close(stop)
	spinning.Wait()
	_, err := unix.Setitimer(unix.ITIMER_REAL, unix.Itimerval{})
	fmt.Printf("%d alarms, %d preemptions were seen\n", seen[0].Load(), seen[1].Load())
	if seen[0].Load() < 50 || seen[1].Load() < 50 {
		err = errors.Join(err, errors.New("that is no storm"))
	}
	return errors.Join(append(failed, err)...)
}

func stormWorker(dir, native string, w int) error {
	random := rand.New(rand.NewPCG(7, uint64(w)))
	for range stormRounds() {
		for _, partition := range []string{"cold-0", "held-0"} {
			if err := stormRead(dir, native, partition, random); err != nil {
				return fmt.Errorf("worker %d, %s: %w", w, partition, err)
			}
		}
		if err := stormWrite(filepath.Join(dir, fmt.Sprint("held-0/worker", w)), random); err != nil {
			return fmt.Errorf("worker %d: %w", w, err)
		}
	}
	return nil
}

// stormRead reads a stretch of a segment that nobody has in memory.
func stormRead(dir, native, partition string, random *rand.Rand) error {
	name := fmt.Sprintf("%s/%020d.log", partition, 40*random.IntN(segmentsOf))
	want, err := os.ReadFile(filepath.Join(native, name))
	if err != nil {
		return err
	}
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("fadvise: %w", err)
	}
	off := random.IntN(len(want))
	got := make([]byte, 1+random.IntN(len(want)-off))
	n, err := unix.Pread(fd, got, int64(off))
	if err != nil || n != len(got) || !bytes.Equal(got, want[off:off+n]) {
		return fmt.Errorf("%d bytes of %d at %d, %v; right: %v", n, len(got), off, err, bytes.Equal(got[:max(n, 0)], want[off:off+max(n, 0)]))
	}
	return nil
}

// stormWrite does to a new file what a broker does to its own.
func stormWrite(path string, random *rand.Rand) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer unix.Close(fd)
	data := make([]byte, 1+random.IntN(200_000))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	for rest := data; len(rest) > 0; {
		n, err := unix.Write(fd, rest[:min(len(rest), 16<<10)])
		if err != nil || n == 0 {
			return fmt.Errorf("write: %d, %w", n, err)
		}
		rest = rest[n:]
	}
	if err := unix.Fsync(fd); err != nil {
		return fmt.Errorf("fsync: %w", err)
	}
	size := random.IntN(len(data) + 1)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	if err := unix.Rename(path, path+".new"); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	got := make([]byte, len(data))
	n, err := unix.Pread(fd, got, 0)
	var st unix.Stat_t
	statErr := unix.Stat(path+".new", &st)
	if err != nil || statErr != nil || n != size || st.Size != int64(size) || !bytes.Equal(got[:size], data[:size]) {
		return fmt.Errorf("read back %d bytes of %d, %w; size %d, %w", n, size, err, st.Size, statErr)
	}
	if err := unix.Unlink(path + ".new"); err != nil {
		return fmt.Errorf("unlink: %w", err)
	}
	if err := unix.Stat(path, &st); !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("the old name: %w", err)
	}
	return nil
}

// runStorm ends the process.
func runStorm(where string) {
	began := time.Now()
	err := storm(where)
	fmt.Println("it took", time.Since(began).Round(time.Millisecond))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// What is unlinked while it is open.
const (
	unlinkedFiles = 40
	unlinkedBytes = 128 << 10 // of each file
	deaths        = 8
)

// TestTakeoverOfUnlinked has files lose their names while they are open, some before each of many takeovers: they are what they were
// until they are closed, and then nothing of them is left, with the holder, on the disk, or in tierfs' state.
func TestTakeoverOfUnlinked(t *testing.T) {
	t.Parallel()
	eachWrites(t, func(t *testing.T, mode string) {
		disk := roomyDisk(t)
		p := newPlainIn(t, disk, writing(rig.FS(t.TempDir()), mode), "", "cold", "held")
		p.mountAs(mode)
		p.evict()
		p.die() // a successor, as they will be
		kept, free := p.kept(), freeBytes(t, disk)
		u := &unlinkedOpen{plain: p}
		defer u.close(0)
		for round := range deaths {
			u.more(round)
			p.die()
			u.use(round)
		}
		if n := len(p.kept()) - len(kept); n < unlinkedFiles {
			t.Errorf("the holder has %d files more: this shows nothing", n)
		}
		u.close(unlinkedFiles / 2)
		p.die() // it has to let go of what its predecessor was told of
		u.close(0)
		p.leavesNothing(disk, kept, free)
		p.die()
		p.leavesNothing(disk, kept, free)
		p.allWhole() // only now: the chunk cache is on the same disk
		p.stop()
		if findings := p.check(); len(findings) != 0 {
			t.Errorf("found %q", findings)
		}
	})
}

func freeBytes(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bfree) * st.Bsize
}

// leavesNothing waits until nothing is left of what had no name.
func (p *plain) leavesNothing(disk string, kept []string, free int64) {
	p.t.Helper()
	p.letsGo(kept)
	p.eventually("its blocks are free", func() bool { return freeBytes(p.t, disk) >= free-unlinkedBytes })
	if entries, err := os.ReadDir(p.path(".tierfs/unlinked")); err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
		p.t.Errorf("still unlinked: %v, %v", entries, err)
	}
	pid, err := p.daemon.PID(daemon.Serves)
	p.must(err)
	fds, err := os.ReadDir(procOf(pid, "fd"))
	p.must(err)
	for _, fd := range fds {
		if name, err := os.Readlink(procOf(pid, "fd/"+fd.Name())); err == nil && strings.HasSuffix(name, "(deleted)") && strings.HasPrefix(name, disk) {
			p.t.Errorf("the daemon has still open %s", name)
		}
	}
}

// unlinkedOpen is what is open and has no name.
type unlinkedOpen struct {
	*plain
	files []*os.File
	want  [][]byte
}

// more makes some files, and takes their names in each of the ways there are.
func (u *unlinkedOpen) more(round int) {
	u.t.Helper()
	for i := range unlinkedFiles / deaths {
		name := u.view(fmt.Sprint("unlinked-", round, "-", i))
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		u.must(err)
		u.files = append(u.files, f)
		want := bytes.Repeat([]byte{byte(1 + round*10 + i)}, unlinkedBytes)
		u.must(all(f.Write(want)))
		u.want = append(u.want, want)
		if i%2 == 0 {
			u.must(os.Remove(name))
			continue
		}
		u.must(os.WriteFile(name+".new", nil, 0o644))
		u.must(os.Rename(name+".new", name))
		u.must(os.Remove(name))
	}
}

// use reads and changes each file.
func (u *unlinkedOpen) use(round int) {
	u.t.Helper()
	for i, f := range u.files {
		u.must(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		u.must(holds(f, u.want[i]))
		copy(u.want[i][round*100:], fmt.Sprint("round ", round))
		u.must(all(f.WriteAt(fmt.Append(nil, "round ", round), int64(round*100))))
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink != 0 || st.Size != unlinkedBytes {
			u.t.Errorf("%s: %d links, %d bytes, %v", f.Name(), st.Nlink, st.Size, err)
		}
	}
}

// close closes all but some.
func (u *unlinkedOpen) close(but int) {
	for len(u.files) > but {
		if err := u.files[0].Close(); err != nil {
			u.t.Error(err)
		}
		u.files, u.want = u.files[1:], u.want[1:]
	}
}

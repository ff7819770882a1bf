package integration

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/integration/rig"
)

// TestRefusedPaths shows that settings whose values cannot be right are refused, and that nothing is touched.
func TestRefusedPaths(t *testing.T) {
	for _, c := range []struct {
		name, settings, mount string // @ stands for the directory in which source and view are
		says                  []string
	}{
		{"negative size", "[cache]\nsize = \"-1 GiB\"\n", "", []string{"size", "-1 gib", "tierfs.toml:"}},
		{"negative time", "[fetch]\ntimeout = \"-1 s\"\n", "", []string{"timeout", "-1 s"}},
		{"wrong unit", "[retention]\ndelete_grace = \"5 GiB\"\n", "", []string{"delete_grace", "5 gib"}},
		{"unknown table", "[tiering]\nx = 1\n", "", []string{"tiering", "tierfs.toml:"}},
		{"cache in the source", "[cache]\npath = \"@/data/cache\"\n", "", []string{"cache.path", "lies inside"}},
		{"cache in the mount", "[cache]\npath = \"@/view/cache\"\n", "mountpoint = \"@/view\"\n", []string{"cache.path", "lies inside"}},
		{"cache by a link into the mount", "[cache]\npath = \"@/link/cache\"\n", "mountpoint = \"@/view\"\n", []string{"cache.path", "lies inside"}},
		{"state in the source", "", "state_dir = \"@/data/state\"\n", []string{"state_dir", "lies inside"}},
		{"mount point in the source", "", "mountpoint = \"@/data/t-0\"\n", []string{"mountpoint", "lies inside"}},
		{"cache that is a file", "[cache]\npath = \"@/file\"\n", "", []string{"cache.path", "not a directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			p := newPlainIn(t, root, fsStore(t), "", "t")
			p.must(os.Mkdir(filepath.Join(root, "view"), 0o755))
			p.must(os.Symlink("view", filepath.Join(root, "link")))
			p.must(os.WriteFile(filepath.Join(root, "file"), nil, 0o644))
			config := filepath.Join(t.TempDir(), "tierfs.toml")
			text := strings.ReplaceAll("[mount]\n"+c.mount+p.store.Settings+c.settings, "@", root)
			p.must(os.WriteFile(config, []byte(text), 0o644))
			p.refused([]string{"--config", config}, c.says...)
		})
	}
	t.Run("store in the source", func(t *testing.T) {
		p := newPlain(t, rig.Store{}, "", "t")
		p.refused([]string{"--store", "fs:" + p.source + "/store"}, "store.fs.path", "lies inside")
	})
}

// refused insists on a mount that fails, with these words in the last line that it prints, and that changes nothing but the time of
// the source itself, and the cache. It returns that line.
func (p *plain) refused(flags []string, says ...string) string {
	p.t.Helper()
	before := picture(p.t, p.path(""))
	r, err := p.daemon.Run(p.ctx, append(append([]string{"mount"}, flags...), p.source)...)
	p.must(err)
	lines := strings.Split(strings.TrimSpace(r.Stderr), "\n")
	last := lines[len(lines)-1]
	p.t.Logf("exit status %d: %s", r.Code, last)
	if !strings.HasPrefix(last, "tierfs: ") || !hasLine([]string{strings.ToLower(last)}, says) || r.Code == 0 {
		p.t.Errorf("exit status %d: %s; want %q", r.Code, r.Stderr, says)
	}
	if strings.Contains(r.Stderr, "msg=mounted") {
		p.t.Error("it was mounted")
	}
	after := picture(p.t, p.path(""))
	for _, all := range []map[string]string{before, after} {
		maps.DeleteFunc(all, func(path, _ string) bool { return path == "/." || strings.HasPrefix(path, "/.tierfs/cache") })
	}
	unchanged(p.t, before, after)
	return last
}

// TestRefusedState damages what a volume cannot be mounted without. The error says which file it is; when that is back, so is all.
func TestRefusedState(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), "", "t")
	p.mount()
	p.evict()
	p.stop()
	config := []string{"--config", p.daemon.Config()}
	for _, c := range []struct {
		name, path string
		how        func(path string) error
	}{
		{"no identity", ".tierfs/volume", func(string) error { return nil }},
		{"empty identity", ".tierfs/volume", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		{"a directory for the identity", ".tierfs/volume", mkdir},
		{"a pipe for the identity", ".tierfs/volume", fifo},
		{"damaged epoch", ".tierfs/epoch", func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }},
		{"damaged attributes of the root", ".tierfs/root", func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }},
		{"a directory for the lock", ".tierfs/lock", mkdir},
		{"a file for the registry", ".tierfs/partitions", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		{"a link for the tombstones", ".tierfs/tombstones", linkTo("/tmp")},
		{"a file for the state", ".tierfs", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := *p
			p.t = t
			aside := filepath.Join(filepath.Dir(p.source), "aside")
			here := filepath.Join(p.source, c.path)
			p.must(os.Rename(here, aside))
			defer func() {
				p.must(os.RemoveAll(here))
				p.must(os.Rename(aside, here))
			}()
			p.must(c.how(here))
			p.refused(config, c.path)
		})
	}
	p.mount()
	for _, start := range p.starts {
		p.whole("t-0" + stem(start) + ".log")
	}
	p.stop()
}

// TestReadOnlySource refuses a source that cannot be written, new or known.
func TestReadOnlySource(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), "", "t")
	config := []string{"--config", p.daemon.Config()}
	readOnly := func() {
		t.Helper()
		p.must(unix.Mount(p.source, p.source, "", unix.MS_BIND, ""))
		defer func() { p.must(unix.Unmount(p.source, unix.MNT_DETACH)) }()
		p.must(unix.Mount("", p.source, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		if said := p.refused(config, "read-only file system"); strings.Count(said, "read-only") != 1 {
			t.Errorf("it says the same twice: %s", said)
		}
	}
	readOnly()
	p.mount()
	p.evict()
	p.stop()
	readOnly()
	p.mount()
	p.whole("t-0" + log)
	p.stop()
}

// TestFullSource mounts a known source on a disk on which nothing fits any more: all is read, and when there is room again it goes on.
// A new source is refused there.
func TestFullSource(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=8m,mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := newPlainIn(t, disk, fsStore(t), "", "t", "held")
	fill := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the disk takes everything: %v", err)
		}
	}
	fill()
	p.refused([]string{"--config", p.daemon.Config()}, "no space left")
	p.must(os.Remove(filepath.Join(disk, "filler")))
	p.mount()
	p.evict("--topic", "t")
	p.stop()
	fill()
	p.mount()
	for _, topic := range []string{"t-0", "held-0"} {
		for _, start := range p.starts {
			p.whole(topic + stem(start) + ".log")
		}
	}
	if err := os.WriteFile(p.view("more"), make([]byte, 1<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a write on the full disk: %v", err)
	}
	p.must(os.Remove(filepath.Join(disk, "filler")))
	p.must(os.WriteFile(p.view("more"), make([]byte, 1<<20), 0o644))
	p.evict()
	p.stop()
	if findings := p.check("--deep"); len(findings) > 0 {
		t.Errorf("a check finds %q", findings)
	}
}

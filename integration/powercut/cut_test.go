package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
)

// cut is a moment: how far the disk's log was, what had been promised, and what the store had.
type cut struct {
	entries int
	ledger  *ledger
	store   string // a copy of the store's directory
	bare    bool   // nothing that was not flushed survives
}

// take makes a cut, while the disk stands still.
func (w *world) take(entries int, l *ledger, store string) error {
	to := w.path(fmt.Sprintf("store-%d", len(w.cuts)))
	w.cuts = append(w.cuts, cut{entries: entries, ledger: l.copy(), store: to})
	return linkAll(store, to)
}

// linkAll copies a store: objects never change, so a second name for each is enough. Those that are on their way are left out.
func linkAll(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(from, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.IsDir() && rel == ".tierfs-tmp":
			return fs.SkipDir
		case e.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		if err := os.Link(path, filepath.Join(to, rel)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// newDaemon is tierfs over the source of a disk that is mounted at point.
func newDaemon(binary, dir, point, store, writes string) (*daemon.Daemon, error) {
	return daemon.New(daemon.Options{
		Binary: binary, Dir: dir, Source: filepath.Join(point, "data"),
		Mount: fmt.Sprintf("layout = \"kafka\"\nwrites = %q", writes),
		Settings: rig.FS(store).Settings +
			"[retention]\ndelete_grace = \"100 ms\"\ndefault_local_retention_age = \"36500 d\"\n[upload]\nloop_backoff_max = \"100 ms\"\n",
	})
}

// after mounts what a cut has left, starts tierfs on it, and says all that is wrong. An error is what is no tierfs' fault.
func (w *world) after(ctx context.Context, image string, c cut) (wrong []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	dir := filepath.Dir(image)
	point, store := filepath.Join(dir, "disk"), filepath.Join(dir, "store")
	if err := errors.Join(os.Mkdir(point, 0o755), linkAll(c.store, store)); err != nil { // another image may need it, too
		return nil, err
	}
	if err := mountImage(image, point, false); err != nil {
		return []string{err.Error()}, nil
	}
	defer func() { err = errors.Join(err, unmount(point)) }()
	if _, err := os.Stat(filepath.Join(point, "data")); err != nil {
		return []string{err.Error()}, nil
	}
	files := below(filepath.Join(point, "data"))
	for _, name := range files {
		for sort, pattern := range sorts {
			if pattern.MatchString(name) {
				w.met[sort]++
			}
		}
	}
	leaks, err := leaked(filepath.Join(point, "data"), rig.FS(store))
	if err != nil {
		return nil, err
	}
	d, err := newDaemon(tierfs, filepath.Join(dir, "tierfs"), point, store, w.writes)
	if err != nil {
		return nil, err
	}
	defer func() {
		if len(wrong) > 0 {
			wrong = append(wrong, "below: "+strings.Join(files, " "), "tierfs: "+d.Log().Tail(30))
		}
	}()
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.Start(ctx); err != nil {
		return []string{err.Error()}, nil
	}
	wrong, err = look(ctx, d, c.ledger)
	return append(leaks, wrong...), err
}

// sorts of files below that a cut should meet.
var sorts = map[string]*regexp.Regexp{
	"local":     regexp.MustCompile(`^[^.].*/\d+\.log$`),
	"uploaded":  regexp.MustCompile(`^[^.].*\.uploaded$`),
	"remote":    regexp.MustCompile(`^[^.].*\.remote$`),
	"renamed":   regexp.MustCompile(`\.deleted(\.remote)?$`),
	"unwritten": regexp.MustCompile(`\.tierfs-tmp-`),
	"intent":    regexp.MustCompile(`^\.tierfs/intents/`),
	"tombstone": regexp.MustCompile(`^\.tierfs/tombstones/`),
}

// below lists what is in the source while nothing is mounted over it.
func below(source string) (names []string) {
	_ = filepath.WalkDir(source, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !strings.Contains(path, ".tierfs/cache/") && !e.IsDir() {
			name, _ := filepath.Rel(source, path)
			names = append(names, name)
		}
		return nil
	})
	return names
}

// look holds what a fresh mount shows against the ledger, then evicts what it may, and expects to read the same again.
func look(ctx context.Context, d *daemon.Daemon, l *ledger) ([]string, error) {
	found, err := read(d.Mountpoint())
	if err != nil {
		return []string{err.Error()}, nil
	}
	wrong := l.wrong(found)
	findings, err := check(ctx, d, l)
	if err != nil {
		return nil, err
	}
	wrong = append(wrong, findings...)
	if n, err := d.Metric(ctx, "tierfs_quarantined_segments"); err != nil || n != 0 {
		wrong = append(wrong, fmt.Sprintf("%v segments are quarantined (%v)", n, err))
	}
	if err := owns(ctx, d); err != nil {
		wrong = append(wrong, err.Error())
	}
	if r, err := d.Run(ctx, "evict", "--all", d.Mountpoint()); err != nil || r.Code != 0 {
		wrong = append(wrong, fmt.Sprintf("evict: %v, status %d: %s%s", err, r.Code, r.Stdout, r.Stderr))
	}
	again, err := read(d.Mountpoint())
	if err != nil {
		return append(wrong, "after an eviction: "+err.Error()), nil
	}
	for name, b := range found {
		if have, there := again[name]; !there || !bytes.Equal(have, b) {
			wrong = append(wrong, fmt.Sprintf("%s had %d bytes; after an eviction %s", name, len(b), told(have, there)))
		}
	}
	findings, err = check(ctx, d, l)
	return append(wrong, findings...), err
}

// owns waits until the mount owns its volume: it asks the store for that, which a mount does not wait for.
func owns(ctx context.Context, d *daemon.Daemon) error {
	for deadline := time.Now().Add(patience / 4); ; time.Sleep(5 * time.Millisecond) {
		status, err := d.Status(ctx)
		switch {
		case err != nil:
			return err
		case status.Owner:
			return nil
		case time.Now().After(deadline):
			return errors.New("the mount does not become the volume's owner")
		}
	}
}

// read reads all that a broker sees. What cannot be read is an error for all.
func read(root string) (map[string][]byte, error) {
	found := map[string][]byte{}
	var failed []error
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case name == ".":
		case e.IsDir():
			found[name+"/"] = nil
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				failed = append(failed, err)
			}
			found[name] = b
		}
		return nil
	})
	return found, errors.Join(append(failed, err)...)
}

// check is `tierfs check --deep`. A segment whose last changes were not promised to anybody may be no whole batches.
func check(ctx context.Context, d *daemon.Daemon, l *ledger) (wrong []string, err error) {
	r, err := d.Run(ctx, "check", "--deep", "--config", d.Config(), d.Mountpoint())
	if err != nil || r.Code == 0 {
		return nil, err
	}
	legal := 0
	for line := range strings.Lines(r.Stdout) {
		name, problem, ok := strings.Cut(strings.TrimSpace(line), ": ")
		unsure := strings.HasPrefix(problem, "does not verify") || strings.HasPrefix(problem, "does not fit its segment")
		base := strings.TrimSuffix(strings.TrimSuffix(name, ".index"), ".log")
		switch {
		case ok && unsure && (l.open(base+".log") || l.open(base+".index")):
			legal++
		case !strings.HasSuffix(line, fmt.Sprintf(": %d findings\n", legal)): // the last line is the sum
			wrong = append(wrong, "check: "+line)
		}
	}
	if len(wrong) == 0 && legal == 0 {
		wrong = append(wrong, fmt.Sprintf("check: status %d: %s%s", r.Code, r.Stdout, r.Stderr))
	}
	return wrong, nil
}

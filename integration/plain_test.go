package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// plain is a directory as Kafka leaves it when it is stopped, and a daemon over it; no broker runs. Every partition has the same
// segments. Those of a topic that is held back are uploaded, but the broker's checkpoints keep them from being evicted.
type plain struct {
	t      *testing.T
	ctx    context.Context
	source string
	store  rig.Store
	daemon *daemon.Daemon
	below  *os.File          // the source as it is below the mount
	logs   map[string][]byte // by path below the source
	starts []uint64          // of a partition's segments, the active one last
}

// segmentsOf is how many segments each partition of a plain source has.
const segmentsOf = 4

// newPlain makes partition 0 of each topic; a topic that begins with "held" is held back.
func newPlain(t *testing.T, store rig.Store, settings string, topics ...string) *plain {
	t.Helper()
	return newPlainIn(t, t.TempDir(), store, settings, topics...)
}

// newPlainIn is newPlain with the source in a directory.
func newPlainIn(t *testing.T, root string, store rig.Store, settings string, topics ...string) *plain {
	t.Helper()
	limit := 8 * time.Minute // far more than any needs on a machine that has nothing else to do
	if soak() {
		limit = 30 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	root, err := filepath.EvalSymlinks(root)
	p := &plain{t: t, ctx: ctx, source: filepath.Join(root, "data"), store: store, logs: map[string][]byte{}}
	p.must(err)
	p.must(os.Mkdir(p.source, 0o755))
	p.below, err = os.Open(p.source)
	p.must(err)
	t.Cleanup(func() { p.must(p.below.Close()) })
	p.write("meta.properties", []byte("version=1\nnode.id=1\n"))
	checkpoint := ""
	for _, topic := range topics {
		p.partition(topic + "-0")
		if !strings.HasPrefix(topic, "held") {
			checkpoint += topic + " 0 1000000\n"
		}
	}
	checkpoint = fmt.Sprintf("0\n%d\n%s", strings.Count(checkpoint, "\n"), checkpoint)
	for _, name := range []string{"recovery-point-offset-checkpoint", "replication-offset-checkpoint"} {
		p.write(name, []byte(checkpoint))
	}
	p.daemon, err = daemon.New(daemon.Options{Binary: checked, Dir: t.TempDir(), Source: p.source, Settings: store.Settings + settings, Env: store.Env})
	p.must(err)
	t.Cleanup(p.close)
	return p
}

func (p *plain) close() {
	if err := p.daemon.Close(); err != nil {
		p.t.Error(err)
	}
	log := p.daemon.Log().Text()
	for _, bad := range []string{"panic", "DATA RACE", "goroutine "} {
		if at := strings.Index(log, bad); at >= 0 {
			p.t.Errorf("tierfs said %q:\n%.4000s", bad, log[at:])
		}
	}
	if p.t.Failed() {
		p.t.Logf("tierfs:\n%s", p.daemon.Log().Tail(60))
	}
}

func (p *plain) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// partition makes a directory with segments of 40 records.
func (p *plain) partition(dir string) {
	p.t.Helper()
	p.must(os.Mkdir(p.path(dir), 0o755))
	p.starts = nil
	next := uint64(0)
	for range segmentsOf {
		log, index, end := segmenttest.Kafka(next, 8, 5, 2000)
		p.starts = append(p.starts, next)
		name := fmt.Sprintf("%s/%020d", dir, next)
		p.logs[name+".log"] = log
		p.write(name+".log", log)
		p.write(name+".index", index)
		next = end
	}
}

// path is where something is below the mount, whether that is there or not.
func (p *plain) path(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", p.below.Fd()), name)
}

// view is where the broker would see it.
func (p *plain) view(name string) string { return filepath.Join(p.source, name) }

// write makes a file below.
func (p *plain) write(name string, data []byte) {
	p.t.Helper()
	p.must(os.WriteFile(p.path(name), data, 0o644))
}

// read is a file below.
func (p *plain) read(name string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(p.path(name))
	p.must(err)
	return data
}

func (p *plain) mount() {
	p.t.Helper()
	p.must(p.daemon.Start(p.ctx))
}

func (p *plain) stop() {
	p.t.Helper()
	p.must(p.daemon.Stop())
}

// evict uploads and evicts all that may go, of the topics that the flags pick.
func (p *plain) evict(flags ...string) string {
	p.t.Helper()
	out, err := p.daemon.Do(p.ctx, append([]string{"evict", "--all", p.source}, flags...)...)
	p.must(err)
	return out
}

func (p *plain) metric(name string, labels ...string) float64 {
	p.t.Helper()
	value, err := p.daemon.Metric(p.ctx, name, labels...)
	p.must(err)
	return value
}

// whole reads a segment through the mount, past the page cache, and insists on its bytes.
func (p *plain) whole(name string) {
	p.t.Helper()
	got, err := p.cold(name)
	if err != nil || !bytes.Equal(got, p.logs[name]) {
		p.t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(p.logs[name]), err)
	}
}

// cold reads a file through the mount, past the page cache.
func (p *plain) cold(name string) ([]byte, error) {
	p.t.Helper()
	if err := rig.DropFile(p.view(name)); err != nil {
		return nil, err
	}
	return os.ReadFile(p.view(name))
}

// check runs `tierfs check` with these flags, on whatever is there, and returns what it printed. It insists on an exit status of 1
// when there are findings, and of 0 otherwise.
func (p *plain) check(flags ...string) []string {
	p.t.Helper()
	args := append([]string{"check", "--config", p.daemon.Config()}, flags...)
	r, err := p.daemon.Run(p.ctx, append(args, p.source)...)
	p.must(err)
	lines := strings.Split(strings.TrimRight(r.Stdout, "\n"), "\n")
	findings := lines[:len(lines)-1]
	if want := min(len(findings), 1); r.Code != want || !strings.HasSuffix(lines[len(lines)-1], fmt.Sprintf(" %d findings", len(findings))) {
		p.t.Errorf("tierfs check: exit status %d, %d findings, %q: %s", r.Code, len(findings), lines[len(lines)-1], r.Stderr)
	}
	return findings
}

// picture is all there is to a tree: types, modes, times, contents.
func picture(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir+"/.", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		say := fmt.Sprint(info.Mode(), " inode ", st.Ino, " size ", info.Size(), " time ", info.ModTime().UnixNano(), " owner ", st.Uid, " links ", st.Nlink)
		switch {
		case info.Mode().IsRegular():
			var data []byte
			if data, err = os.ReadFile(path); err == nil {
				say += fmt.Sprintf(" sum %x", sha256.Sum256(data))
			}
		case info.Mode()&fs.ModeSymlink != 0:
			var target string
			target, err = os.Readlink(path)
			say += " to " + target
		}
		all[strings.TrimPrefix(path, dir)] = say
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}

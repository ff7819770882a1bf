package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tierfs/tierfs/integration/daemon"
	"github.com/tierfs/tierfs/integration/rig"
	"github.com/tierfs/tierfs/segment/segmenttest"
)

// soon is a grace that a test can wait for.
const soon = "[retention]\ndelete_grace = \"1 s\"\n"

// TestCopiedSource mounts a copy of a source beside the original. It is read like the original, but what it names belongs to the
// original: it uploads and deletes nothing, and says so.
func TestCopiedSource(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), soon, "a", "b")
	p.mount()
	p.evict()
	p.stop()
	c := p.copied()
	p.mount()
	p.owns()
	c.mount()
	c.ownsNot("it is a copy")
	if ours, theirs := p.status(), c.status(); ours.Volume != theirs.Volume || ours.PID == theirs.PID || ours.Holder.PID != p.daemon.Process().PID() {
		t.Errorf("the original says %+v, the copy %+v", ours, theirs)
	}
	c.allWhole()
	if n := c.metric("tierfs_store_requests_total", "op", "get"); n == 0 {
		t.Error("the copy was read without the store")
	}

	uploads := len(p.live())
	p.roll("a-0")
	c.roll("a-0")
	p.uploaded(uploads + 1)
	c.putsNothing(1)
	c.deletesNothing(p)
	maps.DeleteFunc(c.logs, func(name string, _ []byte) bool { // the original's to delete
		_, ok := p.logs[name]
		return !ok
	})

	// The copy after another start, and while the original's mount is dead.
	p.must(p.daemon.Kill())
	c.stop()
	c.mount()
	c.ownsNot("it is a copy")
	if r, err := p.daemon.Run(p.ctx, "status", p.source); err != nil || r.Code != 1 || !strings.Contains(r.Stderr, "no daemon answers") {
		t.Errorf("who asks for the dead original is answered %+v, %v", r, err)
	}
	c.allWhole()
	p.mount()
	p.owns()
	uploads = len(p.live())
	p.roll("b-0")
	p.uploaded(uploads + 1)
	p.allWhole()
	c.putsNothing(1)
	if findings := p.check(); len(findings) != 0 {
		t.Errorf("the original: %v", findings)
	}
}

// TestRolledBackSource puts an older state of a source back in its place, on the same inodes, as a restored snapshot of the disk
// does. It is no owner: what it does not know of was uploaded after it.
func TestRolledBackSource(t *testing.T) {
	t.Parallel()
	p := newPlain(t, fsStore(t), soon, "a", "b")
	p.mount()
	p.evict()
	p.stop()
	older := filepath.Join(t.TempDir(), "older")
	p.must(copyTree(p.source, older))
	p.mount()
	p.owns()
	uploads := len(p.live())
	p.roll("a-0")
	p.uploaded(uploads + 1)
	p.stop()

	before := p.objects()
	same := p.inode(".tierfs/volume")
	p.rollBack(older)
	if now := p.inode(".tierfs/volume"); now != same {
		t.Fatalf("the identity was inode %d and is %d: this is a copy", same, now)
	}
	other := newPlain(t, p.store, soon, "a", "b") // another volume in the bucket: it deletes when its grace is over
	other.mount()
	other.evict()
	for range 2 {
		p.mount()
		p.ownsNot("it is an older state")
		p.allWhole()
		p.roll("b-0")
		p.deletesNothing(other)
		p.stop()
	}
	p.unchangedObjects(before)
	if findings := other.check(); len(findings) != 0 {
		t.Errorf("the other volume: %v", findings)
	}
}

func copyTree(from, to string) error {
	if out, err := exec.Command("cp", "-a", "-T", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp -a %s: %w: %s", from, err, out)
	}
	return nil
}

// copied is a copy of a source that nobody serves, with a daemon of its own over the same store.
func (p *plain) copied() *plain {
	p.t.Helper()
	root, err := filepath.EvalSymlinks(p.t.TempDir())
	p.must(err)
	c := *p
	c.source, c.logs = filepath.Join(root, "data"), maps.Clone(p.logs)
	p.must(copyTree(p.source, c.source))
	c.below, err = os.Open(c.source)
	p.must(err)
	p.t.Cleanup(func() { p.must(c.below.Close()) })
	c.daemon, err = daemon.New(daemon.Options{Binary: checked, Dir: filepath.Join(root, "tierfs"), Source: c.source, Settings: p.store.Settings + soon})
	p.must(err)
	p.t.Cleanup(c.close)
	return &c
}

// rollBack replaces everything below by an older state; files that are there in both keep their inodes.
func (p *plain) rollBack(older string) {
	p.t.Helper()
	entries, err := os.ReadDir(p.source)
	p.must(err)
	for _, e := range entries {
		if e.Name() != ".tierfs" {
			p.must(os.RemoveAll(filepath.Join(p.source, e.Name())))
		}
	}
	entries, err = os.ReadDir(filepath.Join(p.source, ".tierfs"))
	p.must(err)
	for _, e := range entries {
		if e.Name() != "volume" {
			p.must(os.RemoveAll(filepath.Join(p.source, ".tierfs", e.Name())))
		}
	}
	p.must(copyTree(older, p.source))
	for name := range p.logs {
		if _, err := os.Stat(filepath.Join(older, strings.TrimSuffix(name, ".log")+".remote")); err != nil {
			if _, err := os.Stat(filepath.Join(older, name)); err != nil {
				delete(p.logs, name)
			}
		}
	}
}

func (p *plain) inode(name string) uint64 {
	p.t.Helper()
	var st syscall.Stat_t
	p.must(syscall.Stat(p.path(name), &st))
	return st.Ino
}

func (p *plain) status() daemon.Status {
	p.t.Helper()
	s, err := p.daemon.Status(p.ctx)
	p.must(err)
	return s
}

// eventually looks again until the condition holds.
func (p *plain) eventually(what string, holds func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 30*time.Second)
	defer cancel()
	for tick := time.Tick(50 * time.Millisecond); !holds(); {
		select {
		case <-tick:
		case <-ctx.Done():
			ls, err := p.daemon.Do(p.ctx, "ls", p.view("a-0"))
			p.t.Fatalf("%s: %v\n%s%v", what, context.Cause(ctx), ls, err)
		}
	}
}

func (p *plain) owns() {
	p.t.Helper()
	p.eventually("the volume is claimed", func() bool { return p.metric("tierfs_owner") == 1 })
	if !p.status().Owner {
		p.t.Error("the status says that this mount does not own the volume")
	}
}

// ownsNot insists that the last start says so, in the log, the status and the metrics.
func (p *plain) ownsNot(why string) {
	p.t.Helper()
	log := p.daemon.Log()
	started := max(0, strings.LastIndex(log.Text(), "msg=unmounted")) // it may be said before "mounted" is
	p.must(log.Await(p.ctx, p.daemon.Process(), started, "not the volume's owner"))
	if text := log.Text()[started:]; !strings.Contains(text, why) {
		p.t.Errorf("the log has no %q:\n%s", why, text)
	}
	out, err := p.daemon.Do(p.ctx, "status", p.source)
	if err != nil || !strings.Contains(out, why) || p.status().Owner {
		p.t.Errorf("the status says %v:\n%s", err, out)
	}
	if p.metric("tierfs_owner") != 0 {
		p.t.Error("the metrics say that this mount owns the volume")
	}
}

func (p *plain) allWhole() {
	p.t.Helper()
	for name := range p.logs {
		p.whole(name)
	}
}

// roll begins a new segment, by which the last one is sealed.
func (p *plain) roll(dir string) {
	p.t.Helper()
	next := uint64(0)
	for name := range p.logs {
		if stem, ok := strings.CutPrefix(name, dir+"/"); ok {
			start, err := strconv.ParseUint(strings.TrimSuffix(stem, ".log"), 10, 64)
			p.must(err)
			next = max(next, start+8*5)
		}
	}
	log, index, _ := segmenttest.Kafka(next, 8, 5, 2000)
	name := fmt.Sprintf("%s/%020d", dir, next)
	p.must(os.WriteFile(p.view(name+".index"), index, 0o644))
	p.must(os.WriteFile(p.view(name+".log"), log, 0o644))
	p.logs[name+".log"] = log
}

// live are the uploads that markers name.
func (p *plain) live() map[string]string {
	p.t.Helper()
	n, err := rig.ReadNamed(p.path(""))
	p.must(err)
	return n.Live
}

// uploaded waits until so many segments are uploaded, and insists that the store has exactly those of the volume.
func (p *plain) uploaded(n int) {
	p.t.Helper()
	p.eventually("the sealed segment is uploaded", func() bool { return len(p.live()) == n })
	have, err := p.store.Uploads(p.status().Volume)
	p.must(err)
	live := p.live()
	for key := range have {
		if _, ok := live[key]; !ok {
			p.t.Errorf("%s is in the store, and the owner does not name it", key)
		}
	}
	if len(have) != len(live) {
		p.t.Errorf("the store has %d uploads of %d", len(have), len(live))
	}
}

// putsNothing insists that so many sealed segments are local, and stay so when they are to be evicted.
func (p *plain) putsNothing(segments int64) {
	p.t.Helper()
	r, err := p.daemon.Run(p.ctx, "evict", "--all", p.source)
	if err != nil || r.Code != 1 || !strings.Contains(r.Stderr, "does not own") {
		p.t.Errorf("evict: %+v, %v", r, err)
	}
	if s := p.status(); s.Segments["sealed"] != segments || !s.UploadStalled || s.UploadLag == 0 {
		p.t.Errorf("%d segments are sealed: %+v", segments, s)
	}
	if n := p.metric("tierfs_store_requests_total", "op", "put") + p.metric("tierfs_store_requests_total", "op", "delete"); n != 0 {
		p.t.Errorf("%v PUTs and DELETEs", n)
	}
}

// deletesNothing removes a segment that is in the store and lets the grace pass, which is over when an owner has deleted what was
// removed after it.
func (p *plain) deletesNothing(owner *plain) {
	p.t.Helper()
	waiting := p.metric("tierfs_tombstones")
	before := p.removeFirst("b-0")
	if n := p.metric("tierfs_tombstones"); n != waiting+1 {
		p.t.Errorf("%v tombstones, then a segment is removed, and there are %v", waiting, n)
	}
	gone := owner.removeFirst("a-0")
	owner.eventually("the owner deletes its objects", func() bool { return !owner.has(gone) })
	if !p.has(before) {
		p.t.Errorf("%s was deleted by a mount that does not own the volume", before)
	}
	if n := p.metric("tierfs_store_requests_total", "op", "delete"); n != 0 {
		p.t.Errorf("%v DELETEs", n)
	}
	if n := p.metric("tierfs_tombstones"); n != waiting+1 {
		p.t.Errorf("%v tombstones are left of %v", n, waiting+1)
	}
}

// removeFirst removes the first segment of a partition, which is uploaded, and returns its upload.
func (p *plain) removeFirst(dir string) string {
	p.t.Helper()
	first := ""
	for name := range p.logs {
		if strings.HasPrefix(name, dir+"/") && (first == "" || name < first) {
			first = name
		}
	}
	upload := ""
	for key, marker := range p.live() {
		if strings.Contains(marker, strings.TrimSuffix(first, ".log")+".") {
			upload = key
		}
	}
	if upload == "" {
		p.t.Fatalf("%s is not uploaded", first)
	}
	p.must(os.Remove(p.view(first)))
	p.must(os.Remove(p.view(strings.TrimSuffix(first, ".log") + ".index")))
	delete(p.logs, first)
	return upload
}

func (p *plain) has(upload string) bool {
	p.t.Helper()
	all, err := p.store.Uploads(upload)
	p.must(err)
	return all[upload]
}

// objects are all of the volume's, but for the owner object.
func (p *plain) objects() map[string]bool {
	p.t.Helper()
	volume := strings.Split(string(p.read(".tierfs/volume")), `"`)[3]
	all, err := p.store.Uploads(volume)
	p.must(err)
	return all
}

func (p *plain) unchangedObjects(before map[string]bool) {
	p.t.Helper()
	unchanged(p.t, before, p.objects())
}

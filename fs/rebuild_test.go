package fs

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/tier"
)

// Handles and numbers live on, also of what has no name any more.
func TestRebuild(t *testing.T) {
	l := newLives(t, tier.Options{})
	for _, name := range []string{"stays", "unlinked", "replaced", "moved", "new"} {
		l.write(name, name)
	}
	check(t, os.Mkdir(l.at("dir"), 0o700))
	check(t, os.Symlink("x", l.at("symlink")))
	fhs, nodes := map[string]uint64{}, map[string]uint64{}
	for _, name := range []string{"stays", "unlinked", "replaced", "moved"} {
		nodes[name], fhs[name] = l.open(name, unix.O_RDWR)
	}
	dir, link := l.lookup("dir").NodeId, l.lookup("symlink").NodeId
	var opened fuse.OpenOut
	l.ok("opendir", l.f.OpenDir(nil, &fuse.OpenIn{InHeader: l.request(dir)}, &opened))
	root := l.request(fuse.FUSE_ROOT_ID)
	l.ok("unlink", l.f.Unlink(nil, &root, "unlinked"))
	l.ok("rename", l.f.Rename(nil, &fuse.RenameIn{InHeader: l.request(1), Newdir: 1}, "new", "replaced"))
	l.ok("rename", l.f.Rename(nil, &fuse.RenameIn{InHeader: l.request(1), Newdir: 1}, "moved", "elsewhere"))
	l.ok("rmdir", l.f.Rmdir(nil, &root, "dir"))
	for range 3 {
		l.takeOver()
		for name, fh := range fhs {
			if got, code := l.read(fh); got != name || !code.Ok() {
				t.Errorf("%s: %q, %v", name, got, code)
			}
			_, code := l.f.Write(nil, &fuse.WriteIn{InHeader: l.request(nodes[name]), Fh: fh}, []byte(name))
			l.ok("write", code)
		}
		target, code := l.f.Readlink(nil, &fuse.InHeader{NodeId: link})
		if string(target) != "x" || !code.Ok() {
			t.Errorf("readlink: %q, %v", target, code)
		}
		var out fuse.AttrOut
		l.ok("getattr", l.f.GetAttr(nil, &fuse.GetAttrIn{InHeader: l.request(dir)}, &out))
		if out.Nlink != 0 && out.Nlink != 2 || out.Mode&unix.S_IFMT != unix.S_IFDIR {
			t.Errorf("the removed directory: %+v", out.Attr)
		}
		list := fuse.NewDirEntryList(make([]byte, 4096), 0)
		if code := l.f.ReadDir(nil, &fuse.ReadIn{Fh: opened.Fh}, list); code != fuse.ENOENT { // as on any file system
			t.Errorf("readdir: %v", code)
		}
	}
	if len(l.kept.names()) != 3 {
		t.Errorf("kept: %v", l.kept.names())
	}
	if e := l.lookup("elsewhere"); e.NodeId != nodes["moved"] {
		t.Errorf("node %d, was %d", e.NodeId, nodes["moved"])
	}
	l.write("another", "")
	if id := l.lookup("another").NodeId; slices.Contains([]uint64{dir, link, nodes["unlinked"], nodes["stays"]}, id) {
		t.Errorf("number %d is given twice", id)
	}
	l.f.Forget(nodes["unlinked"], 1)
	l.release(fhs["unlinked"])
	if l.f.inodes.get(nodes["unlinked"]) != nil || slices.Contains(l.kept.names(), keptName(nodes["unlinked"])) {
		t.Error("not forgotten with its last handle")
	}
}

// A handle is opened after the name is gone: the holder learns of it then.
func TestKeptWhenOpened(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	node := l.lookup("a").NodeId
	root := l.request(fuse.FUSE_ROOT_ID)
	l.ok("unlink", l.f.Unlink(nil, &root, "a"))
	if len(l.kept.fds) > 0 {
		t.Error("kept without a handle")
	}
	var out fuse.OpenOut
	l.ok("open", l.f.Open(nil, &fuse.OpenIn{InHeader: l.request(node)}, &out))
	l.takeOver()
	if got, code := l.read(out.Fh); got != "a" || !code.Ok() {
		t.Errorf("%q, %v", got, code)
	}
	if l.kept.puts != 1 {
		t.Errorf("put %d times", l.kept.puts)
	}
}

// What is kept for a name that is not lost after all is dropped.
func TestKeptForNothing(t *testing.T) {
	l := newLives(t, tier.Options{})
	check(t, os.MkdirAll(l.at("dir/sub"), 0o700))
	var out fuse.OpenOut
	l.ok("opendir", l.f.OpenDir(nil, &fuse.OpenIn{InHeader: l.request(l.lookup("dir").NodeId)}, &out))
	root := l.request(fuse.FUSE_ROOT_ID)
	wantErrno(t, "rmdir", unix.Errno(l.f.Rmdir(nil, &root, "dir")), unix.ENOTEMPTY)
	if l.kept.puts != 1 || len(l.kept.fds) > 0 {
		t.Errorf("put %d times, kept %v", l.kept.puts, l.kept.names())
	}
	check(t, l.kept.Put("unlinked.4711", l.root)) // of a daemon that did not get any further
	l.takeOver()
	if len(l.kept.fds) > 0 {
		t.Errorf("kept %v", l.kept.names())
	}
}

// A handle that cannot be opened again gives EIO, and its number is not lost.
func TestLostHandle(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	node, fh := l.open("a", unix.O_RDWR)
	check(t, os.Remove(l.at("a"))) // behind the mount's back, with nothing kept
	l.takeOver()
	if _, code := l.read(fh); code != fuse.EIO {
		t.Errorf("read: %v", code)
	}
	if code := l.f.Fsync(nil, &fuse.FsyncIn{InHeader: l.request(node), Fh: fh}); code != fuse.EIO {
		t.Errorf("fsync: %v", code)
	}
	if code := l.f.Flush(nil, &fuse.FlushIn{Fh: fh}); code != fuse.EIO {
		t.Errorf("flush: %v", code)
	}
	var out fuse.AttrOut
	if code := l.f.GetAttr(nil, &fuse.GetAttrIn{InHeader: l.request(node)}, &out); code != fuse.Status(unix.ESTALE) {
		t.Errorf("getattr: %v", code)
	}
	if n := strings.Count(l.logged.String(), "cannot be opened again"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	l.takeOver()
	l.release(fh)
	l.f.Forget(node, 1)
	if l.f.handles.size() != 0 || l.f.inodes.size() != 1 {
		t.Errorf("%d handles, %d inodes", l.f.handles.size(), l.f.inodes.size())
	}
}

// questions asks all that is open, at a time, and returns about what was asked.
func (l *lives) questions(now time.Time, known ...uint64) (asked []uint64) {
	for _, n := range l.f.inodes.toAsk(now) {
		l.f.inodes.answerOf(n, now, func(node uint64) fuse.Status {
			asked = append(asked, node)
			if slices.Contains(known, node) {
				return fuse.OK
			}
			return fuse.ENOENT
		})
	}
	slices.Sort(asked)
	return asked
}

// A node whose FORGET was lost goes, one that the kernel knows stays, and one that is
// looked up meanwhile stays.
func TestInexactLookups(t *testing.T) {
	l := newLives(t, tier.Options{})
	ids := map[string]uint64{}
	for _, name := range []string{"known", "forgotten", "again", "open"} {
		l.write(name, name)
		ids[name] = l.lookup(name).NodeId
	}
	_, fh := l.open("open", unix.O_RDWR)
	root := l.request(fuse.FUSE_ROOT_ID)
	l.ok("unlink", l.f.Unlink(nil, &root, "open"))
	now := time.Now()
	if asked := l.questions(now.Add(settle)); len(asked) > 0 {
		t.Errorf("asked %v before any takeover", asked)
	}
	l.takeOver()
	l.lookup("again")
	asked := l.questions(now, ids["known"])
	if want := []uint64{ids["known"], ids["forgotten"], ids["open"]}; !slices.Equal(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
	for name, want := range map[string]bool{"known": true, "forgotten": false, "again": true, "open": true} {
		if got := l.f.inodes.get(ids[name]) != nil; got != want {
			t.Errorf("%s: known %v, want %v", name, got, want)
		}
	}
	now = time.Now().Add(2 * settle)
	l.release(fh)
	if asked := l.questions(now, ids["again"]); !slices.Equal(asked, []uint64{ids["again"], ids["open"]}) {
		t.Errorf("asked %v", asked)
	}
	if len(l.kept.fds) > 0 {
		t.Errorf("kept %v", l.kept.names())
	}
	l.f.Forget(ids["again"], 1) // of two: one was not answered
	if asked := l.questions(now); !slices.Equal(asked, []uint64{ids["again"]}) {
		t.Errorf("asked %v", asked)
	}
	if n := l.f.inodes.size(); n != 2 {
		t.Errorf("%d inodes", n)
	}
	l.takeOver()
	if n := l.f.inodes.size(); n != 2 {
		t.Errorf("%d inodes", n)
	}
}

// A lookup between the question and its answer holds the node.
func TestInexactRace(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	id := l.lookup("a").NodeId
	l.takeOver()
	n := l.f.inodes.get(id)
	l.f.inodes.answerOf(n, time.Now(), func(uint64) fuse.Status {
		l.lookup("a")
		return fuse.ENOENT
	})
	if l.f.inodes.get(id) != n {
		t.Error("dropped")
	}
	l.f.inodes.answerOf(n, time.Now().Add(2*settle), func(uint64) fuse.Status { return fuse.ENODEV })
	if l.f.inodes.get(id) != n || len(l.f.inodes.questions) != 1 {
		t.Error("dropped, or not asked again, after an answer that is none")
	}
}

func TestAskKernelEnds(t *testing.T) {
	l := newLives(t, tier.Options{})
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		l.f.askKernel(quit, func(uint64) fuse.Status { return fuse.OK })
	}()
	close(quit)
	<-ended
}

// A successor that was killed between forgetting an inode and letting go of it.
func TestRebuildAfterHalfAnEnd(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	node, fh := l.open("a", unix.O_RDWR)
	root := l.request(fuse.FUSE_ROOT_ID)
	l.ok("unlink", l.f.Unlink(nil, &root, "a"))
	n := l.f.inodes.get(node)
	l.memory.DropHandle(l.f.handles.get(fh).slot)
	l.memory.SetLookups(n.slot, 0)
	l.takeOver()
	if l.f.inodes.size() != 1 || len(l.kept.fds) > 0 {
		t.Errorf("%d inodes, kept %v", l.f.inodes.size(), l.kept.names())
	}
}

// The kernel may forget an inode while the release of its last handle is under way.
func TestForgottenBeforeReleased(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	node, fh := l.open("a", 0)
	l.f.Forget(node, 1)
	l.takeOver()
	if got, code := l.read(fh); got != "a" || !code.Ok() {
		t.Errorf("%q, %v", got, code)
	}
	l.release(fh)
	if l.f.inodes.size() != 1 {
		t.Errorf("%d inodes", l.f.inodes.size())
	}
}

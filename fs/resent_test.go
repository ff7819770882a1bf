package fs

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/holder"
	"github.com/tierfs/tierfs/metrics"
	"github.com/tierfs/tierfs/tier"
)

// lives is a file system that no kernel has, with one daemon after another: the
// handlers are called directly.
type lives struct {
	t      *testing.T
	path   string
	root   int
	memory *holder.Table
	kept   *keptFDs
	volume *tier.Volume
	f      *fileSystem
	step   func(string) // of the volume
	unique uint64
	logged bytes.Buffer
	opts   tier.Options
}

func newLives(t *testing.T, opts tier.Options) *lives {
	t.Helper()
	l := &lives{t: t, path: t.TempDir(), kept: &keptFDs{fds: map[string]int{}}, unique: 100, opts: opts}
	var err error
	l.root, err = unix.Open(l.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	l.memory, err = holder.NewTable()
	check(t, err)
	l.start()
	t.Cleanup(func() {
		l.f.OnUnmount()
		if len(l.kept.fds) > 0 {
			t.Errorf("kept at the end: %v", l.kept.names())
		}
		check(t, l.volume.Close())
		check(t, l.memory.Close())
		check(t, unix.Close(l.root))
	})
	return l
}

func (l *lives) start() {
	l.t.Helper()
	opts := l.opts
	opts.Root = l.root
	opts.Step = func(s string) {
		if l.step != nil {
			l.step(s)
		}
	}
	var err error
	l.volume, err = tier.Open(context.Background(), opts)
	check(l.t, err)
	l.f, err = newFileSystem(context.Background(), Options{
		Root: l.root, Volume: l.volume, Table: l.memory, Keeper: l.kept,
		Log: slog.New(slog.NewTextHandler(&l.logged, nil)), Metrics: metrics.New(prometheus.NewRegistry()).Fuse,
	})
	check(l.t, err)
}

// takeOver ends this life, with whatever it has done and not answered, and begins the
// next one over what a process could have inherited.
func (l *lives) takeOver() {
	l.t.Helper()
	l.step = nil
	l.f.abandon()
	check(l.t, l.volume.Close())
	again, err := holder.OpenTable(l.memory.FD())
	check(l.t, err)
	check(l.t, l.memory.Close())
	l.memory = again
	l.opts.Takeover = true
	l.start()
	l.f.rebuild()
}

// request is the header of a new request about a node.
func (l *lives) request(node uint64) fuse.InHeader {
	l.unique += 2
	return fuse.InHeader{Unique: l.unique, NodeId: node, Caller: fuse.Caller{Owner: fuse.Owner{Uid: 7, Gid: 8}}}
}

// ok fails the test unless a request was answered with success.
func (l *lives) ok(what string, code fuse.Status) {
	l.t.Helper()
	if !code.Ok() {
		l.t.Fatalf("%s: %v", what, code)
	}
}

func (l *lives) at(name string) string { return filepath.Join(l.path, name) }

func (l *lives) write(name, data string) {
	l.t.Helper()
	check(l.t, os.WriteFile(l.at(name), []byte(data), 0o644))
}

func (l *lives) lookup(name string) fuse.EntryOut {
	l.t.Helper()
	var out fuse.EntryOut
	in := l.request(fuse.FUSE_ROOT_ID)
	l.ok("lookup", l.f.Lookup(nil, &in, name, &out))
	return out
}

func (l *lives) open(name string, flags uint32) (node, fh uint64) {
	l.t.Helper()
	e := l.lookup(name)
	in := fuse.OpenIn{InHeader: l.request(e.NodeId), Flags: flags}
	var out fuse.OpenOut
	l.ok("open", l.f.Open(nil, &in, &out))
	return e.NodeId, out.Fh
}

func (l *lives) read(fh uint64) (string, fuse.Status) {
	buf := make([]byte, 100)
	r, code := l.f.Read(nil, &fuse.ReadIn{Fh: fh, Size: 100}, buf)
	if !code.Ok() {
		return "", code
	}
	return string(buf[:r.Size()]), code
}

func (l *lives) release(fh uint64) { l.f.Release(nil, &fuse.ReleaseIn{Fh: fh}) }

// below is what stands in the source.
func (l *lives) below() []string {
	l.t.Helper()
	var names []string
	for _, name := range readDir(l.t, l.path) {
		if name != ".tierfs" {
			names = append(names, name)
		}
	}
	return names
}

func (l *lives) want(names ...string) {
	l.t.Helper()
	if got := l.below(); !slices.Equal(got, names) {
		l.t.Errorf("below: %q, want %q", got, names)
	}
}

// keptFDs is a holder in this process.
type keptFDs struct {
	mu   sync.Mutex
	fds  map[string]int
	puts int
	err  error
}

func (k *keptFDs) Put(name string, fd int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.puts++
	if k.err != nil {
		return k.err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		k.fds[name] = dup
	}
	return err
}

func (k *keptFDs) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fd, ok := k.fds[name]; ok {
		delete(k.fds, name)
		return unix.Close(fd)
	}
	return nil
}

func (k *keptFDs) Take(name string) (int, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd, ok := k.fds[name]
	if !ok {
		return -1, false
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return dup, err == nil
}

func (k *keptFDs) Names() []string { return k.names() }

func (k *keptFDs) names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name := range k.fds {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// A resentOp is a request that changes names. half is what a kill in the middle may
// leave, done below; done is what has to be there in the end.
type resentOp struct {
	prepare func(l *lives)
	do      func(l *lives, in fuse.InHeader) fuse.Status
	halves  []func(l *lives)
	done    func(l *lives)
}

func isNew(mode, uid, gid uint32, name string) func(l *lives) {
	return func(l *lives) {
		l.t.Helper()
		st := stat(l.t, l.at(name))
		if st.Mode != mode || st.Uid != uid || st.Gid != gid {
			l.t.Errorf("%s: mode %o of %d:%d", name, st.Mode, st.Uid, st.Gid)
		}
	}
}

func resentOps() map[string]resentOp {
	create := func(flags uint32) func(l *lives, in fuse.InHeader) fuse.Status {
		return func(l *lives, in fuse.InHeader) fuse.Status {
			var out fuse.CreateOut
			code := l.f.Create(nil, &fuse.CreateIn{InHeader: in, Flags: flags | unix.O_CREAT | unix.O_RDWR, Mode: unix.S_IFREG | 0o640}, "new", &out)
			if code.Ok() && (out.Uid != 7 || out.Mode != unix.S_IFREG|0o640 || l.f.inodes.get(out.NodeId) == nil || l.f.handles.get(out.Fh) == nil) {
				l.t.Errorf("answered %+v", out)
			}
			return code
		}
	}
	file := func(l *lives) { l.write("new", "") }
	entry := func(do func(l *lives, in fuse.InHeader, out *fuse.EntryOut) fuse.Status) func(l *lives, in fuse.InHeader) fuse.Status {
		return func(l *lives, in fuse.InHeader) fuse.Status {
			var out fuse.EntryOut
			code := do(l, in, &out)
			if code.Ok() && l.f.inodes.get(out.NodeId) == nil {
				l.t.Errorf("answered %+v", out)
			}
			return code
		}
	}
	rename := func(flags uint32) func(l *lives, in fuse.InHeader) fuse.Status {
		return func(l *lives, in fuse.InHeader) fuse.Status {
			return l.f.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: fuse.FUSE_ROOT_ID, Flags: flags}, "a", "b")
		}
	}
	ab := func(l *lives) { l.write("a", "a"); l.write("b", "b") }
	a := func(l *lives) { l.write("a", "a") }
	content := func(name, want string) func(l *lives) {
		return func(l *lives) {
			if got, err := os.ReadFile(l.at(name)); string(got) != want || err != nil {
				l.t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
	return map[string]resentOp{
		"create":      {nil, create(0), []func(*lives){file}, isNew(unix.S_IFREG|0o640, 7, 8, "new")},
		"create excl": {nil, create(unix.O_EXCL), []func(*lives){file}, isNew(unix.S_IFREG|0o640, 7, 8, "new")},
		"mkdir": {nil, entry(func(l *lives, in fuse.InHeader, out *fuse.EntryOut) fuse.Status {
			return l.f.Mkdir(nil, &fuse.MkdirIn{InHeader: in, Mode: 0o750}, "new", out)
		}), []func(*lives){func(l *lives) { check(l.t, os.Mkdir(l.at("new"), 0o700)) }}, isNew(unix.S_IFDIR|0o750, 7, 8, "new")},
		"symlink": {nil, entry(func(l *lives, in fuse.InHeader, out *fuse.EntryOut) fuse.Status {
			return l.f.Symlink(nil, &in, "target", "new", out)
		}), []func(*lives){func(l *lives) { check(l.t, os.Symlink("target", l.at("new"))) }}, isNew(unix.S_IFLNK|0o777, 7, 8, "new")},
		"mknod": {nil, entry(func(l *lives, in fuse.InHeader, out *fuse.EntryOut) fuse.Status {
			return l.f.Mknod(nil, &fuse.MknodIn{InHeader: in, Mode: unix.S_IFREG | 0o604}, "new", out)
		}), []func(*lives){file}, isNew(unix.S_IFREG|0o604, 7, 8, "new")},
		"mkfifo": {nil, entry(func(l *lives, in fuse.InHeader, out *fuse.EntryOut) fuse.Status {
			return l.f.Mknod(nil, &fuse.MknodIn{InHeader: in, Mode: unix.S_IFIFO | 0o604}, "new", out)
		}), []func(*lives){func(l *lives) { check(l.t, unix.Mkfifo(l.at("new"), 0o600)) }}, isNew(unix.S_IFIFO|0o604, 7, 8, "new")},
		"link": {a, entry(func(l *lives, in fuse.InHeader, out *fuse.EntryOut) fuse.Status {
			return l.f.Link(nil, &fuse.LinkIn{InHeader: in, Oldnodeid: l.lookup("a").NodeId}, "new", out)
		}), []func(*lives){func(l *lives) { check(l.t, os.Link(l.at("a"), l.at("new"))) }}, content("new", "a")},
		"unlink": {a, func(l *lives, in fuse.InHeader) fuse.Status { return l.f.Unlink(nil, &in, "a") },
			[]func(*lives){func(l *lives) { check(l.t, os.Remove(l.at("a"))) }}, func(l *lives) { l.want() }},
		"rmdir": {func(l *lives) { check(l.t, os.Mkdir(l.at("a"), 0o700)) },
			func(l *lives, in fuse.InHeader) fuse.Status { return l.f.Rmdir(nil, &in, "a") },
			[]func(*lives){func(l *lives) { check(l.t, os.Remove(l.at("a"))) }}, func(l *lives) { l.want() }},
		"rename":    {a, rename(0), nil, content("b", "a")},
		"replace":   {ab, rename(0), nil, content("b", "a")},
		"noreplace": {a, rename(unix.RENAME_NOREPLACE), nil, content("b", "a")},
		"exchange":  {ab, rename(unix.RENAME_EXCHANGE), nil, content("a", "b")},
		"rename dir": {func(l *lives) { check(l.t, os.MkdirAll(l.at("a/x"), 0o700)); check(l.t, os.Mkdir(l.at("b"), 0o700)) },
			rename(0), nil, func(l *lives) { check(l.t, unix.Access(l.at("b/x"), 0)) }},
	}
}

// A request that is resent is answered as the first time, whatever has been done of
// it; one that is not resent is not.
func TestResent(t *testing.T) {
	for name, op := range resentOps() {
		begin := func(t *testing.T) (*lives, fuse.InHeader) {
			l := newLives(t, tier.Options{})
			if op.prepare != nil {
				op.prepare(l)
			}
			return l, l.request(fuse.FUSE_ROOT_ID)
		}
		again := func(l *lives, in fuse.InHeader) {
			l.t.Helper()
			l.takeOver()
			in.Unique |= resentBit
			nodes, handles := l.f.inodes.size(), l.f.handles.size()
			l.ok("resent", op.do(l, in))
			op.done(l)
			if handles > 0 && l.f.handles.size() != handles || nodes > 2 && l.f.inodes.size() != nodes {
				l.t.Errorf("%d handles, %d before; %d inodes, %d before", l.f.handles.size(), handles, l.f.inodes.size(), nodes)
			}
		}
		t.Run(name+"/not at all", func(t *testing.T) {
			l, in := begin(t)
			again(l, in)
		})
		t.Run(name+"/in full", func(t *testing.T) {
			l, in := begin(t)
			l.ok("first", op.do(l, in))
			again(l, in)
			again(l, in) // and its successor died as well
			if name == "exchange" || name == "create" {
				return
			}
			if code := op.do(l, l.request(fuse.FUSE_ROOT_ID)); code.Ok() && name != "replace" {
				t.Error("a new request that finds it done is answered as a resent one")
			}
		})
		for _, half := range op.halves {
			t.Run(name+"/in part", func(t *testing.T) {
				l, in := begin(t)
				half(l)
				again(l, in)
			})
		}
	}
}

// Names that stand there for another reason do not make a resent request succeed.
func TestResentNotDone(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	l.write("full", "something")
	check(t, os.Mkdir(l.at("dir"), 0o700))
	l.takeOver()
	in := l.request(fuse.FUSE_ROOT_ID)
	in.Unique |= resentBit
	var entry fuse.EntryOut
	var created fuse.CreateOut
	for what, code := range map[string]fuse.Status{
		"mkdir over a file":           l.f.Mkdir(nil, &fuse.MkdirIn{InHeader: in}, "a", &entry),
		"symlink over a file":         l.f.Symlink(nil, &in, "x", "a", &entry),
		"mknod over a directory":      l.f.Mknod(nil, &fuse.MknodIn{InHeader: in, Mode: unix.S_IFREG}, "dir", &entry),
		"mkfifo over a file":          l.f.Mknod(nil, &fuse.MknodIn{InHeader: in, Mode: unix.S_IFIFO}, "a", &entry),
		"link over another":           l.f.Link(nil, &fuse.LinkIn{InHeader: in, Oldnodeid: l.lookup("a").NodeId}, "full", &entry),
		"create excl. of a directory": l.f.Create(nil, &fuse.CreateIn{InHeader: in, Flags: unix.O_EXCL}, "dir", &created),
	} {
		if errno := unix.Errno(code); errno != unix.EEXIST {
			t.Errorf("%s: %v", what, code)
		}
	}
	if code := l.f.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: fuse.FUSE_ROOT_ID}, "nothing", "neither"); code != fuse.ENOENT {
		t.Errorf("rename of nothing: %v", code)
	}
	before := stat(t, l.at("full"))
	l.ok("create", l.f.Create(nil, &fuse.CreateIn{InHeader: in, Flags: unix.O_RDWR, Mode: 0o777}, "full", &created))
	if st := stat(t, l.at("full")); st.Mode != before.Mode || st.Uid != before.Uid {
		t.Errorf("a file that was there is given to another: mode %o, owner %d", st.Mode, st.Uid)
	}
}

func TestResentXAttr(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "")
	node := l.lookup("a").NodeId
	set := fuse.SetXAttrIn{InHeader: l.request(node), Flags: unix.XATTR_CREATE}
	l.ok("setxattr", l.f.SetXAttr(nil, &set, "user.x", []byte("value")))
	l.takeOver()
	set.Unique |= resentBit
	l.ok("resent setxattr", l.f.SetXAttr(nil, &set, "user.x", []byte("value")))
	wantErrno(t, "of another value", unix.Errno(l.f.SetXAttr(nil, &set, "user.x", []byte("other"))), unix.EEXIST)
	set.Unique = 2
	wantErrno(t, "a new one", unix.Errno(l.f.SetXAttr(nil, &set, "user.x", []byte("value"))), unix.EEXIST)

	remove := l.request(node)
	l.ok("removexattr", l.f.RemoveXAttr(nil, &remove, "user.x"))
	l.takeOver()
	wantErrno(t, "a new one", unix.Errno(l.f.RemoveXAttr(nil, &remove, "user.x")), unix.ENODATA)
	remove.Unique |= resentBit
	l.ok("resent removexattr", l.f.RemoveXAttr(nil, &remove, "user.x"))
}

// What opens gives the handle of the first time, once.
func TestResentOpen(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	node := l.lookup("a").NodeId
	var first, dir, tmp fuse.OpenOut
	var created fuse.CreateOut
	open := fuse.OpenIn{InHeader: l.request(node), Flags: unix.O_RDWR}
	l.ok("open", l.f.Open(nil, &open, &first))
	opendir := fuse.OpenIn{InHeader: l.request(fuse.FUSE_ROOT_ID)}
	l.ok("opendir", l.f.OpenDir(nil, &opendir, &dir))
	tmpfile := fuse.CreateIn{InHeader: l.request(fuse.FUSE_ROOT_ID), Flags: unix.O_RDWR, Mode: 0o600}
	l.ok("tmpfile", l.f.Tmpfile(nil, &tmpfile, &created))
	tmp = created.OpenOut
	l.takeOver()
	for _, in := range []*fuse.InHeader{&open.InHeader, &opendir.InHeader, &tmpfile.InHeader} {
		in.Unique |= resentBit
	}
	var out fuse.OpenOut
	l.ok("open", l.f.Open(nil, &open, &out))
	if out != first {
		t.Errorf("open: %+v, want %+v", out, first)
	}
	l.ok("opendir", l.f.OpenDir(nil, &opendir, &out))
	if out != dir {
		t.Errorf("opendir: %+v, want %+v", out, dir)
	}
	node = created.NodeId
	l.ok("tmpfile", l.f.Tmpfile(nil, &tmpfile, &created))
	if created.OpenOut != tmp || created.NodeId != node {
		t.Errorf("tmpfile: %+v, want %+v", created.OpenOut, tmp)
	}
	if n := l.f.handles.size(); n != 3 {
		t.Errorf("%d handles", n)
	}
	l.ok("open", l.f.Open(nil, &open, &out))
	if out == first {
		t.Error("the same handle a second time")
	}
	release := fuse.ReleaseIn{InHeader: l.request(l.lookup("a").NodeId), Fh: first.Fh}
	l.f.Release(nil, &release)
	l.takeOver()
	release.Unique |= resentBit
	l.f.Release(nil, &release)
	if n := l.f.handles.size(); n != 3 {
		t.Errorf("%d handles", n)
	}
}

// An error of an fsync is not lost with the daemon that met it, and not told for ever.
func TestResentFsync(t *testing.T) {
	l := newLives(t, tier.Options{})
	l.write("a", "a")
	node, fh := l.open("a", unix.O_RDWR)
	in := fuse.FsyncIn{InHeader: l.request(node), Fh: fh}
	o := l.f.handles.get(fh)
	check(t, unix.Close(o.fd))
	var err error
	o.fd, err = unix.Open(l.at("a"), unix.O_PATH|unix.O_CLOEXEC, 0) // of which an fsync fails
	check(t, err)
	wantErrno(t, "first", unix.Errno(l.f.Fsync(nil, &in)), unix.EBADF)
	l.takeOver()
	in.Unique |= resentBit
	wantErrno(t, "resent", unix.Errno(l.f.Fsync(nil, &in)), unix.EBADF)
	next := fuse.FsyncIn{InHeader: l.request(node), Fh: fh}
	l.ok("the next", l.f.Fsync(nil, &next))
	wantErrno(t, "the resent one behind it", unix.Errno(l.f.Fsync(nil, &in)), unix.EBADF)
	n := l.f.inodes.get(node)
	n.sync.since = n.sync.since.Add(-2 * noteLasts)
	l.ok("one much later", l.f.Fsync(nil, &next))
	l.ok("resent", l.f.Fsync(nil, &in))
	l.takeOver()
	l.ok("resent", l.f.Fsync(nil, &in))
}

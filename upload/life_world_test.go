package upload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tierfs/tierfs/chunkcache"
	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"github.com/tierfs/tierfs/segment/segmenttest"
	"github.com/tierfs/tierfs/tier"
)

const (
	lifeGrace = time.Hour
	lifeStep  = time.Minute // how long the broker waits for what needs the store
)

// The states of the store.
const (
	fair     = iota
	away     // nothing works
	slow     // everything takes its time
	deaf     // what is put and deleted is, but the answer is lost
	stubborn // nothing may be deleted
	weathers
)

// life is a volume, with what must be in it.
type life struct {
	t     *rapid.T
	seen  map[string]int // what has happened in this life and others
	path  string         // of the source and the cache
	root  int
	store *sim.Store
	cache *chunkcache.Cache
	where int // of the cache
	v     *tier.Volume
	b     *Background
	logs  syncBuffer

	weather int
	fuse    int    // steps until the next kill; negative: none
	fuseIn  string // the operation whose steps count; empty: each
	bootToo int    // steps until a kill in the start behind it

	tree    lifeTree
	handles []*lifeHandle
	under   []*lifeUpload
	remote  map[*lifeFile]bool // evicted when last looked at
	serial  int                // names that are used once
}

// lifeHandle is a file that the broker has open.
type lifeHandle struct {
	fd    int
	file  *tier.File
	inode *lifeFile
}

// killed is what a step throws when tierfs is killed there.
type killed struct{}

func newLife(t *rapid.T, seen map[string]int) *life {
	time.Sleep(time.Until(segmenttest.Epoch.Add(time.Hour)))
	path, err := os.MkdirTemp(inMemory(), "life")
	m := &life{
		t: t, seen: seen, path: path, store: sim.New(sim.Options{}), fuse: -1, bootToo: -1,
		tree: lifeTree{"": {files: map[string]*lifeFile{}}}, remote: map[*lifeFile]bool{},
	}
	m.must("make the source", err)
	m.must("make the source", errors.Join(os.Mkdir(m.path+"/src", 0o755), os.Mkdir(m.path+"/cache", 0o755)))
	m.store.SetHook(m.before)
	m.store.SetAfter(m.after)
	m.start()
	m.create("", "meta.properties", &lifeFile{data: []byte("node.id=1\n")})
	for _, p := range []string{"a-0", "a-1", "b-0"} {
		m.newPartition(p, 0)
		for range 3 {
			m.appendTo(p, 2)
			m.rollAt(p)
		}
	}
	m.checkpoint()
	if rapid.Bool().Draw(t, "tiered") {
		m.tierOut(t)
	}
	return m
}

// inMemory is a directory on a file system where an fsync is cheap, if there is one.
func inMemory() string {
	const shm = "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err != nil || unix.Access(shm, unix.W_OK) != nil {
		return ""
	}
	return shm
}

// end leaves nothing behind.
func (m *life) end() {
	m.stop()
	_ = os.RemoveAll(m.path)
}

// must ends the life when something has failed that cannot. What is said must be
// the same when the same happens again, so that the life can be shortened.
func (m *life) must(what string, err error) {
	m.t.Helper()
	if err != nil {
		m.t.Logf("%v", err)
		m.fail("%s failed", what)
	}
}

func (m *life) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Logf("below:\n%s", m.below())
	m.t.Logf("log:\n%s", m.logs.String())
	m.t.Fatalf(format, args...)
}

// below lists everything in the source.
func (m *life) below() string {
	var out strings.Builder
	_ = filepath.WalkDir(m.path+"/src", func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, _ := d.Info()
			fmt.Fprintf(&out, "%s %d\n", strings.TrimPrefix(path, m.path+"/src/"), info.Size())
		}
		return nil
	})
	return out.String() + strings.Join(m.store.Keys(), "\n")
}

// before is the store's weather before it does something.
func (m *life) before(ctx context.Context, op, _ string) error {
	switch {
	case m.weather == away:
		return objstore.ErrTransient
	case m.weather == stubborn && op == "delete":
		return objstore.ErrAuth
	case m.weather == slow && op != "read":
		select {
		case <-time.After(3 * time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// after is the weather of the answers.
func (m *life) after(_ context.Context, op, key string) error {
	if op == "delete" && strings.HasSuffix(key, ".log") {
		m.seen["object deleted"]++
	}
	if m.weather == deaf {
		return objstore.ErrTransient
	}
	return nil
}

func (m *life) changeWeather(t *rapid.T) {
	m.weather = rapid.IntRange(away, weathers-1).Draw(t, "weather")
}

// clear ends what the store suffers from, and waits until nobody remembers it.
func (m *life) clear() {
	m.weather = fair
	time.Sleep(time.Minute)
}

// arm lets tierfs be killed at one of the steps to come.
func (m *life) arm(t *rapid.T) {
	m.fuseIn = rapid.SampledFrom([]string{
		"", "upload", "evict", "rehydrate", "mutate", "truncate", "unlink", "rename", "rmdir", "retire", "mint", "partition",
	}).Draw(t, "kill in")
	m.fuse = rapid.IntRange(0, 5).Draw(t, "steps")
	m.bootToo = rapid.IntRange(-6, 12).Draw(t, "steps of the start")
}

func (m *life) step(name string) {
	step, _, _ := strings.Cut(name, ":")
	if m.fuseIn != "" && m.fuseIn != step {
		return
	}
	if m.fuse == 0 {
		m.fuse = -1
		m.seen["killed"]++
		m.seen["killed in "+step]++
		panic(killed{})
	}
	m.fuse = max(m.fuse-1, -1)
}

// start opens the source as a mount does.
func (m *life) start() {
	var err error
	m.root, err = unix.Open(m.path+"/src", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	m.must("open the source", err)
	m.where, err = unix.Open(m.path+"/cache", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	m.must("open the cache", err)
	m.cache, err = chunkcache.New(chunkcache.Options{
		Dir: m.where, Store: m.store, ChunkSize: 1 << 20, Size: 8 << 20, SizePercent: 100, Memory: 1 << 20,
	})
	m.must("open the cache", err)
	log := slog.New(slog.NewTextHandler(&m.logs, nil))
	m.v, err = tier.Open(m.t.Context(), tier.Options{
		Root: m.root, Store: m.store, Cache: m.cache, Prefix: "p", DeleteGrace: lifeGrace, Log: log, Step: m.step, Layout: "kafka",
	})
	m.must("start", err)
	m.b = New(Options{
		Volume: m.v, Store: m.store, Log: log, Retention: keepAll(), ConditionalWrites: true,
		Features: func() objstore.Features { return objstore.Features{EnforcesChecksum: true, ConditionalPut: true} },
		Disk:     func() (Disk, error) { return Disk{Used: 1, Total: 100}, nil },
	})
	m.tolerate("claim", m.v.CheckOwner(context.Background()))
}

// stop ends tierfs, and the broker with it.
func (m *life) stop() {
	for _, h := range m.handles {
		_ = unix.Close(h.fd)
	}
	for _, u := range m.under {
		u.close()
	}
	if m.b != nil {
		for _, l := range m.b.uploader.lanes {
			if l.held != nil && l.held.up != nil {
				l.held.close()
			}
		}
	}
	m.handles, m.under, m.b = nil, nil, nil
	if m.v != nil {
		_ = m.v.Close()
		m.v = nil
	}
	m.closeLeft()
	if m.cache != nil {
		m.must("close the cache", m.cache.Close())
		_ = unix.Close(m.where)
		m.cache = nil
	}
	_ = unix.Close(m.root)
}

// closeLeft closes what a start that was killed has left open of the volume's state.
func (m *life) closeLeft() {
	fds, err := os.ReadDir("/proc/self/fd")
	m.must("list descriptors", err)
	for _, e := range fds {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		fd := 0
		if _, err := fmt.Sscan(e.Name(), &fd); err == nil && strings.HasPrefix(to, m.path+"/src/.tierfs") {
			_ = unix.Close(fd)
		}
	}
}

// restart ends tierfs and the broker cleanly and starts both again.
func (m *life) restart(t *rapid.T) {
	lost := rapid.Bool().Draw(t, "cache lost")
	m.stop()
	if lost {
		m.must("lose the cache", errors.Join(os.RemoveAll(m.path+"/cache"), os.Mkdir(m.path+"/cache", 0o755)))
	}
	if m.dies(m.start) {
		m.again()
	}
	m.recover()
}

// again starts tierfs after a kill, which may be killed on the way.
func (m *life) again() {
	m.fuse, m.bootToo, m.fuseIn = m.bootToo, -1, ""
	m.stop()
	if died := m.dies(func() { m.start() }); died {
		m.stop()
		m.fuse = -1
		m.start()
	}
	m.fuse = -1
}

// dies runs something up to the kill.
func (m *life) dies(run func()) (died bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killed); !ok {
				panic(r)
			}
			died = true
		}
	}()
	run()
	return false
}

// untilKilled runs an action, and what comes after a kill in it.
func (m *life) untilKilled(act func()) {
	if m.dies(act) {
		m.recover()
	}
}

// try does one thing and then has it in the model. If tierfs is killed on the way, the
// thing has happened or not, or one of what else it may have left; the broker, which
// loses its files, does not go on with what it was about.
func (m *life) try(what string, run func() error, after ...func()) error {
	var err error
	if !m.dies(func() { err = run() }) {
		if err == nil && len(after) > 0 {
			after[0]()
		}
		return err
	}
	m.t.Logf("killed in %s", what)
	m.again()
	undo := m.tree.save()
	why := m.agrees()
	for _, happened := range after {
		if why == nil {
			break
		}
		undo()
		happened()
		why = errors.Join(why, m.agrees())
		if m.agrees() == nil {
			why = nil
		}
	}
	if why != nil {
		m.t.Logf("%v", why)
		m.fail("after a kill in %s nothing agrees that may be", what)
	}
	panic(killed{})
}

// do is try for what must not fail.
func (m *life) do(what string, run func() error, after ...func()) {
	m.must(what, m.try(what, run, after...))
}

package chunkcache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tierfs/tierfs/objstore"
)

// model drives a cache with a small budget and compares it with plain byte slices.
type model struct {
	*fixture
	objects []Object
	data    [][]byte
	index   [][]int64
	broken  bool // the directory is away
	strays  bool // it was away: files may have come back that the cache had given up
	mu      sync.Mutex
	fail    int // GETs that still fail
	mangle  int // GETs that still give wrong bytes
}

func newModel(t *rapid.T) *model {
	m := &model{}
	m.fixture = newFixture(t, func(o *Options) {
		o.ChunkSize = rapid.SampledFrom([]int64{16 << 10, 64 << 10, 256 << 10}).Draw(t, "chunk")
		o.Size = rapid.SampledFrom([]int64{100 << 10, 400 << 10, 1 << 20}).Draw(t, "size")
		o.MaxObjects = rapid.SampledFrom([]int{2, 10, 100}).Draw(t, "objects")
		o.FirstFetch = rapid.SampledFrom([]int64{1, 8 << 10, 64 << 10}).Draw(t, "first")
		o.Concurrency = rapid.IntRange(1, 4).Draw(t, "concurrency")
		o.TrimMinInterval = time.Millisecond
	})
	for i := range 3 {
		o, data, index := m.store.indexed(fmt.Sprintf("topic-%d/00.log", i), 300<<10+i*1000, []int{200, 3000, 50 << 10}[i])
		m.objects, m.data, m.index = append(m.objects, o), append(m.data, data), append(m.index, index)
	}
	m.store.before = func(context.Context, get) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.fail > 0 {
			m.fail--
			return objstore.ErrTransient
		}
		return nil
	}
	m.store.mangle = func(g get, b []byte) []byte {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.mangle > 0 && len(b) > batchHeader {
			m.mangle--
			b[len(b)/2] ^= 0x40
		}
		return b
	}
	return m
}

// reads makes n reads at once; failing are allowed only when the store does.
func (m *model) reads(t *rapid.T, n int) {
	var wg sync.WaitGroup
	m.mu.Lock()
	mayFail := m.fail > 0 || m.mangle > 0
	m.mu.Unlock()
	for i := range n {
		k := rapid.IntRange(0, len(m.objects)-1).Draw(t, fmt.Sprint("object ", i))
		o := m.objects[k]
		off := rapid.Int64Range(0, o.Size-1).Draw(t, fmt.Sprint("off ", i))
		length := rapid.Int64Range(1, min(o.Size-off, 100<<10)).Draw(t, fmt.Sprint("length ", i))
		wg.Go(func() {
			if err := m.tryRead(o, m.data[k], off, length); err != nil && !mayFail {
				t.Errorf("%s [%d, +%d): %v", o.Key, off, length, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// scan reads an object forward.
func (m *model) scan(t *rapid.T) {
	k := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object")
	step := rapid.Int64Range(1000, 90_000).Draw(t, "step")
	m.mu.Lock()
	m.fail, m.mangle = 0, 0
	m.mu.Unlock()
	for off := int64(0); off < m.objects[k].Size; off += step {
		m.read(m.objects[k], m.data[k], off, min(step, m.objects[k].Size-off))
	}
}

// reindex gives an object another index from the next start on: a sparser one, or none.
func (m *model) reindex(t *rapid.T) {
	k := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object")
	keep := rapid.IntRange(0, 3).Draw(t, "keep")
	m.objects[k].Index = func(context.Context) ([]int64, error) {
		if keep == 0 {
			return nil, errors.New("no index")
		}
		var out []int64
		for i, pos := range m.index[k] {
			if i%keep == 0 {
				out = append(out, pos)
			}
		}
		return out, nil
	}
	m.mu.Lock()
	m.mangle = 0 // without an index nothing would notice
	m.mu.Unlock()
	m.again()
}

func (m *model) indexed() bool {
	for _, o := range m.objects {
		if index, _ := o.Index(context.Background()); index == nil {
			return false
		}
	}
	return true
}

// damage does something to one chunk file.
func (m *model) damage(t *rapid.T) {
	m.settleDown()
	files := m.files()
	if len(files) == 0 || m.broken {
		return
	}
	slices.Sort(files)
	damage(t, rapid.SampledFrom(files).Draw(t, "file"), rapid.SampledFrom(damages).Draw(t, "how"), rapid.Float64Range(0, 1).Draw(t, "where"))
}

var damages = []string{"flip", "truncate", "extend", "remove", "directory", "zero", "empty", "symlink"}

func damage(t rapid.TB, name, how string, where float64) {
	b, err := os.ReadFile(name)
	if err != nil || len(b) == 0 {
		return // trimmed meanwhile, not a file any more, or empty already
	}
	at := int(where * float64(len(b)-1))
	switch how {
	case "flip":
		b[at] ^= 1
	case "truncate":
		b = b[:at]
	case "extend":
		b = append(b, 0)
	case "zero":
		clear(b)
	case "empty":
		b = nil
	}
	switch how {
	case "remove":
		err = os.Remove(name)
	case "directory":
		err = errors.Join(os.Remove(name), os.Mkdir(name, 0o700))
	case "symlink":
		err = errors.Join(os.Remove(name), os.Symlink("elsewhere", name))
	default: // in place: it may be open
		var f *os.File
		if f, err = os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0); err == nil {
			_, werr := f.Write(b)
			err = errors.Join(werr, f.Close())
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// breakDisk takes the directory of chunks away, or brings it back.
func (m *model) breakDisk(t *rapid.T) {
	m.settleDown() // or the cache makes the directory anew in between
	dir := filepath.Join(m.dir, chunksDir)
	if m.broken {
		if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
			t.Fatal(err)
		}
		m.Cache.mu.Lock()
		m.retryAt = time.Time{}
		m.Cache.mu.Unlock()
	} else {
		if err := os.Rename(dir, dir+".away"); err != nil {
			return // nothing there yet
		}
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.broken, m.strays = !m.broken, true
}

// again restarts the cache.
func (m *model) again() {
	m.restart()
	m.settleDown()
	m.until("within the budget", func() bool { st := m.Stats(); return st.Bytes <= st.Budget && st.Chunks <= m.opts.MaxObjects })
	m.strays = m.strays && m.broken
}

func (m *model) check(t *rapid.T) {
	if st := m.Stats(); st.Bytes > st.Budget || st.Bytes > m.opts.Size || st.Chunks > m.opts.MaxObjects {
		t.Fatalf("over budget: %+v", st)
	}
	if n := m.onDisk(); n > m.opts.Size && !m.strays {
		t.Fatalf("%d bytes on disk, budget %d", n, m.opts.Size)
	}
}

// TestModel holds any interleaving of reads, trims, restarts, failures and damage against byte slices.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"read":    func(t *rapid.T) { m.reads(t, 1) },
			"read 8":  func(t *rapid.T) { m.reads(t, 8) },
			"scan":    m.scan,
			"trim":    func(*rapid.T) { m.trim() },
			"restart": func(*rapid.T) { m.again() },
			"reindex": m.reindex,
			"damage":  m.damage,
			"damage more": func(t *rapid.T) {
				for range 5 {
					m.damage(t)
				}
			},
			"break disk": m.breakDisk,
			"drop":       func(t *rapid.T) { m.Drop(m.objects[rapid.IntRange(0, 2).Draw(t, "object")].Key) },
			"fail store": func(t *rapid.T) {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.fail = rapid.IntRange(1, 5).Draw(t, "times")
			},
			"mangle": func(t *rapid.T) {
				if !m.indexed() {
					return
				}
				m.settleDown() // what is under way may belong to a time without an index
				m.mu.Lock()
				defer m.mu.Unlock()
				m.mangle = rapid.IntRange(1, 3).Draw(t, "times")
			},
			"settle": func(*rapid.T) {
				if !m.broken {
					m.consistent()
				}
			},
			"": m.check,
		})
	})
}

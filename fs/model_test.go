package fs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	modelOps     = 4000
	modelMaxSize = 300 << 10
	modelFiles   = 9
)

// TestModel does random operations on a few files and compares every answer with
// a model in memory. It runs in a child process, because it maps files.
func TestModel(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := mountTest(t)
			runModel(t, m, seed, modelOps, nil)
			for _, e := range readDir(t, m.mnt) {
				through, err := os.ReadFile(m.path(e))
				check(t, err)
				below, err := os.ReadFile(m.below(e))
				check(t, err)
				if !bytes.Equal(through, below) {
					t.Errorf("%s differs from the file below", e)
				}
			}
		})
	}
}

func readDir(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// runModel runs the child. Each time the child asks for it, upset does something
// behind the kernel's back that must not be seen.
func runModel(t *testing.T, m *testMount, seed uint64, ops int, upset func()) {
	t.Helper()
	cmd := child("model", m.mnt, fmt.Sprint(seed), fmt.Sprint(ops), fmt.Sprint(upset != nil))
	out, err := cmd.StdoutPipe()
	check(t, err)
	in, err := cmd.StdinPipe()
	check(t, err)
	var problem bytes.Buffer
	cmd.Stderr = &problem
	check(t, cmd.Start())
	dead := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer dead.Stop()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		upset()
		_, err := fmt.Fprintln(in)
		check(t, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, tail(problem.String(), 60))
	}
}

func tail(s string, lines int) string {
	all := strings.Split(s, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// modelInode is a file as it must be.
type modelInode struct {
	data  []byte
	links int
	ino   uint64
}

type modelHandle struct {
	fd     int
	inode  *modelInode
	append bool
}

type model struct {
	dir     string
	rnd     *rand.Rand
	names   map[string]*modelInode
	handles []*modelHandle
	trace   []string
	upset   func() error
}

func modelChild(args []string) error {
	seed, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	ops, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	m := &model{dir: args[0], rnd: rand.New(rand.NewPCG(seed, 42)), names: map[string]*modelInode{}}
	if args[3] == "true" {
		parent := bufio.NewReader(os.Stdin)
		m.upset = func() error {
			fmt.Println("upset")
			_, err := parent.ReadString('\n')
			return err
		}
	}
	for i := range ops {
		if err := m.step(); err != nil {
			return fmt.Errorf("%s\noperation %d: %w", strings.Join(m.trace, "\n"), i, err)
		}
	}
	for _, h := range m.handles {
		err = errors.Join(err, unix.Close(h.fd))
	}
	return errors.Join(err, m.compareAll())
}

func (m *model) log(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
	if len(m.trace) > 50 {
		m.trace = m.trace[1:]
	}
}

func (m *model) path(name string) string { return filepath.Join(m.dir, name) }

// anyName is a name that may or may not be there; most of them are segments' names.
func (m *model) anyName() string {
	i := m.rnd.IntN(modelFiles)
	if i%4 != 0 {
		return fmt.Sprintf("%020d.log", i*1000)
	}
	return fmt.Sprintf("file%d", i)
}

func (m *model) someName() (string, bool) {
	names := slices.Sorted(maps.Keys(m.names))
	if len(names) == 0 {
		return "", false
	}
	return names[m.rnd.IntN(len(names))], true
}

func (m *model) someHandle() (*modelHandle, bool) {
	if len(m.handles) == 0 {
		return nil, false
	}
	return m.handles[m.rnd.IntN(len(m.handles))], true
}

func (m *model) step() error {
	if m.upset != nil && m.rnd.IntN(40) == 0 {
		m.log("upset")
		return m.upset()
	}
	if len(m.handles) < 3 || m.rnd.IntN(12) == 0 {
		return m.open()
	}
	named := []func(string) error{m.rename, m.link, m.unlink, m.truncate, m.stat, m.readWhole, m.chmod}
	if m.rnd.IntN(3) == 0 {
		name, ok := m.someName()
		if !ok {
			return nil
		}
		return named[m.rnd.IntN(len(named))](name)
	}
	open := []func(*modelHandle) error{
		m.write, m.write, m.write, m.read, m.read, m.read, m.mapped, m.mapped, m.ftruncate, m.punch, m.zero,
		m.allocate, m.sync, m.drop, m.seekHole, m.closeIt, m.copyRange,
	}
	h, _ := m.someHandle()
	return open[m.rnd.IntN(len(open))](h)
}

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
)

const (
	modelOps     = 4000
	modelMaxSize = 300 << 10
	modelFiles   = 9
)

// modelSeeds is how many random sequences each of the tests runs.
func modelSeeds() uint64 {
	if os.Getenv("TIERFS_SOAK") != "" {
		return 30
	}
	return 2
}

// TestModel does random operations on a few files and compares every answer with
// a model in memory. It runs in a child process, because it maps files.
func TestModel(t *testing.T) {
	for seed := range modelSeeds() {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := mountTest(t)
			runModel(t, m, seed, false, map[string]func(){"restart": m.restart})
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

// runModel runs the child. Each time the child asks for one of the answers, that does
// something that must not be seen through the mount; before a restart the child has
// let go of all files. tiered: files may be evicted at any time.
func runModel(t *testing.T, m *testMount, seed uint64, tiered bool, answers map[string]func()) {
	t.Helper()
	asks := slices.Sorted(maps.Keys(answers))
	cmd := child("model", m.mnt, fmt.Sprint(seed), fmt.Sprint(modelOps), fmt.Sprint(tiered), strings.Join(asks, " "))
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
		answers[lines.Text()]()
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
	maps    []*modelMap
	trace   []string
	tiered  bool
	asks    []string
	ask     func(what string) error
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
	m := &model{
		dir: args[0], rnd: rand.New(rand.NewPCG(seed, 42)), names: map[string]*modelInode{},
		tiered: args[3] == "true", asks: strings.Fields(args[4]),
	}
	parent := bufio.NewReader(os.Stdin)
	m.ask = func(what string) error {
		m.log("%s", what)
		fmt.Println(what)
		_, err := parent.ReadString('\n')
		return err
	}
	for i := range ops {
		if err := m.step(); err != nil {
			return fmt.Errorf("%s\noperation %d: %w", strings.Join(m.trace, "\n"), i, err)
		}
	}
	return errors.Join(m.letGo(), m.compareAll())
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
	if slices.Contains(m.asks, "upset") && m.rnd.IntN(40) == 0 {
		return m.ask("upset")
	}
	if slices.Contains(m.asks, "restart") && m.rnd.IntN(400) == 0 {
		return errors.Join(m.letGo(), m.ask("restart"), m.compareAll())
	}
	if len(m.handles) < 3 || m.rnd.IntN(12) == 0 {
		return m.open()
	}
	named := []func(string) error{m.rename, m.rename, m.link, m.unlink, m.truncate, m.stat, m.readWhole, m.chmod}
	if m.rnd.IntN(3) == 0 {
		name, ok := m.someName()
		if !ok {
			return nil
		}
		return named[m.rnd.IntN(len(named))](name)
	}
	open := []func(*modelHandle) error{
		m.write, m.write, m.write, m.read, m.read, m.read, m.mapped, m.mapped, m.ftruncate, m.punch, m.zero,
		m.allocate, m.sync, m.drop, m.seekHole, m.closeIt, m.copyRange, m.mapForLong, m.useMap, m.useMap,
	}
	h, _ := m.someHandle()
	return open[m.rnd.IntN(len(open))](h)
}

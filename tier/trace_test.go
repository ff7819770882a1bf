package tier

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/objstore"
)

var updateTraces = flag.Bool("update", false, "write the golden traces anew")

const (
	traceEnv  = "TIERFS_TRACE_CHILD"
	traceRoot = "/tierfs-trace" // never there: opening names below it is how the child speaks to the trace
	traceDir  = "testdata/traces"
)

// TestTraces runs each operation under strace and compares the system calls that
// put something on the disk, and the calls of the store between them, with the
// golden files in testdata/traces. `go test ./tier -run TestTraces -update` writes
// them anew; then they are to be read against the durable steps again. Whatever
// they say, the rules of checkTrace hold.
func TestTraces(t *testing.T) {
	if os.Getenv(traceEnv) != "" {
		traceChild(t)
		return
	}
	traces := strace(t)
	for _, op := range tracedOperations() {
		t.Run(op.name, func(t *testing.T) {
			trace, ok := traces[op.name]
			if !ok {
				t.Fatal("the child did not run it")
			}
			for _, problem := range checkTrace(trace, op.found) {
				t.Error(problem)
			}
			golden(t, filepath.Join(traceDir, strings.ReplaceAll(op.name, " ", "-")+".txt"), trace.String())
		})
	}
	t.Run("no others", func(t *testing.T) {
		files, err := os.ReadDir(traceDir)
		if err != nil || len(files) != len(tracedOperations()) {
			t.Errorf("%d golden files of %d operations, %v", len(files), len(tracedOperations()), err)
		}
	})
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *updateTraces {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s says\n%s\nthe trace is\n%s", file, want, got)
	}
}

// strace runs the child and returns its traces by the operations' names.
func strace(t *testing.T) map[string]*trace {
	t.Helper()
	out := filepath.Join(t.TempDir(), "strace")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "strace", "-f", "-y", "-s", "0", "--seccomp-bpf", "-o", out, "-e", "signal=none",
		"-e", "trace="+strings.Join(tracedCalls(), ","), exe, "-test.run", "^TestTraces$")
	cmd.Env = append(os.Environ(), traceEnv+"=1", "TMPDIR="+t.TempDir())
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	traces, err := parseStrace(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

// say puts a line into the trace: a system call that fails.
func say(what string) {
	var st int
	st, err := unix.Open(traceRoot+"/"+what, unix.O_RDONLY, 0)
	if err == nil {
		_ = unix.Close(st)
	}
}

func traceChild(t *testing.T) {
	for _, op := range tracedOperations() {
		t.Run(op.name, func(t *testing.T) {
			w := newWorld(t, 3)
			w.tune = func(o *Options) { o.Name = "volume" }
			w.close()
			w.do(os.RemoveAll(filepath.Join(w.path, stateDir)))
			w.open()
			op.prepare(w)
			w.step = func(s string) {
				if !strings.HasSuffix(s, ":done") {
					say("step/" + s)
				}
			}
			w.store.SetHook(func(_ context.Context, op, key string) error {
				if op != "read" {
					say("store/" + op + "/" + key)
				}
				return nil
			})
			w.store.SetAfter(func(_ context.Context, op, key string) error { say("store/" + op + "-done/" + key); return nil })
			say("begin" + w.path)
			err := op.run(w)
			say("end/" + op.name)
			w.do(err)
		})
	}
}

// tracedOperation is one operation that is traced, from behind prepare to the end of run.
type tracedOperation struct {
	name    string
	prepare func(w *world)
	run     func(w *world) error
	found   bool // a predecessor was killed: what it wrote may not be on the disk yet
}

// crashed ends an operation at one of its steps, and the volume with it.
func crashed(prepare func(*world), step string, run func(*world) error) func(*world) {
	return func(w *world) {
		prepare(w)
		w.crashIn(step, func() { _ = run(w) })
		w.close()
	}
}

func claimed(w *world) { w.do(w.v.CheckOwner(w.t.Context())) }

func claim(w *world) error { return w.v.CheckOwner(w.t.Context()) }

// proveUpload uploads a segment as the uploader does, with the look at what the
// store has.
func proveUpload(start int, between ...func(*world) error) func(*world) error {
	return func(w *world) error {
		u, err := w.v.Prepare(w.t.Context(), w.partition("t-0"), w.segment("t-0", w.starts[start]))
		if err != nil {
			return err
		}
		defer u.Close()
		for _, o := range u.Objects {
			if err := w.store.Put(w.t.Context(), o.Key, o.Body, objstore.PutOptions{}); err != nil {
				return err
			}
			if err := objstore.Verify(w.t.Context(), w.store, o.Key, o.Body, objstore.Features{EnforcesChecksum: true}, false); err != nil {
				return err
			}
		}
		for _, do := range between {
			w.do(do(w))
		}
		return u.Commit()
	}
}

// filling is whileFilling with all steps in the trace.
func filling(run func(w *world) error) func(w *world) error {
	return func(w *world) error {
		said, ran := w.step, false
		var err error
		w.step = func(s string) {
			if said(s); s == "rehydrate:fill:done" && !ran {
				ran = true
				err = run(w)
			}
		}
		return errors.Join(rehydrate(w), err)
	}
}

func mutation(kind Kind, size int64, change func(int) error) func(*world) error {
	return func(w *world) error {
		return w.mutate(w.dir("t-0"), first(w), Mutation{Kind: kind, Size: size}, change)
	}
}

func punch(off, n int64) func(int) error {
	return func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	}
}

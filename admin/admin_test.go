package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const volume = "0123456789abcdef0123456789abcdef"

// fake is a Daemon that notes what it is told.
type fake struct {
	mu      sync.Mutex
	calls   []string
	status  Status
	evict   func(ctx context.Context, progress func(EvictStep)) (EvictResult, error)
	unmount error
	upgrade error // what commit fails with
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fake) Status(topics bool) Status {
	f.note("status %v", topics)
	return f.status
}

func (f *fake) Segments(partition string) ([]Segment, error) {
	f.note("segments %s", partition)
	if partition != "orders-0" {
		return nil, fmt.Errorf("%s: no partition: %w", partition, ErrNotFound)
	}
	end := uint64(41)
	return []Segment{{Stem: "00000000000000000000", End: &end, Size: 1 << 20, State: "remote"}}, nil
}

func (f *fake) Evict(ctx context.Context, what EvictRequest, progress func(EvictStep)) (EvictResult, error) {
	f.note("evict %s %v", what.Topic, what.All)
	return f.evict(ctx, progress)
}

func (f *fake) Check(_ context.Context, what CheckRequest, report func(Finding), progress func(Progress)) (CheckResult, error) {
	f.note("check %v", what.Deep)
	report(Finding{Path: "orders-0/x.remote", Problem: "wrong magic"})
	progress(Progress{1, 2})
	return CheckResult{Records: 2, Findings: 1}, nil
}

func (f *fake) Pause(paused bool) { f.note("pause %v", paused) }

func (f *fake) Unmount() error {
	f.note("unmount")
	return f.unmount
}

func (f *fake) Upgrade(_ context.Context, what UpgradeRequest) (func() error, error) {
	f.note("upgrade %s", what.Binary)
	if what.Binary == "" {
		return nil, errors.New("no binary")
	}
	return func() error { f.note("commit"); return f.upgrade }, nil
}

func start(t *testing.T, f *fake, change func(*Options)) (*Server, *Client) {
	t.Helper()
	o := Options{
		Daemon: f, RunDir: filepath.Join(tempDir(t), "run"), Volume: volume,
		Metrics: prometheus.NewRegistry(), Ready: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Serve()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, NewClient(o.RunDir, o.Volume)
}

func TestCommands(t *testing.T) {
	f := &fake{status: Status{PID: 7, Writes: "through", Holder: Holder{Kind: "none"}, Segments: map[string]int64{"remote": 3}}}
	_, c := start(t, f, nil)
	ctx := t.Context()
	t.Run("status", func(t *testing.T) {
		s, err := c.Status(ctx, true)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(f.status, s); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("segments", func(t *testing.T) {
		list, err := c.Segments(ctx, "orders-0")
		if err != nil || len(list) != 1 || *list[0].End != 41 {
			t.Errorf("got %v, %v", list, err)
		}
	})
	t.Run("no such partition", func(t *testing.T) {
		_, err := c.Segments(ctx, "a b&c-0")
		if !errors.Is(err, ErrNotFound) || !strings.HasPrefix(err.Error(), "a b&c-0: no partition") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("check", func(t *testing.T) {
		var got []string
		result, err := c.Check(ctx, CheckRequest{Deep: true}, func(f Finding) { got = append(got, f.Problem) }, func(p Progress) { got = append(got, fmt.Sprint(p)) })
		if err != nil || result.Findings != 1 || strings.Join(got, ",") != "wrong magic,{1 2}" {
			t.Errorf("got %v, %v, %v", got, result, err)
		}
	})
	t.Run("pause", func(t *testing.T) {
		if err := errors.Join(c.Pause(ctx, true), c.Pause(ctx, false)); err != nil {
			t.Error(err)
		}
	})
	want := []string{"status true", "segments orders-0", "segments a b&c-0", "check true", "pause true", "pause false"}
	if diff := cmp.Diff(want, f.calls); diff != "" {
		t.Error(diff)
	}
}

func TestUpgrade(t *testing.T) {
	for _, tc := range []struct {
		name, binary string
		commit       error
		calls, err   string
	}{
		{"goes ahead", "/new", nil, "upgrade /new,commit", ""},
		{"fails at the end", "/new", errors.New("exec failed"), "upgrade /new,commit", "exec failed"},
		{"is refused", "", nil, "upgrade ", "no binary"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fake{upgrade: tc.commit}
			_, c := start(t, f, nil)
			err := c.Upgrade(t.Context(), UpgradeRequest{tc.binary})
			if got := fmt.Sprint(err); err != nil && got != tc.err || err == nil && tc.err != "" {
				t.Errorf("got %v", err)
			}
			if got := strings.Join(f.calls, ","); got != tc.calls {
				t.Errorf("calls: %s", got)
			}
		})
	}
}

func TestStatusFields(t *testing.T) {
	f := &fake{status: Status{
		PID: 7, Holder: Holder{Kind: "none"}, Writes: "through", Volume: volume, Owner: true, Store: Store{Backend: "fs", Reachable: true},
		Segments: map[string]int64{"active": 1}, Bytes: map[string]int64{"local": 2}, UploadLagBytes: 3,
	}}
	s, _ := start(t, f, func(o *Options) { o.Listen = "127.0.0.1:0" })
	_, body := get(t, s, "/api/status")
	for _, field := range []string{
		`"pid":7`, `"holder":{"kind":"none","pid":0}`, `"writes":"through"`, `"takeovers":0`, `"volume":"` + volume + `"`, `"owner":true`,
		`"backend":"fs"`, `"reachable":true`, `"segments":{"active":1}`, `"bytes":{"local":2}`, `"upload_stalled":false`, `"upload_lag_bytes":3`,
	} {
		if !strings.Contains(body, field) {
			t.Errorf("%s is missing in %s", field, body)
		}
	}
}

func TestEvict(t *testing.T) {
	f := &fake{}
	_, c := start(t, f, nil)
	result := EvictResult{Evicted: 2, EvictedBytes: 100, Stayed: []Stayed{{"high watermark", 1, 50}}}
	t.Run("steps and result", func(t *testing.T) {
		f.evict = func(_ context.Context, progress func(EvictStep)) (EvictResult, error) {
			progress(EvictStep{Action: "upload", Segment: "a"})
			progress(EvictStep{Action: "evict", Segment: "a"})
			return result, nil
		}
		var steps []string
		got, err := c.Evict(t.Context(), EvictRequest{Topic: "orders-*", All: true}, func(s EvictStep) { steps = append(steps, s.Action) })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(result, got); diff != "" || strings.Join(steps, ",") != "upload,evict" {
			t.Errorf("steps %v, result:\n%s", steps, diff)
		}
		if f.calls[0] != "evict orders-* true" {
			t.Errorf("got the request %q", f.calls[0])
		}
	})
	t.Run("error after steps", func(t *testing.T) {
		f.evict = func(_ context.Context, progress func(EvictStep)) (EvictResult, error) {
			progress(EvictStep{Action: "upload"})
			return EvictResult{}, errors.New("the store is away")
		}
		if _, err := c.Evict(t.Context(), EvictRequest{}, func(EvictStep) {}); err == nil || err.Error() != "the store is away" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the first step is seen before the last", func(t *testing.T) {
		seen := make(chan struct{})
		f.evict = func(ctx context.Context, progress func(EvictStep)) (EvictResult, error) {
			progress(EvictStep{Action: "upload"})
			select {
			case <-seen:
				return result, nil
			case <-ctx.Done():
				return EvictResult{}, ctx.Err()
			}
		}
		if _, err := c.Evict(t.Context(), EvictRequest{}, func(EvictStep) { close(seen) }); err != nil {
			t.Error(err)
		}
	})
}

func TestEvictEndsWithItsClient(t *testing.T) {
	f := &fake{}
	_, c := start(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	f.evict = func(ctx context.Context, progress func(EvictStep)) (EvictResult, error) {
		defer close(ended)
		progress(EvictStep{})
		<-ctx.Done()
		return EvictResult{}, ctx.Err()
	}
	if _, err := c.Evict(ctx, EvictRequest{}, func(EvictStep) { cancel() }); err == nil {
		t.Error("no error")
	}
	<-ended
}

func TestCloseEndsEvictions(t *testing.T) {
	f := &fake{}
	s, c := start(t, f, nil)
	f.evict = func(ctx context.Context, progress func(EvictStep)) (EvictResult, error) {
		progress(EvictStep{})
		<-ctx.Done()
		return EvictResult{}, errors.New("shutting down")
	}
	begun := make(chan struct{})
	ended := make(chan error)
	go func() {
		_, err := c.Evict(context.Background(), EvictRequest{}, func(EvictStep) { close(begun) })
		ended <- err
	}()
	<-begun
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || err.Error() != "shutting down" {
		t.Errorf("got %v", err)
	}
}

func TestUnmountRefused(t *testing.T) {
	f := &fake{unmount: fmt.Errorf("process 12 (java): %w", ErrBusy), status: Status{PID: os.Getpid()}}
	_, c := start(t, f, nil)
	if err := c.Unmount(t.Context()); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "process 12 (java)") {
		t.Errorf("got %v", err)
	}
}

func TestWaitExit(t *testing.T) {
	cmd := exec.Command("/bin/cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waitExit(ctx, pidfd); !errors.Is(err, context.Canceled) {
		t.Errorf("while the process lives: %v", err)
	}
	done := make(chan error)
	go func() { done <- waitExit(t.Context(), pidfd) }()
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	_, err := NewClient(tempDir(t), volume).Status(t.Context(), false)
	if err == nil || !strings.Contains(err.Error(), "no daemon answers") {
		t.Errorf("got %v", err)
	}
}

// tempDir is a directory with a path that is short enough for a socket below it, whatever the test is called.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "admin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

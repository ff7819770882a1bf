package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/sim"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failing fails the first n calls of op with err; n < 0 all of them.
func failing(op string, n int, err error) sim.Hook {
	return func(_ context.Context, o, _ string) error {
		if o != op || n == 0 {
			return nil
		}
		n--
		return err
	}
}

func put(t *testing.T, s objstore.Store, key string, b []byte) {
	t.Helper()
	if err := s.Put(t.Context(), key, objstore.BytesBody(b), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestRetryUntilItWorks(t *testing.T) {
	for _, cause := range []error{objstore.ErrTransient, objstore.ErrThrottled, objstore.ErrShort, context.DeadlineExceeded} {
		t.Run(cause.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bare := sim.New(sim.Options{})
				s := objstore.WithRetry(bare, objstore.RetryOptions{})
				for _, op := range []string{"put", "head", "list", "delete"} {
					bare.SetHook(failing(op, 4, fmt.Errorf("wrapped: %w", cause)))
					if err := call(t.Context(), s, op); err != nil {
						t.Errorf("%s: %v", op, err)
					}
					if n := bare.Count(op); n < 5 {
						t.Errorf("%s: %d tries", op, n)
					}
				}
			})
		})
	}
}

func call(ctx context.Context, s objstore.Store, op string) error {
	switch op {
	case "put":
		return s.Put(ctx, "k", objstore.BytesBody([]byte("0123456789")), objstore.PutOptions{})
	case "head":
		_, err := s.Head(ctx, "k")
		return err
	case "list":
		_, err := s.List(ctx, "", "")
		return err
	case "get":
		r, err := s.GetRange(ctx, "k", 0, 10)
		if err != nil {
			return err
		}
		_, err = io.ReadAll(r)
		return errors.Join(err, r.Close())
	}
	return s.Delete(ctx, "k")
}

func TestRetryNotAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		s := objstore.WithRetry(bare, objstore.RetryOptions{})
		put(t, s, "k", []byte("0123456789"))
		for _, cause := range []error{objstore.ErrNotFound, objstore.ErrExists, objstore.ErrAuth, objstore.ErrConfig, objstore.ErrUnsupported,
			objstore.ErrRange, objstore.ErrInvalid, objstore.ErrChecksum, context.Canceled, errors.New("another")} {
			for _, op := range []string{"put", "get", "head", "list", "delete"} {
				bare.SetHook(failing(op, 1, cause))
				start := time.Now()
				if err := call(t.Context(), s, op); !errors.Is(err, cause) {
					t.Errorf("%s: got %v, want %v", op, err, cause)
				}
				if d := time.Since(start); d != 0 {
					t.Errorf("%s: paused %v after %v", op, d, cause)
				}
			}
		}
	})
}

// TestRetryDeadline: the last error comes back before the deadline, not after it,
// and every pause lies within its bounds.
func TestRetryDeadline(t *testing.T) {
	cases := []struct {
		name  string
		cause error
		bound func(try int) time.Duration
	}{
		{"transient", objstore.ErrTransient, func(n int) time.Duration { return min(100*time.Millisecond<<n, 10*time.Second) }},
		{"throttled", objstore.ErrThrottled, func(n int) time.Duration { return min(time.Second<<n, 10*time.Second) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bare := sim.New(sim.Options{})
				var tries []time.Time
				bare.SetHook(func(context.Context, string, string) error {
					tries = append(tries, time.Now())
					return c.cause
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				err := call(ctx, objstore.WithRetry(bare, objstore.RetryOptions{}), "head")
				if !errors.Is(err, c.cause) || errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%v", err)
				}
				if d := time.Since(start); d >= time.Minute {
					t.Errorf("gave up after %v", d)
				}
				longest := time.Duration(0)
				for i := 1; i < len(tries); i++ {
					pause := tries[i].Sub(tries[i-1])
					longest = max(longest, pause)
					if pause > c.bound(i-1) {
						t.Errorf("pause %d was %v, at most %v expected", i, pause, c.bound(i-1))
					}
				}
				if len(tries) < 5 || longest < time.Second {
					t.Errorf("%d tries, longest pause %v: no backoff", len(tries), longest)
				}
			})
		})
	}
}

func TestRetryTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		bare.SetHook(failing("put", -1, objstore.ErrTransient))
		start := time.Now()
		err := call(t.Context(), objstore.WithRetry(bare, objstore.RetryOptions{Total: 20 * time.Second}), "put")
		if d := time.Since(start); !errors.Is(err, objstore.ErrTransient) || d >= 20*time.Second || d < 5*time.Second {
			t.Fatalf("after %v: %v", d, err)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		bare.SetHook(failing("list", 1, objstore.WithRetryAfter(objstore.ErrThrottled, 7*time.Second)))
		start := time.Now()
		s := objstore.WithRetry(bare, objstore.RetryOptions{})
		if err := call(t.Context(), s, "list"); err != nil || time.Since(start) != 7*time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		bare.SetHook(failing("list", 1, objstore.WithRetryAfter(objstore.ErrThrottled, time.Hour)))
		start = time.Now()
		if err := call(t.Context(), s, "list"); !errors.Is(err, objstore.ErrThrottled) || time.Since(start) != 0 {
			t.Fatalf("a pause beyond the deadline: after %v: %v", time.Since(start), err)
		}
	})
}

func TestRetryCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		bare.SetHook(failing("head", -1, objstore.ErrTransient))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		start := time.Now()
		err := call(ctx, objstore.WithRetry(bare, objstore.RetryOptions{}), "head")
		if !errors.Is(err, context.Canceled) || time.Since(start) > 3*time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestRetryResumes: a body that breaks goes on where it broke, and asks only for
// the rest.
func TestRetryResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		want := bytes.Repeat([]byte("0123456789"), 100)
		put(t, bare, "k", want)
		reads := 0
		bare.SetHook(func(_ context.Context, op, _ string) error {
			if op == "read" {
				if reads++; reads%3 == 0 {
					return objstore.ErrShort
				}
			}
			return nil
		})
		r, err := objstore.WithRetry(bare, objstore.RetryOptions{}).GetRange(t.Context(), "k", 5, 900)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(struct{ io.Reader }{&slow{r}})
		if err != nil || !bytes.Equal(got, want[5:905]) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if n := bare.Count("get"); n < 10 {
			t.Fatalf("%d gets", n)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Fatal("read after close")
		}
	})
}

// slow reads 37 bytes at a time.
type slow struct{ r io.Reader }

func (s *slow) Read(p []byte) (int, error) { return s.r.Read(p[:min(37, len(p))]) }

func TestRetryGivesUpInABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		put(t, bare, "k", []byte("0123456789"))
		bare.SetHook(failing("read", -1, objstore.ErrTransient))
		start := time.Now()
		err := call(t.Context(), objstore.WithRetry(bare, objstore.RetryOptions{Total: 10 * time.Second}), "get")
		if d := time.Since(start); !errors.Is(err, objstore.ErrTransient) || d >= 10*time.Second {
			t.Fatalf("after %v: %v", d, err)
		}
	})
}

// TestRetryLostAnswer: a conditional put whose answer was lost succeeds.
func TestRetryLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bare := sim.New(sim.Options{})
		bare.SetAfter(failing("put", 1, objstore.ErrTransient))
		s := objstore.WithRetry(bare, objstore.RetryOptions{})
		if err := s.Put(t.Context(), "k", objstore.BytesBody([]byte("mine")), objstore.PutOptions{IfAbsent: true}); err != nil {
			t.Fatal(err)
		}
		if n := bare.Count("put"); n != 2 {
			t.Fatalf("%d puts", n)
		}
		err := s.Put(t.Context(), "k", objstore.BytesBody([]byte("else")), objstore.PutOptions{IfAbsent: true})
		if !errors.Is(err, objstore.ErrExists) {
			t.Fatal(err)
		}
	})
}

func TestPatience(t *testing.T) {
	long := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		t.Cleanup(cancel)
		return ctx
	}
	t.Run("ends what only fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bare := sim.New(sim.Options{})
			bare.SetHook(failing("put", -1, objstore.ErrTransient))
			s := objstore.WithRetry(bare, objstore.RetryOptions{Patience: 10 * time.Second})
			start := time.Now()
			err := call(long(t), s, "put")
			if took := time.Since(start); !errors.Is(err, objstore.ErrTransient) || took > 10*time.Second || bare.Count("put") < 3 {
				t.Errorf("%v after %v and %d tries", err, took, bare.Count("put"))
			}
		})
	})
	t.Run("begins anew with each progress", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bare := sim.New(sim.Options{})
			content := bytes.Repeat([]byte("0123456789"), 100)
			put(t, bare, "k", content)
			reads := 0
			bare.SetHook(func(_ context.Context, op, _ string) error {
				if op != "read" {
					return nil
				}
				time.Sleep(time.Second)
				if reads++; reads%2 == 0 {
					return objstore.ErrTransient
				}
				return nil
			})
			s := objstore.WithRetry(bare, objstore.RetryOptions{Patience: 10 * time.Second})
			r, err := s.GetRange(long(t), "k", 0, int64(len(content)))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			start := time.Now()
			got := make([]byte, len(content))
			for at := 0; at < len(got) && err == nil; {
				var n int
				n, err = r.Read(got[at:min(at+10, len(got))])
				at += n
			}
			if err != nil || !bytes.Equal(got, content) || time.Since(start) < time.Minute {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		})
	})
}

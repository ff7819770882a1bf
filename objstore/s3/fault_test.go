package s3_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tierfs/tierfs/objstore"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

var absent = objstore.PutOptions{IfAbsent: true}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func body(seed byte, n int) objstore.Body { return objstore.BytesBody(bytes.Repeat([]byte{seed}, n)) }

func read(t *testing.T, s objstore.Store, key string, off, n int64) ([]byte, error) {
	t.Helper()
	r, err := s.GetRange(t.Context(), key, off, n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// TestPutFaults: what a conditional PUT comes to when its answer is not clear.
func TestPutFaults(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	t.Run("lost_answer", func(t *testing.T) {
		s := through(t, p, srv)
		p.setFault(once("PUT", p.loseAnswer))
		if err := s.Put(t.Context(), "k", body(1, 3<<20), absent); err != nil {
			t.Fatal(err)
		}
		if n := p.count("PUT"); n != 1 {
			t.Errorf("%d PUTs", n)
		}
	})
	t.Run("lost_answer_unconditional", func(t *testing.T) {
		s := through(t, p, srv)
		p.setFault(once("PUT", p.loseAnswer))
		wantErr(t, s.Put(t.Context(), "k", body(1, 1000), objstore.PutOptions{}), objstore.ErrTransient)
	})
	t.Run("lost_answer_on_a_taken_key", func(t *testing.T) {
		s := through(t, p, srv)
		p.setFault(nil)
		if err := s.Put(t.Context(), "k", body(1, 1000), absent); err != nil {
			t.Fatal(err)
		}
		p.setFault(once("PUT", p.loseAnswer))
		wantErr(t, s.Put(t.Context(), "k", body(2, 1000), absent), objstore.ErrExists)
	})
}

// TestPutFaultsWithoutEffect: PUTs of which the store kept nothing, or refused.
func TestPutFaultsWithoutEffect(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	resetIt := func(w http.ResponseWriter, _ *http.Request) { reset(w) }
	t.Run("never_arrived", func(t *testing.T) {
		s := through(t, p, srv)
		p.setFault(once("PUT", resetIt))
		wantErr(t, s.Put(t.Context(), "k", body(1, 3<<20), absent), objstore.ErrTransient)
		if err := s.Put(t.Context(), "k", body(1, 3<<20), absent); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("412_on_our_own_object", func(t *testing.T) {
		s := through(t, p, srv)
		first := true
		p.setFault(func(w http.ResponseWriter, r *http.Request) bool {
			if !first {
				return false
			}
			if r.Method == http.MethodHead {
				first = false
				reset(w)
				return true
			}
			p.loseAnswer(w, r)
			return true
		})
		retrying := objstore.WithRetry(s, objstore.RetryOptions{Base: time.Millisecond})
		if err := retrying.Put(t.Context(), "k", body(1, 1000), absent); err != nil {
			t.Fatal(err)
		}
		if n := p.count("PUT"); n != 2 {
			t.Errorf("%d PUTs", n)
		}
	})
	t.Run("412_and_gone", func(t *testing.T) {
		s := through(t, p, srv)
		p.setFault(once("PUT", says(412, "PreconditionFailed")))
		wantErr(t, s.Put(t.Context(), "k", body(1, 1000), absent), objstore.ErrTransient)
	})
	t.Run("501_on_a_condition", func(t *testing.T) {
		s := through(t, p, srv)
		p.setFault(once("PUT", says(501, "NotImplemented")))
		wantErr(t, s.Put(t.Context(), "k", body(1, 1000), absent), objstore.ErrUnsupported)
	})
}

// answer sends an answer to a GET; a body shorter than length is cut by a reset.
func answer(status int, contentRange string, length int, send []byte) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		if contentRange != "" {
			w.Header().Set("Content-Range", contentRange)
		}
		w.Header().Set("Content-Length", fmt.Sprint(length))
		w.WriteHeader(status)
		w.Write(send)
		if len(send) < length {
			http.NewResponseController(w).Flush()
			reset(w)
		}
	}
}

// endsEarly sends half of 1,000 bytes and ends the connection in good order.
func endsEarly(head string, send []byte) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-1009/100000\r\n%s\r\n", head)
		c.Write(send)
		c.Close()
	}
}

type getFault struct {
	name  string
	fault func(http.ResponseWriter, *http.Request)
	want  error // nil: any
}

func getFaults(content []byte) []getFault {
	return []getFault{
		{"ended_early", endsEarly("Content-Length: 1000\r\n", content[10:500]), objstore.ErrShort},
		{"ended_early_without_length", endsEarly("Connection: close\r\n", content[10:500]), objstore.ErrShort},
		{"whole_object", answer(200, "", 100_000, content), objstore.ErrUnsupported},
		{"no_content_range", answer(206, "", 1000, content[10:1010]), objstore.ErrTransient},
		{"another_range", answer(206, "bytes 0-999/100000", 1000, content[:1000]), objstore.ErrTransient},
		{"shorter_range", answer(206, "bytes 10-508/100000", 499, content[10:509]), objstore.ErrTransient},
		{"another_length", answer(206, "bytes 10-1009/100000", 999, content[10:1009]), objstore.ErrTransient},
		{"end_of_the_object", answer(206, "bytes 10-508/509", 499, content[10:509]), objstore.ErrRange},
		{"cut", answer(206, "bytes 10-1009/100000", 1000, content[10:500]), nil},
		{"archived", says(403, "InvalidObjectState"), objstore.ErrUnsupported},
		{"throttled", says(503, "SlowDown"), objstore.ErrThrottled},
		{"broken", says(500, "InternalError"), objstore.ErrTransient},
		{"plain_404", answer(404, "", 9, []byte("not found")), objstore.ErrTransient},
		{"plain_403", answer(403, "", 9, []byte("forbidden")), objstore.ErrAuth},
		{"no_bucket", says(404, "NoSuchBucket"), objstore.ErrConfig},
	}
}

// TestGetFaults: no answer but the right one is taken for the range.
func TestGetFaults(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	if err := s.Put(t.Context(), "k", objstore.BytesBody(content), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range getFaults(content) {
		t.Run(c.name, func(t *testing.T) {
			p.setFault(once("GET", c.fault))
			got, err := read(t, s, "k", 10, 1000)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("%d bytes, %v; want %v", len(got), err, c.want)
			}
			if errors.Is(err, objstore.ErrNotFound) {
				t.Fatalf("taken for missing: %v", err)
			}
			if !objstore.Retryable(err) {
				return
			}
			p.setFault(once("GET", c.fault))
			retrying := objstore.WithRetry(s, objstore.RetryOptions{Base: time.Millisecond, Throttle: time.Millisecond})
			got, err = read(t, retrying, "k", 10, 1000)
			if err != nil || !bytes.Equal(got, content[10:1010]) {
				t.Fatalf("with retries: %d bytes, %v", len(got), err)
			}
		})
	}
	t.Run("stalled", func(t *testing.T) {
		s.SetStall(50 * time.Millisecond)
		release := make(chan struct{})
		p.setFault(once("GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 10-1009/100000")
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(206)
			w.Write(content[10:20])
			http.NewResponseController(w).Flush()
			<-release
		}))
		got, err := read(t, s, "k", 10, 1000)
		close(release)
		if !errors.Is(err, objstore.ErrTransient) || len(got) != 10 {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	})
}

// TestHeadFaults: only a GET that says NoSuchKey proves that a key is missing.
func TestHeadFaults(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	if err := s.Put(t.Context(), "k", body(1, 10), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "empty", body(1, 0), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	head := func(status int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for _, c := range []struct {
		name, key string
		status    int
		want      error
	}{
		{"404_but_there", "k", 404, objstore.ErrTransient},
		{"404_but_there_and_empty", "empty", 404, objstore.ErrTransient},
		{"404_confirmed", "missing", 404, objstore.ErrNotFound},
		{"403_and_missing", "missing", 403, objstore.ErrNotFound},
		{"403_but_there", "k", 403, objstore.ErrAuth},
		{"503", "k", 503, objstore.ErrTransient},
		{"301", "k", 301, objstore.ErrConfig},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.setFault(once("HEAD", head(c.status)))
			_, err := s.Head(t.Context(), c.key)
			wantErr(t, err, c.want)
		})
	}
	for _, code := range []string{"NoSuchBucket", "AccessDenied", "InvalidAccessKeyId", "Unheard"} {
		t.Run("404_then_"+code, func(t *testing.T) {
			p.setFault(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodHead {
					w.WriteHeader(404)
				} else {
					says(404, code)(w, r)
				}
				return true
			})
			if _, err := s.Head(t.Context(), "k"); err == nil || errors.Is(err, objstore.ErrNotFound) {
				t.Fatalf("%v", err)
			}
		})
	}
}

func TestRetryAfterHeader(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	p.setFault(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Retry-After", "17")
		says(503, "SlowDown")(w, r)
		return true
	})
	_, err := s.List(t.Context(), "", "")
	if !errors.Is(err, objstore.ErrThrottled) || objstore.RetryAfter(err) != 17*time.Second {
		t.Fatalf("%v, come back after %v", err, objstore.RetryAfter(err))
	}
}

// TestListFaults: keys that a store should not have shown are left out.
func TestListFaults(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	listing := func(keys ...string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			var b strings.Builder
			for _, k := range keys {
				fmt.Fprintf(&b, "<Contents><Key>%s</Key><Size>1</Size></Contents>", k)
			}
			fmt.Fprintf(w, "<ListBucketResult><IsTruncated>false</IsTruncated>%s</ListBucketResult>", b.String())
		}
	}
	p.setFault(always("GET", listing("a/1", "a/2", "a/3", "b/1")))
	page, err := s.List(t.Context(), "a/", "a/1")
	if err != nil || len(page.Objects) != 2 || page.Objects[0].Key != "a/2" {
		t.Errorf("%+v, %v", page, err)
	}
	p.setFault(always("GET", listing("a/2", "a/1")))
	_, err = s.List(t.Context(), "", "")
	wantErr(t, err, objstore.ErrUnsupported)
	p.setFault(always("GET", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")
	}))
	_, err = s.List(t.Context(), "", "")
	wantErr(t, err, objstore.ErrTransient)
}

// TestOutage: a server that goes away and comes back.
func TestOutage(t *testing.T) {
	srv := s3test.Start(t)
	s := open(t, config(srv, srv.Bucket(t)))
	if err := s.Put(t.Context(), "k", body(1, 10), absent); err != nil {
		t.Fatal(err)
	}
	if err := srv.Stop(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Head(t.Context(), "k")
	wantErr(t, err, objstore.ErrTransient)
	wantErr(t, s.Put(t.Context(), "l", body(1, 10), absent), objstore.ErrTransient)
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	retrying := objstore.WithRetry(s, objstore.RetryOptions{Base: time.Millisecond})
	if _, err := retrying.Head(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
}

// TestTooLarge: a limit of the store's, or of a proxy before it, is no matter of
// trying again.
func TestTooLarge(t *testing.T) {
	srv := s3test.Start(t)
	p := startProxy(t, srv)
	s := through(t, p, srv)
	for name, fault := range map[string]func(http.ResponseWriter, *http.Request){
		"the store's": says(400, "EntityTooLarge"), "a proxy's": answer(413, "", 9, []byte("too large")),
	} {
		p.setFault(always("PUT", fault))
		err := s.Put(t.Context(), "k", objstore.BytesBody([]byte("v")), objstore.PutOptions{})
		if !errors.Is(err, objstore.ErrTooLarge) || objstore.Retryable(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

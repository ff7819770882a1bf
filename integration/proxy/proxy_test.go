package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const body = 100 << 10

// world is a server that keeps what is put to it, a proxy before it, and a client with connections of its own.
type world struct {
	t      *testing.T
	p      *Proxy
	client *http.Client

	mu   sync.Mutex
	kept map[string]int // bytes by path
	gate chan struct{}  // if not nil, an answer waits for it
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, kept: map[string]int{}}
	upstream := httptest.NewServer(w)
	t.Cleanup(upstream.Close)
	p, err := Start(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.p = p
	pool := &http.Transport{}
	w.client = &http.Client{Transport: pool, Timeout: 20 * time.Second}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		pool.CloseIdleConnections()
	})
	return w
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	w.mu.Lock()
	gate := w.gate
	if r.Method == http.MethodPut && err == nil {
		w.kept[r.URL.Path] = len(b)
	}
	w.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if want := strings.TrimPrefix(w.p.Endpoint, "http://"); r.Host != want {
		http.Error(rw, "host "+r.Host, http.StatusForbidden)
		return
	}
	if r.Method == http.MethodGet {
		rw.Header().Set("Content-Length", fmt.Sprint(body))
		_, _ = rw.Write(make([]byte, body))
	}
}

func (w *world) has(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept[path] == body
}

func (w *world) set(m Mode) {
	w.t.Helper()
	if err := w.p.Set(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

// send returns the status and how many bytes of the answer came.
func (w *world) send(ctx context.Context, method, path string) (int, int64, error) {
	var content io.Reader
	if method == http.MethodPut {
		content = strings.NewReader(strings.Repeat("x", body))
	}
	r, err := http.NewRequestWithContext(ctx, method, w.p.Endpoint+path, content)
	if err != nil {
		w.t.Fatal(err)
	}
	answer, err := w.client.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	n, err := io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, n, err
}

// TestModes sends a PUT and a GET in every mode, and each time finds the proxy working again afterwards.
func TestModes(t *testing.T) {
	for _, c := range []struct {
		mode   Mode
		put    int   // its status; 0: an error
		keeps  bool  // the server has it
		get    int   // its status; 0: an error
		bytes  int64 // of the GET's answer
		counts int   // requests that ended with the GET's status
	}{
		{mode: Pass, put: 200, keeps: true, get: 200, bytes: body, counts: 2},
		{mode: Refuse},
		{mode: SlowDown, put: 503, get: 503, bytes: 80, counts: 2},
		{mode: Slow, put: 200, keeps: true, get: 200, bytes: body, counts: 2},
		{mode: Cut, bytes: body / 2, counts: 2},
		{mode: LostAnswer, keeps: true, counts: 2},
	} {
		t.Run(c.mode.String(), func(t *testing.T) {
			w := newWorld(t)
			w.set(c.mode)
			if status, _, err := w.send(t.Context(), "PUT", "/a"); status != c.put || (c.put == 0) != (err != nil) {
				t.Errorf("PUT: %d, %v", status, err)
			}
			status, n, err := w.send(t.Context(), "GET", "/a")
			if (c.get == 0) != (err != nil) || n != c.bytes || err == nil && status != c.get {
				t.Errorf("GET: %d, %d bytes, %v", status, n, err)
			}
			if refused := errors.Is(err, syscall.ECONNREFUSED); refused != (c.mode == Refuse) {
				t.Errorf("GET: %v", err)
			}
			if w.has("/a") != c.keeps {
				t.Errorf("the server keeps it: %v", !c.keeps)
			}
			w.set(Pass)
			if status, _, err := w.send(t.Context(), "PUT", "/b"); err != nil || status != 200 || !w.has("/b") {
				t.Errorf("PUT afterwards: %d, %v", status, err)
			}
			w.set(Pass) // a request has ended a moment after its answer
			if n := len(w.in(c.mode, c.get)); n != c.counts && c.mode != Pass {
				t.Errorf("%d requests of %v", n, w.p.Requests())
			}
			if w.p.Count("PUT", 200) < 1 || w.p.Count("HEAD", 200) != 0 {
				t.Errorf("counts of %v", w.p.Requests())
			}
		})
	}
}

func (w *world) in(m Mode, status int) (found []Request) {
	for _, r := range w.p.Requests() {
		if r.Mode == m && r.Status == status {
			found = append(found, r)
		}
	}
	return found
}

// TestHang shows that nobody is answered, before and after the mode changes.
func TestHang(t *testing.T) {
	w := newWorld(t)
	w.set(Hang)
	for _, method := range []string{"PUT", "GET"} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, _, err := w.send(ctx, method, "/a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", method, err)
		}
	}
	w.hangs(0)
	hung := make(chan error, 1)
	go func() {
		_, _, err := w.send(context.Background(), "GET", "/hung")
		hung <- err
	}()
	w.hangs(1)
	w.set(Pass)
	if status, _, err := w.send(t.Context(), "GET", "/a"); status != 200 || err != nil {
		t.Errorf("GET afterwards: %d, %v", status, err)
	}
	select {
	case err := <-hung:
		t.Errorf("what hung was answered: %v", err)
	default:
	}
	w.set(Refuse) // ends the connection
	if err := <-hung; err == nil {
		t.Error("what hung was answered")
	}
	if len(w.in(Hang, 0)) == 0 || w.has("/a") {
		t.Errorf("requests: %v", w.p.Requests())
	}
}

// hangs waits until n requests hang.
func (w *world) hangs(n int64) {
	w.t.Helper()
	for w.p.hanging.Load() != n {
		if w.t.Context().Err() != nil {
			w.t.Fatal("the test has ended")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSetWaits shows that nothing of the old mode reaches the server after Set.
func TestSetWaits(t *testing.T) {
	w := newWorld(t)
	w.gate = make(chan struct{})
	answered := make(chan int, 1)
	go func() {
		status, _, _ := w.send(context.Background(), "PUT", "/a")
		answered <- status
	}()
	for !w.has("/a") {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.p.Set(ctx, SlowDown); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Set while a request is under way: %v", err)
	}
	close(w.gate)
	w.set(SlowDown)
	if status := <-answered; status != 200 {
		t.Errorf("the request that came before: %d", status)
	}
}

// TestBandwidth shows that it bounds both directions together: what fits at once goes at once, and the rest takes its time.
func TestBandwidth(t *testing.T) {
	w := newWorld(t)
	w.p.Bandwidth(1)
	w.set(Slow)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, n, err := w.send(ctx, "GET", "/a"); !errors.Is(err, context.DeadlineExceeded) || n > piece {
		t.Errorf("%d bytes, %v", n, err)
	}
	w.p.Bandwidth(1 << 30)
	if _, n, err := w.send(t.Context(), "GET", "/a"); err != nil || n != body {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// Package proxy stands between tierfs and an S3 server and fails as stores do: it refuses, hangs, asks to slow down, is slow, cuts
// bodies, and loses answers.
//
// What it does is switched at run time. It keeps its port while it refuses connections, forwards a request as it was signed, and
// counts every request by what became of it. Close leaves no goroutine and no connection.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Mode is what is done with requests.
type Mode int

const (
	// Pass forwards.
	Pass Mode = iota
	// Refuse refuses connections, and ends those that are there.
	Refuse
	// Hang takes whole requests and answers none of them, not even when the mode changes: a connection that hangs stays so.
	Hang
	// SlowDown answers 503 SlowDown.
	SlowDown
	// Slow forwards with a latency, and all bodies together, of both directions, share a bandwidth.
	Slow
	// Cut ends the connection in the middle of a request's body, or of an answer's where the request has none. What is short passes
	// whole, so that who goes on where he was gets everything in the end.
	Cut
	// LostAnswer forwards and ends the connection instead of answering.
	LostAnswer
)

var names = map[Mode]string{
	Pass: "pass", Refuse: "refuse", Hang: "hang", SlowDown: "503", Slow: "slow", Cut: "cut", LostAnswer: "lost answer",
}

// String is a short name.
func (m Mode) String() string { return names[m] }

// Sizes and times.
const (
	latency   = 200 * time.Millisecond // at first
	bandwidth = 256 << 10              // bytes per second, at first
	piece     = 16 << 10               // that are let through at once
	short     = 4 << 10                // bytes that are not cut
)

// Request is one request that has ended. Connections that were refused are none.
type Request struct {
	Method, Path string
	Mode         Mode // when it came
	Status       int  // 0: it got no answer, or not all of it
}

// Proxy forwards to one server. Its methods may be called in parallel, but for Close.
type Proxy struct {
	Endpoint string // http://127.0.0.1:port, the same for all its life

	port    *port
	forward *httputil.ReverseProxy
	pool    *http.Transport
	limiter *rate.Limiter
	ctx     context.Context // ends with the proxy
	cancel  context.CancelFunc
	conns   sync.WaitGroup
	hanging atomic.Int64 // requests
	latency atomic.Int64 // a time.Duration

	mu     sync.Mutex // guards what follows
	mode   Mode
	server *server // nil while connections are refused
	done   []Request
	now    *era
	old    []*era // of which requests may still be under way
}

// Start starts a proxy before the server at a URL such as http://127.0.0.1:9000, in mode Pass. Close it.
func Start(upstream string) (*Proxy, error) {
	u, err := url.Parse(upstream)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	reserved, err := reserve()
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{
		Endpoint: "http://" + reserved.addr,
		port:     reserved,
		pool:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
		limiter:  rate.NewLimiter(bandwidth, piece),
		now:      &era{idle: make(chan struct{})},
	}
	p.Latency(latency)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u)
			r.Out.Host = r.In.Host // it is signed
		},
		Transport: p.pool, FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error { return p.answer(r) },
		ErrorLog:       log.New(io.Discard, "", 0), // cuts are no news
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	if err := p.Set(context.Background(), Pass); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// era is the time between two changes of the mode. Its fields are guarded by the proxy's mu.
type era struct {
	busy int           // requests of that time under way, but for those that hang
	over bool          // no more will come
	idle chan struct{} // closed when it is over and none is under way
}

// left is called when a request has ended or the era is over.
func (e *era) left() {
	if e.done() {
		close(e.idle)
	}
}

// Bandwidth changes how many bytes per second go through in mode Slow: 256 KiB at first, and 0 for as many as there are.
func (p *Proxy) Bandwidth(bytes int) {
	limit := rate.Limit(bytes)
	if bytes == 0 {
		limit = rate.Inf
	}
	p.limiter.SetLimit(limit)
}

// Latency changes how long each request waits in mode Slow before it is forwarded: 200 ms at first.
func (p *Proxy) Latency(d time.Duration) { p.latency.Store(int64(d)) }

// done reports whether all of the era is over.
func (e *era) done() bool { return e.over && e.busy == 0 }

// Set changes what is done with requests from now on, and returns when those that came before have ended, but for what hangs: the
// server then sees no more of them.
func (p *Proxy) Set(ctx context.Context, m Mode) error {
	p.mu.Lock()
	last := p.server
	p.mode = m
	if m == Refuse {
		p.server = nil
	}
	p.now.over = true
	p.now.left()
	p.old = append(slices.DeleteFunc(p.old, (*era).done), p.now)
	p.now = &era{idle: make(chan struct{})}
	old := slices.Clone(p.old)
	p.mu.Unlock()
	if m == Refuse {
		last.close() // and the requests end with their connections
	} else if err := p.listen(); err != nil {
		return err
	}
	for _, e := range old {
		select {
		case <-e.idle:
		case <-ctx.Done():
			return fmt.Errorf("requests are still under way: %w", context.Cause(ctx))
		}
	}
	return nil
}

func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return nil
	}
	s, err := serve(p.port, p, &p.conns)
	p.server = s
	return err
}

// Close ends all connections and waits for whatever served them.
func (p *Proxy) Close() error {
	p.cancel()
	p.mu.Lock()
	s := p.server
	p.server = nil
	p.mu.Unlock()
	s.close()
	p.conns.Wait()
	p.pool.CloseIdleConnections()
	return p.port.close()
}

// Requests are all that have ended so far, in the order of their ends.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Request(nil), p.done...)
}

// Count is how many requests of a method (any: "") have ended with a status.
func (p *Proxy) Count(method string, status int) int {
	n := 0
	for _, r := range p.Requests() {
		if (method == "" || r.Method == method) && r.Status == status {
			n++
		}
	}
	return n
}

type modeKey struct{}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	m := p.mode
	now := p.now
	if m != Hang {
		now.busy++
	}
	p.mu.Unlock()
	seen := &recorder{ResponseWriter: w}
	defer func() { p.ended(Request{r.Method, r.URL.Path, m, seen.status}, now) }()
	defer func() { // http.ErrAbortHandler: the answer was not completed
		if failure := recover(); failure != nil {
			seen.status = 0
			panic(failure)
		}
	}()
	p.handle(seen, r.WithContext(context.WithValue(r.Context(), modeKey{}, m)), m)
}

func (p *Proxy) ended(r Request, of *era) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = append(p.done, r)
	if r.Mode != Hang {
		of.busy--
		of.left()
	}
}

func (p *Proxy) handle(w *recorder, r *http.Request, m Mode) {
	switch m {
	case Hang:
		p.hanging.Add(1)
		defer p.hanging.Add(-1)
		_, _ = io.Copy(io.Discard, r.Body) // how it ends does not matter: nobody is answered
		select {
		case <-r.Context().Done():
		case <-p.ctx.Done():
		}
		panic(http.ErrAbortHandler)
	case SlowDown:
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>") // or the client is gone
	case Slow:
		if !p.sleep(r.Context(), time.Duration(p.latency.Load())) {
			panic(http.ErrAbortHandler)
		}
		r.Body = &slowBody{r.Body, r.Context(), p}
		p.forward.ServeHTTP(w, r)
	case Cut:
		if r.ContentLength > short {
			_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
			panic(http.ErrAbortHandler)
		}
		p.forward.ServeHTTP(w, r)
	case LostAnswer:
		p.forward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	default:
		p.forward.ServeHTTP(w, r)
	}
}

// answer changes the body of a forwarded request's answer.
func (p *Proxy) answer(r *http.Response) error {
	switch r.Request.Context().Value(modeKey{}) {
	case Slow:
		r.Body = &slowBody{r.Body, r.Request.Context(), p}
	case Cut:
		if r.ContentLength > short {
			r.Body = &cutBody{r.Body, r.ContentLength / 2}
		}
	}
	return nil
}

// sleep reports whether the time has passed, and nothing ended meanwhile.
func (p *Proxy) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
	return false
}

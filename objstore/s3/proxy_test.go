package s3_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/tierfs/tierfs/objstore/s3"
	"github.com/tierfs/tierfs/objstore/s3/s3test"
)

// proxy stands before the server. What is done with a request is the test's.
type proxy struct {
	*httptest.Server
	forward http.Handler

	mu       sync.Mutex
	fault    func(w http.ResponseWriter, r *http.Request) bool // true: it answered
	requests []string                                          // method, a space, and the path and query
	conns    map[string]http.ConnState
	closed   chan string // addresses of connections that ended
}

func startProxy(t testing.TB, srv *s3test.Server) *proxy {
	u, err := url.Parse(srv.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	pool := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	p := &proxy{conns: map[string]http.ConnState{}, closed: make(chan string, 100)}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u)
			r.Out.Host = r.In.Host // it is signed
		},
		Transport: pool, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { reset(w) },
	}
	p.Server = httptest.NewUnstartedServer(p)
	p.Config.ConnState = p.connState
	p.Start()
	t.Cleanup(func() { p.CloseClientConnections(); p.Close() })
	return p
}

func (p *proxy) connState(c net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c.RemoteAddr().String()] = state
	if state == http.StateClosed {
		p.closed <- c.RemoteAddr().String()
	}
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, r.Method+" "+r.URL.RequestURI())
	fault := p.fault
	p.mu.Unlock()
	if fault == nil || !fault(w, r) {
		p.forward.ServeHTTP(w, r)
	}
}

func (p *proxy) setFault(f func(w http.ResponseWriter, r *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	p.requests = nil
}

// count returns how many requests with method there were since setFault.
func (p *proxy) count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, r := range p.requests {
		if bytes.HasPrefix([]byte(r), []byte(method+" ")) {
			n++
		}
	}
	return n
}

// once does f to the first request with method.
func once(method string, f func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	var mu sync.Mutex
	done := false
	return func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if done || r.Method != method {
			return false
		}
		done = true
		f(w, r)
		return true
	}
}

// always does f to every request with method.
func always(method string, f func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == method {
			f(w, r)
		}
		return r.Method == method
	}
}

// reset ends the connection without an answer.
func reset(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

// says answers with an S3 error.
func says(status int, code string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>said by the test</Message></Error>", code)
	}
}

// loseAnswer lets the server do its work and then resets the connection.
func (p *proxy) loseAnswer(w http.ResponseWriter, r *http.Request) {
	p.forward.ServeHTTP(httptest.NewRecorder(), r)
	reset(w)
}

// through is a store that reaches the server by way of p.
func through(t testing.TB, p *proxy, srv *s3test.Server, change ...func(*s3.Config)) *s3.Store {
	cfg := config(srv, srv.Bucket(t))
	cfg.Endpoint = p.URL
	for _, f := range change {
		f(&cfg)
	}
	return open(t, cfg)
}

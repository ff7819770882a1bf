package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"
)

// delay stands between tierfs and an S3 server and holds each GET for a while before it forwards it. The proxy of the tests also
// limits the bandwidth, which is another thing than a latency.
type delay struct {
	endpoint string
	latency  atomic.Int64 // a time.Duration
	server   *http.Server
	ended    chan error
}

func startDelay(upstream string) (*delay, error) {
	to, err := url.Parse(upstream)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &delay{endpoint: "http://" + l.Addr().String(), ended: make(chan error, 1)}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
		Transport:    &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	d.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			select {
			case <-time.After(time.Duration(d.latency.Load())):
			case <-r.Context().Done():
				return
			}
		}
		forward.ServeHTTP(w, r)
	})}
	go func() { d.ended <- d.server.Serve(l) }()
	return d, nil
}

func (d *delay) close() error {
	err := d.server.Shutdown(context.Background())
	if served := <-d.ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

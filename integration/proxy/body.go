package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// slowBody takes its turn in the proxy's bandwidth for every piece.
type slowBody struct {
	io.ReadCloser
	ctx context.Context
	p   *Proxy
}

func (b *slowBody) Read(buf []byte) (int, error) {
	n, err := b.ReadCloser.Read(buf[:min(len(buf), piece)])
	if n > 0 {
		if r := b.p.limiter.ReserveN(time.Now(), n); !b.p.sleep(b.ctx, r.Delay()) {
			return n, context.Canceled
		}
	}
	return n, err
}

// errCut ends a body that has been cut.
var errCut = errors.New("cut")

// cutBody fails after a number of bytes.
type cutBody struct {
	io.ReadCloser
	left int64
}

func (b *cutBody) Read(buf []byte) (int, error) {
	if b.left == 0 {
		return 0, errCut
	}
	n, err := b.ReadCloser.Read(buf[:min(int64(len(buf)), b.left)])
	b.left -= int64(n)
	return n, err
}

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if status >= http.StatusOK { // others come before the answer
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

package s3test

import (
	"net/http"

	"go.uber.org/goleak"
)

// oneShot is an HTTP client that keeps no connections, and so no goroutines.
func oneShot() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// Leftovers are the goroutines that the server's HTTP library leaves for some
// seconds, or for ever, after a Stop: goleak is not to count them.
func Leftovers() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	}
}

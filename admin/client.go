package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"

	"github.com/tierfs/tierfs/mountinfo"
)

// Client talks to the daemon of one mount. Methods may be called in parallel.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of a volume's daemon; nothing is contacted yet.
func NewClient(runDir, volume string) *Client {
	socket := SocketPath(runDir, volume)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Connect finds the daemon that serves path, and the path below its mount point.
func Connect(runDir, path string) (*Client, string, error) {
	m, below, err := mountinfo.Find(path)
	if err != nil {
		return nil, "", err
	}
	return NewClient(runDir, m.Source), below, nil
}

// Status asks for the status.
func (c *Client) Status(ctx context.Context, topics bool) (Status, error) {
	var s Status
	query := ""
	if topics {
		query = "?topics=true"
	}
	err := c.do(ctx, http.MethodGet, "/status"+query, nil, &s)
	return s, err
}

// Segments lists a partition by its path below the mount point.
func (c *Client) Segments(ctx context.Context, partition string) ([]Segment, error) {
	var list []Segment
	err := c.do(ctx, http.MethodGet, "/segments?partition="+url.QueryEscape(partition), nil, &list)
	return list, err
}

// Pause stops the background, or lets it go on.
func (c *Client) Pause(ctx context.Context, paused bool) error {
	if paused {
		return c.do(ctx, http.MethodPost, "/pause", nil, nil)
	}
	return c.do(ctx, http.MethodPost, "/resume", nil, nil)
}

// Unmount unmounts and returns when the daemon has ended, and its holder, if that is
// a process of tierfs.
func (c *Client) Unmount(ctx context.Context) error {
	s, err := c.Status(ctx, false)
	if err != nil {
		return err
	}
	pids := []int{s.PID}
	if s.Holder.Kind == "process" {
		pids = append(pids, s.Holder.PID)
	}
	var ends []int
	for _, pid := range pids {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return fmt.Errorf("watch the daemon, process %d: %w", pid, err)
		}
		defer unix.Close(pidfd)
		ends = append(ends, pidfd)
	}
	if err := c.do(ctx, http.MethodPost, "/unmount", nil, nil); err != nil {
		return err
	}
	for _, pidfd := range ends {
		if err := waitExit(ctx, pidfd); err != nil {
			return err
		}
	}
	return nil
}

// Upgrade asks the daemon to hand the mount over to another binary, and returns when
// it is about to. Whether that binary serves is seen by the status.
func (c *Client) Upgrade(ctx context.Context, what UpgradeRequest) error {
	resp, err := c.post(ctx, "/upgrade", what)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for {
		var l Line
		switch err := lines.Decode(&l); {
		case err != nil: // the process is another binary by now
			return nil
		case l.Error != "":
			return errors.New(l.Error)
		}
	}
}

// waitExit returns when the process of a pidfd has ended.
func waitExit(ctx context.Context, pidfd int) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // an eventfd takes this always
	})
	defer func() {
		if !stop() {
			<-woken
		}
		_ = unix.Close(wake)
	}()
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the daemon's end: %w", err)
		case fds[0].Revents != 0:
			return nil
		default:
			return ctx.Err()
		}
	}
}

// Evict asks for an eviction and calls progress for each of its steps.
func (c *Client) Evict(ctx context.Context, what EvictRequest, progress func(EvictStep)) (EvictResult, error) {
	last, err := c.stream(ctx, "/evict", what, func(l Line) {
		if l.Step != nil {
			progress(*l.Step)
		}
	})
	if err != nil {
		return EvictResult{}, err
	}
	return *last.Evicted, nil
}

// Check asks for a check of records and objects.
func (c *Client) Check(ctx context.Context, what CheckRequest, report func(Finding), progress func(Progress)) (CheckResult, error) {
	last, err := c.stream(ctx, "/check", what, func(l Line) {
		if l.Finding != nil {
			report(*l.Finding)
		}
		if l.Progress != nil {
			progress(*l.Progress)
		}
	})
	if err != nil {
		return CheckResult{}, err
	}
	return *last.Checked, nil
}

// stream asks for something, and calls each for every line of the answer but the
// last, which it returns.
func (c *Client) stream(ctx context.Context, path string, what any, each func(Line)) (Line, error) {
	resp, err := c.post(ctx, path, what)
	if err != nil {
		return Line{}, err
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for {
		var l Line
		switch err := lines.Decode(&l); {
		case err != nil:
			return Line{}, fmt.Errorf("%s: the daemon went away: %w", c.socket, err)
		case l.Error != "":
			return Line{}, errors.New(l.Error)
		case l.Evicted != nil || l.Checked != nil:
			return l, nil
		}
		each(l)
	}
}

// do sends a request and decodes the answer into result, unless that is nil.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, result any) error {
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if result == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(result); err != nil {
		return fmt.Errorf("%s: answer of the daemon: %w", c.socket, err)
	}
	return nil
}

// post sends what is asked for.
func (c *Client) post(ctx context.Context, path string, what any) (*http.Response, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, http.MethodPost, path, bytes.NewReader(body))
}

// send returns the answer if its status is good.
func (c *Client) send(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://tierfs"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%s: no daemon answers; the mount is dead, mount it again to replace it", c.socket)
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%s: permission denied; run this as root", c.socket)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.socket, err)
	case resp.StatusCode < 300:
		return resp, nil
	}
	defer resp.Body.Close()
	var e errorBody
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || e.Error == "" {
		return nil, fmt.Errorf("%s: the daemon answered %s", c.socket, resp.Status)
	}
	return nil, statusError(resp.StatusCode, e.Error)
}

// RemoteError is the daemon's own error.
type RemoteError struct {
	Message string
	kind    error
}

func (e *RemoteError) Error() string { return e.Message }

// Unwrap is ErrNotFound or ErrBusy where it is one of them.
func (e *RemoteError) Unwrap() error { return e.kind }

func statusError(status int, message string) error {
	e := &RemoteError{Message: message}
	switch status {
	case http.StatusNotFound:
		e.kind = ErrNotFound
	case http.StatusConflict:
		e.kind = ErrBusy
	}
	return e
}

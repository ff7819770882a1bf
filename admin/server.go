package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// Options of a Server.
type Options struct {
	Daemon Daemon
	RunDir string // RunDir, but for tests
	Volume string // id, which names the socket
	// Control and Monitoring are the listening sockets of a predecessor, which go on
	// being used; Listen closes these descriptors of them. nil: new ones.
	Control, Monitoring *os.File
	Listen              string // address of the HTTP listener; "" = none
	Metrics             prometheus.Gatherer
	// Ready says whether the mount serves reads; it is asked by /readyz.
	Ready func() error
	Log   *slog.Logger
}

// Server answers on the control socket and the HTTP listener.
type Server struct {
	o          Options
	control    *net.UnixListener
	monitoring net.Listener // nil without an HTTP listener
	servers    []*http.Server
	group      errgroup.Group
	cancel     context.CancelFunc // ends long requests; nil before Serve
}

// Listen opens the sockets, which is what can fail. Who connects waits until Serve.
func Listen(o Options) (*Server, error) {
	s := &Server{o: o}
	var err error
	if s.control, err = listenControl(o); err != nil {
		return nil, err
	}
	if o.Listen == "" {
		return s, nil
	}
	if s.monitoring, err = listenMonitoring(o); err != nil {
		return nil, errors.Join(fmt.Errorf("admin.listen = %q: %w; choose another address", o.Listen, err), s.control.Close())
	}
	return s, nil
}

func listenMonitoring(o Options) (net.Listener, error) {
	if o.Monitoring == nil {
		return net.Listen("tcp", o.Listen)
	}
	l, err := net.FileListener(o.Monitoring)
	return l, errors.Join(err, o.Monitoring.Close())
}

func listenControl(o Options) (*net.UnixListener, error) {
	if o.Control != nil {
		return inheritSocket(o.Control)
	}
	return listenSocket(o.RunDir, o.Volume)
}

// Lend lends the descriptors of the listening sockets to use, which may keep duplicates
// for a successor; monitoring only if there is an HTTP listener. (A file of one would not
// do: its Fd makes the socket a blocking one.)
func (s *Server) Lend(control, monitoring func(fd int) error) error {
	err := lend(s.control, control)
	if tcp, ok := s.monitoring.(syscall.Conn); ok {
		err = errors.Join(err, lend(tcp, monitoring))
	}
	return err
}

func lend(c syscall.Conn, use func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = use(int(fd)) }); e != nil {
		return e
	}
	return err
}

// Serve answers in the background until Close. It is called once at most, when
// every method of the Daemon can be.
func (s *Server) Serve() {
	base, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.serve(base, s.control, s.routes())
	if s.monitoring != nil {
		s.serve(base, s.monitoring, public(s.o))
	}
}

// Address is where the HTTP listener listens, "" without one.
func (s *Server) Address() string {
	if s.monitoring == nil {
		return ""
	}
	return s.monitoring.Addr().String()
}

func (s *Server) serve(base context.Context, l net.Listener, h http.Handler) {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	s.servers = append(s.servers, server)
	s.group.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("admin: %w", err)
		}
		return nil
	})
}

// closeGrace is how long Close lets answers under way go out.
const closeGrace = 5 * time.Second

// Close ends evictions that somebody waits for, lets other answers go out,
// removes the socket and waits for all of it.
func (s *Server) Close() error {
	if s.cancel == nil {
		return s.closeSockets()
	}
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	var errs []error
	for _, server := range s.servers {
		if err := server.Shutdown(ctx); err != nil {
			errs = append(errs, server.Close())
		}
	}
	return errors.Join(append(errs, s.group.Wait())...)
}

// closeSockets closes what nobody serves.
func (s *Server) closeSockets() error {
	err := s.control.Close()
	if s.monitoring != nil {
		err = errors.Join(err, s.monitoring.Close())
	}
	return err
}

// routes answers the commands of tierfs.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, s.o.Daemon.Status(r.URL.Query().Get("topics") == "true"))
	})
	mux.HandleFunc("GET /segments", func(w http.ResponseWriter, r *http.Request) {
		list, err := s.o.Daemon.Segments(r.URL.Query().Get("partition"))
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, list)
	})
	mux.HandleFunc("POST /pause", func(w http.ResponseWriter, _ *http.Request) {
		s.o.Daemon.Pause(true)
		writeJSON(w, struct{}{})
	})
	mux.HandleFunc("POST /resume", func(w http.ResponseWriter, _ *http.Request) {
		s.o.Daemon.Pause(false)
		writeJSON(w, struct{}{})
	})
	mux.HandleFunc("POST /unmount", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.o.Daemon.Unmount(); err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, struct{}{})
	})
	mux.HandleFunc("POST /upgrade", s.upgrade)
	mux.HandleFunc("POST /evict", s.evict)
	mux.HandleFunc("POST /check", s.check)
	return mux
}

// upgrade answers when the new binary may go ahead: the connection does not outlive it.
func (s *Server) upgrade(w http.ResponseWriter, r *http.Request) {
	var what UpgradeRequest
	if !decode(w, r, &what) {
		return
	}
	commit, err := s.o.Daemon.Upgrade(r.Context(), what)
	if err != nil {
		writeError(w, err)
		return
	}
	line := stream(w)
	line(Line{})
	if err := commit(); err != nil {
		line(Line{Error: err.Error()})
	}
}

// evict streams the steps and then the result.
func (s *Server) evict(w http.ResponseWriter, r *http.Request) {
	var what EvictRequest
	if !decode(w, r, &what) {
		return
	}
	line := stream(w)
	result, err := s.o.Daemon.Evict(r.Context(), what, func(step EvictStep) { line(Line{Step: &step}) })
	if err != nil {
		line(Line{Error: err.Error()})
		return
	}
	line(Line{Evicted: &result})
}

// check streams the findings and then the result.
func (s *Server) check(w http.ResponseWriter, r *http.Request) {
	var what CheckRequest
	if !decode(w, r, &what) {
		return
	}
	line := stream(w)
	result, err := s.o.Daemon.Check(r.Context(), what,
		func(f Finding) { line(Line{Finding: &f}) }, func(p Progress) { line(Line{Progress: &p}) })
	if err != nil {
		line(Line{Error: err.Error()})
		return
	}
	line(Line{Checked: &result})
}

// decode reads what is asked for, and answers if it cannot.
func decode(w http.ResponseWriter, r *http.Request, what any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(what)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}

// stream returns what sends one line at once. That the client is gone is seen
// by the request's context.
func stream(w http.ResponseWriter) func(Line) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	return func(l Line) {
		_ = out.Encode(l)
		_ = flush.Flush()
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
}

// errorBody is the body of an answer that is an error.
type errorBody struct {
	Error string `json:"error"`
}

func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, ErrBusy):
		status = http.StatusConflict
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(errorBody{err.Error()}) // an error means that the client is gone
}

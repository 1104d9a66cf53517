package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Files of the guest's kernel.
const (
	hostnameFile = "/proc/sys/kernel/hostname"
	bootFile     = "/proc/sys/kernel/random/boot_id"
)

// server is the guest server of one tenancy. Its connections are pairs in
// memory; nothing of it can be reached from the host but through Dial.
type server struct {
	tenancy *tenancy
	http    *http.Server
	conns   chan net.Conn
	// done is closed when the tree ends; programs heed it.
	done chan struct{}
	once sync.Once

	mu     sync.Mutex
	open   int // connections whose server end is open
	active sync.WaitGroup
	ended  bool
}

func serve(t *tenancy) *server {
	s := &server{tenancy: t, conns: make(chan net.Conn), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+proto.PathProbe, s.probe)
	mux.HandleFunc("GET "+proto.PathScreenshot, s.screenshot)
	mux.HandleFunc("POST "+proto.PathExecute, s.execute)
	mux.HandleFunc("POST "+proto.PathSetupExecute, s.execute)
	mux.HandleFunc("POST "+proto.PathCheck, s.check)
	mux.HandleFunc("POST "+proto.PathFile, s.file)
	mux.HandleFunc("POST "+proto.PathUpload, s.upload)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, http.StatusNotFound, "no such request") })
	s.http = &http.Server{
		ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !s.enter() {
				panic(http.ErrAbortHandler)
			}
			defer s.active.Done()
			mux.ServeHTTP(w, r)
		}),
	}
	s.http.SetKeepAlivesEnabled(false)
	s.active.Add(1)
	go func() {
		defer s.active.Done()
		s.http.Serve(s)
	}()
	return s
}

// enter counts a request in, unless the tree has ended.
func (s *server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.active.Add(1)
	return true
}

// stop ends listening, connections and programs, and waits for nobody.
func (s *server) stop() {
	s.once.Do(func() {
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		close(s.done)
		s.http.Close()
	})
}

// close stops and waits until nothing runs any more. nil is closed.
func (s *server) close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.stop()
	idle := make(chan struct{})
	go func() {
		s.active.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connections that the server has open. nil has none.
func (s *server) connections() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// connect makes a connection. ErrDead once the tree has ended.
func (s *server) connect(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.mu.Lock()
	s.open++ // established before anybody accepts it, as in a kernel
	s.mu.Unlock()
	conn := &counted{Conn: theirs, server: s}
	select {
	case s.conns <- conn:
		return client{ours}, nil
	case <-s.done:
		conn.Close()
		return nil, engine.ErrDead
	case <-ctx.Done():
		conn.Close()
		return nil, ctx.Err()
	}
}

// client is our end of a connection; it behaves like a socket where a pipe does
// not, once the other end is closed: deadlines can be set, and a write is EPIPE.
type client struct{ net.Conn }

func (c client) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, io.ErrClosedPipe) {
		err = syscall.EPIPE
	}
	return n, err
}

func (c client) SetDeadline(t time.Time) error      { return open(c.Conn.SetDeadline(t)) }
func (c client) SetReadDeadline(t time.Time) error  { return open(c.Conn.SetReadDeadline(t)) }
func (c client) SetWriteDeadline(t time.Time) error { return open(c.Conn.SetWriteDeadline(t)) }

func open(err error) error {
	if errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// counted is the server's end of a connection.
type counted struct {
	net.Conn
	server *server
	once   sync.Once
}

// Close counts first: who sees the end of the stream may dump.
func (c *counted) Close() error {
	c.once.Do(func() {
		c.server.mu.Lock()
		defer c.server.mu.Unlock()
		c.server.open--
	})
	return c.Conn.Close()
}

// Accept implements net.Listener.
func (s *server) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The tree's end closes it.
func (s *server) Close() error { return nil }

// Addr implements net.Listener.
func (s *server) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "unix"} }

// with runs f on the world, or gives the connection up if there is none any more.
func (s *server) with(f func(*world)) {
	s.tenancy.mu.Lock()
	defer s.tenancy.mu.Unlock()
	if s.tenancy.world == nil {
		panic(http.ErrAbortHandler)
	}
	f(s.tenancy.world)
}

func (s *server) probe(w http.ResponseWriter, r *http.Request) {
	t := s.tenancy
	if t.fault("never-ready") {
		fail(w, http.StatusServiceUnavailable, "starting")
		return
	}
	p := proto.Probe{Version: proto.Version, Pid: 1}
	s.with(func(in *world) {
		if !t.fault("counter-stopped") {
			in.Counter++
		}
		p.Live = bench.LiveState{Token: in.Token, Counter: bench.Int64(strconv.FormatUint(t.counter(), 10))}
		p.Mounts, p.Network, p.Hostname, p.ServerSHA256 = in.Mounts, in.Network, in.Hostname, in.Server
		if t.fault("hostname-stuck") {
			p.Hostname = "fake"
		}
		p.Services = append([]proto.ServiceState{}, in.Services...)
		p.Phase, p.Reason = in.phase()
		p.Screen = in.Screen
		p.Uptime = bench.Int64(strconv.FormatInt(int64(time.Since(t.since)), 10))
	})
	p.Clock = bench.Int64(strconv.FormatInt(time.Now().UnixNano(), 10))
	if r.URL.Query().Has(proto.SystemQuery) {
		p.System = t.system()
	}
	answer(w, http.StatusOK, p)
}

// phase is failed once a service has ended.
func (w *world) phase() (proto.Phase, string) {
	for _, s := range w.Services {
		if !s.Alive {
			return proto.PhaseFailed, "service " + s.Name + " ended: " + s.Exit
		}
	}
	return proto.PhaseRunning, ""
}

func (s *server) execute(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, message string) {
		answer(w, status, proto.ExecuteResponse{Status: proto.StatusError, Message: message})
	}
	var q proto.ExecuteRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		refuse(http.StatusBadRequest, err.Error())
		return
	}
	argv, err := command(q)
	if err != nil {
		refuse(http.StatusBadRequest, err.Error())
		return
	}
	phase, reason := proto.PhaseRunning, ""
	s.with(func(in *world) { phase, reason = in.phase() })
	if phase == proto.PhaseFailed {
		refuse(http.StatusServiceUnavailable, reason)
		return
	}
	limit := proto.DefaultExecuteTimeout
	if q.Timeout != nil {
		limit = time.Duration(*q.Timeout * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	p := program{server: s, ctx: ctx}
	code, err := p.run(argv)
	if errors.Is(err, errEnded) {
		panic(http.ErrAbortHandler)
	}
	a, status := p.response(code, err)
	answer(w, status, a)
}

// response is how a program ended, as an answer and its status.
func (p *program) response(code int, err error) (proto.ExecuteResponse, int) {
	out, errs := text(p.out), text(p.errs)
	a := proto.ExecuteResponse{Output: out.text, OutputBytes: out.bytes, Error: errs.text, ErrorBytes: errs.bytes, Truncated: out.cut || errs.cut}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		a.Status, a.Message, a.TimedOut = proto.StatusError, "the time was up", true
		return a, http.StatusInternalServerError
	case err != nil:
		a.Status, a.Message = proto.StatusError, err.Error()
		return a, http.StatusInternalServerError
	}
	a.Status, a.Returncode = proto.StatusSuccess, &code
	return a, http.StatusOK
}

// command is the request's list of words.
func command(q proto.ExecuteRequest) ([]string, error) {
	var list []string
	if err := json.Unmarshal(q.Command, &list); err != nil {
		var line string
		if err := json.Unmarshal(q.Command, &line); err != nil {
			return nil, errors.New("command is neither a list nor a text")
		}
		if list = strings.Fields(line); q.Shell {
			list = []string{"sh", "-c", line}
		}
	}
	if len(list) == 0 || list[0] == "" {
		return nil, errors.New("command is empty")
	}
	return list, nil
}

// output is what a program printed, as an answer carries it.
type output struct {
	text  string
	bytes []byte
	cut   bool
}

func text(b []byte) (o output) {
	if len(b) > proto.OutputLimit {
		b, o.cut = b[:proto.OutputLimit], true
	}
	if o.text = string(b); !utf8.ValidString(o.text) {
		o.text, o.bytes = strings.ToValidUTF8(o.text, "�"), b
	}
	return o
}

func (s *server) file(w http.ResponseWriter, r *http.Request) {
	name := r.PostFormValue("file_path")
	var f file
	found := false
	s.with(func(in *world) {
		switch f, found = in.files[in.path(name)]; name {
		case hostnameFile:
			f, found = file{Data: []byte(in.Hostname + "\n")}, true
		case bootFile:
			f, found = file{Data: []byte("11111111-2222-3333-4444-555555555555\n")}, true
		}
	})
	if name == "" || !found || f.Directory {
		fail(w, http.StatusNotFound, os.ErrNotExist.Error())
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	send(w, http.StatusOK, f.Data)
}

func (s *server) upload(w http.ResponseWriter, r *http.Request) {
	name := r.FormValue("file_path")
	part, _, err := r.FormFile("file_data")
	if err != nil || name == "" {
		fail(w, http.StatusBadRequest, "file_path and file_data are needed")
		return
	}
	defer part.Close()
	data, err := io.ReadAll(part)
	mode := int64(0o644)
	if m := r.FormValue("mode"); err == nil && m != "" {
		mode, err = strconv.ParseInt(m, 8, 32)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	s.with(func(in *world) {
		p := in.path(name)
		if err = in.write(p, data, mode); err == nil {
			in.Uploaded = append(in.Uploaded, p)
		}
	})
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	send(w, http.StatusOK, []byte("File Uploaded"))
}

func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	send(w, status, b)
}

func fail(w http.ResponseWriter, status int, text string) {
	answer(w, status, proto.ErrorResponse{Error: text})
}

func send(w http.ResponseWriter, status int, b []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b)
}

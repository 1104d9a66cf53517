package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/drumsbench/drumsbench/engine/guest/proto"
)

const (
	headerLimit  = 16 << 10
	requestLimit = 4 << 20 // of a request that is no upload; the kernel takes 2 MiB of arguments
	uploadLimit  = 1 << 30
	// How long a client may take for its headers, and for the rest of a request.
	headerTime  = 10 * time.Second
	requestTime = 30 * time.Second
	uploadTime  = 10 * time.Minute
)

// server answers the requests that package proto describes.
type server struct {
	self  *self
	live  *live
	slot  *slot
	procs *processes
	who   *identity
}

// listen on loopback only, and with plain TCP: CRIU cannot dump an MPTCP socket.
func listen(port int) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen (is the loopback interface up?): %w", err)
	}
	return plainListener{l}, nil
}

// plainListener gives connections that cannot be closed for writing alone: so
// the end of the stream, as the client sees it, means that the server's
// descriptor is gone. The engine's client relies on it before a dump.
type plainListener struct{ net.Listener }

func (l plainListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

func (s *server) serve(l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+proto.PathProbe, s.probe)
	mux.HandleFunc("POST "+proto.PathExecute, s.execute)
	mux.HandleFunc("POST "+proto.PathSetupExecute, s.execute)
	mux.HandleFunc("POST "+proto.PathFile, s.file)
	mux.HandleFunc("POST "+proto.PathUpload, s.upload)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "no such request: "+r.Method+" "+r.URL.Path)
	})
	hs := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTime,
		MaxHeaderBytes:    headerLimit,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	hs.SetKeepAlivesEnabled(false)
	return hs.Serve(l)
}

func answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(http.ErrAbortHandler) // the client sees that there is no answer
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	w.Write(text)
}

func refuse(w http.ResponseWriter, status int, text string) {
	answer(w, status, proto.ErrorResponse{Error: text})
}

// bound limits size and time of a request's body. The time ends with the body:
// afterwards the connection is only watched for the client's going away.
func bound(w http.ResponseWriter, r *http.Request, size int64, limit time.Duration) (done func()) {
	r.Body = http.MaxBytesReader(w, r.Body, size)
	c := http.NewResponseController(w)
	c.SetReadDeadline(time.Now().Add(limit))
	return func() { c.SetReadDeadline(time.Time{}) }
}

func (s *server) probe(w http.ResponseWriter, _ *http.Request) {
	p, err := s.self.view()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	p.Phase, p.Reason, p.Services = s.slot.status()
	p.Live = s.live.state()
	answer(w, http.StatusOK, p)
}

func (s *server) execute(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, err error) {
		answer(w, status, proto.ExecuteResponse{Status: proto.StatusError, Message: err.Error()})
	}
	if phase, reason, _ := s.slot.status(); phase == proto.PhaseFailed {
		refuse(http.StatusServiceUnavailable, errors.New(reason))
		return
	}
	argv, timeout, err := s.command(w, r)
	if err != nil {
		refuse(http.StatusBadRequest, err)
		return
	}
	o, err := s.procs.run(r.Context(), s.who, argv, timeout)
	if errors.Is(err, errTree) {
		s.slot.fail(err.Error())
	}
	if err != nil {
		refuse(http.StatusInternalServerError, err)
		return
	}
	a := proto.ExecuteResponse{Status: proto.StatusSuccess, Truncated: o.stdout.truncated || o.stderr.truncated}
	a.Output, a.OutputBytes = o.stdout.text()
	a.Error, a.ErrorBytes = o.stderr.text()
	if o.timedOut {
		a.Status, a.TimedOut = proto.StatusError, true
		a.Message = fmt.Sprintf("command %q timed out after %g seconds, its processes were ended", argv, timeout.Seconds())
		answer(w, http.StatusInternalServerError, a)
		return
	}
	code := o.status.ExitStatus()
	if o.status.Signaled() {
		code = -int(o.status.Signal())
	}
	a.Returncode = &code
	answer(w, http.StatusOK, a)
}

// text gives an output as text, and as bytes where the text would not be exact.
func (c *capture) text() (string, []byte) {
	if utf8.Valid(c.kept) {
		return string(c.kept), nil
	}
	return string(c.kept), c.kept
}

// command reads an ExecuteRequest.
func (s *server) command(w http.ResponseWriter, r *http.Request) (argv []string, timeout time.Duration, err error) {
	done := bound(w, r, requestLimit, requestTime)
	body, err := io.ReadAll(r.Body)
	done()
	if err != nil {
		return nil, 0, fmt.Errorf("read request: %w", err)
	}
	var q proto.ExecuteRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, 0, fmt.Errorf("decode request: %w", err)
	}
	timeout = proto.DefaultExecuteTimeout
	if q.Timeout != nil {
		if !(*q.Timeout > 0 && *q.Timeout <= proto.MaxExecuteTimeout.Seconds()) {
			return nil, 0, fmt.Errorf("timeout is %g, want more than 0 and at most %g seconds", *q.Timeout, proto.MaxExecuteTimeout.Seconds())
		}
		timeout = time.Duration(*q.Timeout * float64(time.Second))
	}
	var text string
	switch list := json.Unmarshal(q.Command, &argv); {
	case list == nil:
	case json.Unmarshal(q.Command, &text) != nil:
		return nil, 0, fmt.Errorf("command is neither a text nor a list of texts")
	case q.Shell:
		argv = []string{text}
	default:
		if argv, err = splitWords(text); err != nil {
			return nil, 0, fmt.Errorf("split command: %w", err)
		}
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, 0, fmt.Errorf("command is empty")
	}
	for i, a := range argv {
		// The public server does so to a list in either mode, and never to a text for the shell.
		if !q.Shell || text == "" {
			argv[i] = s.who.expandHome(a)
		}
	}
	if q.Shell {
		argv = append([]string{"/bin/sh", "-c"}, argv...)
	}
	return argv, timeout, nil
}

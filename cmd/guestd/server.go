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
	"strings"
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
	// screen is nil where the guest has no display.
	screen *screen
	// machine is nil where the kernel is somebody else's.
	machine *machine
	// recorder is the recording of the screen, where there is one.
	recorder recorder
}

// listen on loopback only, and with plain TCP: CRIU cannot dump an MPTCP socket.
func listen(port int) (net.Listener, error) {
	l, err := listenAt("127.0.0.1", port)
	if err != nil {
		return nil, fmt.Errorf("listen (is the loopback interface up?): %w", err)
	}
	return plainListener{l}, nil
}

func listenAt(address string, port int) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp4", net.JoinHostPort(address, strconv.Itoa(port)))
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
	mux.HandleFunc("POST "+proto.PathObserve, s.observe)
	mux.HandleFunc("POST "+proto.PathClock, s.clock)
	mux.HandleFunc("POST "+proto.PathFreeze, s.freeze)
	mux.HandleFunc("POST "+proto.PathExecute, s.execute)
	mux.HandleFunc("POST "+proto.PathSetupExecute, s.execute)
	mux.HandleFunc("POST "+proto.PathCheck, s.check)
	mux.HandleFunc("POST "+proto.PathFile, s.file)
	mux.HandleFunc("POST "+proto.PathUpload, s.upload)
	mux.HandleFunc("POST "+proto.PathRunPython, s.runPython)
	mux.HandleFunc("POST "+proto.PathRunBash, s.runBash)
	mux.HandleFunc("POST "+proto.PathLaunch, s.launch)
	mux.HandleFunc("POST "+proto.PathOpenFile, s.openFile)
	mux.HandleFunc("POST "+proto.PathActivate, s.activateWindow)
	mux.HandleFunc("POST "+proto.PathClose, s.closeWindow)
	mux.HandleFunc("GET "+proto.PathScreenshot, s.screenshot)
	mux.HandleFunc("GET "+proto.PathCursorPosition, s.cursorPosition)
	mux.HandleFunc("POST "+proto.PathScreenSize, s.screenSize)
	mux.HandleFunc("POST "+proto.PathWindowSize, s.windowSize)
	mux.HandleFunc("GET "+proto.PathTerminal, s.terminal)
	mux.HandleFunc("GET "+proto.PathAccessibility, s.accessibility)
	mux.HandleFunc("POST "+proto.PathStartRecording, s.startRecording)
	mux.HandleFunc("POST "+proto.PathEndRecording, s.endRecording)
	mux.HandleFunc("POST "+proto.PathWallpaper, s.wallpaper)
	mux.HandleFunc("POST "+proto.PathChangeWallpaper, s.changeWallpaper)
	mux.HandleFunc("GET "+proto.PathPlatform, s.platform)
	mux.HandleFunc("POST "+proto.PathDesktopPath, s.desktopPath)
	mux.HandleFunc("POST "+proto.PathListDirectory, s.listDirectory)
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

// text answers as the public server does where it answers with a bare text.
func text(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// decode reads a request that is one JSON object.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	done := bound(w, r, requestLimit, requestTime)
	body, err := io.ReadAll(r.Body)
	done()
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode request: %w", err)
	}
	return nil
}

// failed says why nothing may be started in this slot any more; nil where it may.
func (s *server) failed() error {
	if phase, reason, _ := s.slot.status(); phase == proto.PhaseFailed {
		return errors.New(reason)
	}
	return nil
}

// run runs a program for a request. A tree that does not end fails the slot. How a
// program ended while the slot does is no answer: the slot's end may have ended it.
func (s *server) run(r *http.Request, j job) (*outcome, error) {
	o, err := s.procs.run(r.Context(), s.who, j)
	if s.slot.isEnding() {
		panic(http.ErrAbortHandler) // the client sees that there is no answer
	}
	if errors.Is(err, errTree) {
		s.slot.fail(err.Error())
	}
	return o, err
}

func (s *server) probe(w http.ResponseWriter, r *http.Request) {
	p, err := s.self.view()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	p.Phase, p.Reason, p.Services = s.slot.status()
	if s.screen != nil {
		p.Screen = s.screen.view()
	}
	if r.URL.Query().Has(proto.SystemQuery) {
		p.System = readSystem("/")
	}
	p.Live = s.live.state()
	answer(w, http.StatusOK, p)
}

func (s *server) execute(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, err error) {
		answer(w, status, proto.ExecuteResponse{Status: proto.StatusError, Message: err.Error()})
	}
	if err := s.failed(); err != nil {
		refuse(http.StatusServiceUnavailable, err)
		return
	}
	argv, timeout, err := s.command(w, r)
	if err != nil {
		refuse(http.StatusBadRequest, err)
		return
	}
	o, err := s.run(r, job{argv: argv, timeout: timeout})
	if err != nil {
		refuse(http.StatusInternalServerError, err)
		return
	}
	a, status := o.response(argv, timeout)
	answer(w, status, a)
}

// response is an outcome as /execute answers it.
func (o *outcome) response(argv []string, timeout time.Duration) (proto.ExecuteResponse, int) {
	a := proto.ExecuteResponse{Status: proto.StatusSuccess, Truncated: o.stdout.truncated || o.stderr.truncated}
	a.Output, a.OutputBytes = o.stdout.text()
	a.Error, a.ErrorBytes = o.stderr.text()
	if o.timedOut {
		a.Status, a.TimedOut = proto.StatusError, true
		a.Message = fmt.Sprintf("command %q timed out after %g seconds, its processes were ended", argv, timeout.Seconds())
		return a, http.StatusInternalServerError
	}
	a.Returncode = new(o.code())
	return a, http.StatusOK
}

// code is the exit status, or minus the signal's number.
func (o *outcome) code() int {
	if o.status.Signaled() {
		return -int(o.status.Signal())
	}
	return o.status.ExitStatus()
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
	var q proto.ExecuteRequest
	if err := decode(w, r, &q); err != nil {
		return nil, 0, err
	}
	if timeout, err = seconds(q.Timeout, proto.DefaultExecuteTimeout); err != nil {
		return nil, 0, err
	}
	argv, _, err = s.who.words(q.Command, q.Shell)
	return argv, timeout, err
}

// seconds is a request's time-out.
func seconds(asked *float64, otherwise time.Duration) (time.Duration, error) {
	if asked == nil {
		return otherwise, nil
	}
	if !(*asked > 0 && *asked <= proto.MaxExecuteTimeout.Seconds()) {
		return 0, fmt.Errorf("timeout is %g, want more than 0 and at most %g seconds", *asked, proto.MaxExecuteTimeout.Seconds())
	}
	return time.Duration(*asked * float64(time.Second)), nil
}

// words are the arguments of a command, as ExecuteRequest describes it, and how it is named to the client.
func (who *identity) words(command json.RawMessage, shell bool) (argv []string, said string, err error) {
	var line string
	switch list := json.Unmarshal(command, &argv); {
	case list == nil:
	case json.Unmarshal(command, &line) != nil:
		return nil, "", errors.New("command is neither a text nor a list of texts")
	case shell:
		argv = []string{line}
	default:
		if argv, err = splitWords(line); err != nil {
			return nil, "", fmt.Errorf("split command: %w", err)
		}
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, "", errors.New("command is empty")
	}
	for i, a := range argv {
		// The public server does so to a list in either mode, and never to a text for the shell.
		if !shell || line == "" {
			argv[i] = who.expandHome(a)
		}
	}
	said = strings.Join(argv, " ")
	if shell {
		argv = append([]string{"/bin/sh", "-c"}, argv...)
	}
	return argv, said, nil
}

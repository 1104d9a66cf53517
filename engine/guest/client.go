package guest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Limits bound what a guest can make the host read and wait for. A zero field
// takes the value of DefaultLimits.
type Limits struct {
	// Header is the size of status line and headers, in bytes.
	Header int64
	// Body is the size of an answer that is no file, in bytes.
	Body int64
	// Picture is the size of a picture of the screen, in bytes.
	Picture int64
	// Exchange is the time of one exchange from dialling to the closed connection.
	// Where a program is run, the program's own time comes on top.
	Exchange time.Duration
	// Close is how long the server may take to close the connection after its answer.
	Close time.Duration
}

// DefaultLimits fit guestd. Body has room for two outputs of OutputLimit, as text
// in which each byte is escaped to six; Picture for a screen of ten million pixels
// that are nothing but noise.
func DefaultLimits() Limits {
	return Limits{Header: 16 << 10, Body: 16 << 20, Picture: 32 << 20, Exchange: 15 * time.Second, Close: 2 * time.Second}
}

// Dialler connects to a TCP port on a slot's loopback interface, as engine.Slot.Dial does.
type Dialler func(ctx context.Context, port int) (net.Conn, error)

// Client talks to the guest server of one slot. It holds no connection and no
// state, so it is safe for concurrent use and outlives a reset of its slot.
//
// Each method makes one connection for one exchange. It has no redirects, no
// proxies and no retries. When it returns without an error, the server has
// closed its end and none of the two sockets exists any more, also not in
// TIME_WAIT: the server closes first (which the client waits to see), and the
// client answers with a reset, which takes away what the server's kernel kept.
// When it returns with an error, the connection was reset.
//
// When ctx ends, a method returns ctx's error wrapped; a program that was
// started is ended by the server, with its tree.
type Client struct {
	dial   Dialler
	port   int
	limits Limits
}

// New returns a client for the server that listens on port.
func New(dial Dialler, port int, limits Limits) *Client {
	d := DefaultLimits()
	limits.Header = cmp.Or(limits.Header, d.Header)
	limits.Body = cmp.Or(limits.Body, d.Body)
	limits.Picture = cmp.Or(limits.Picture, d.Picture)
	limits.Exchange = cmp.Or(limits.Exchange, d.Exchange)
	limits.Close = cmp.Or(limits.Close, d.Close)
	return &Client{dial: dial, port: port, limits: limits}
}

// Probe asks for the guest's own view. Not idempotent in one respect: it advances the live counter.
// ErrProtocol where the answer is of another version, or lacks the live state.
func (c *Client) Probe(ctx context.Context) (Probe, error) {
	return c.probe(ctx, "probe guest", proto.PathProbe)
}

func (c *Client) probe(ctx context.Context, op, path string) (Probe, error) {
	var p Probe
	a, err := c.exchange(ctx, op, request{method: http.MethodGet, path: path}, c.limits.Body, c.limits.Exchange)
	if err != nil {
		return p, err
	}
	if a.status != http.StatusOK {
		return p, a.refused(op)
	}
	if err := a.json(&p, strict); err != nil {
		return Probe{}, fail(op, err)
	}
	if err := check(p); err != nil {
		return Probe{}, fail(op, fmt.Errorf("%w: %w", ErrProtocol, err))
	}
	return p, nil
}

// check refuses what guestd never sends: a zero there would look like a reading.
func check(p Probe) error {
	if p.Version != Version {
		return fmt.Errorf("probe is of version %q, want %q", p.Version, Version)
	}
	if b, err := hex.DecodeString(p.Live.Token); err != nil || len(b) != 16 {
		return fmt.Errorf("live token %q is not 128 bits in hex", p.Live.Token)
	}
	if n, err := strconv.ParseUint(string(p.Live.Counter), 10, 64); err != nil || n == 0 {
		return fmt.Errorf("live counter %q is not a positive number", p.Live.Counter)
	}
	switch p.Phase {
	case PhaseStarting, PhaseRunning, PhaseFailed:
	default:
		return fmt.Errorf("phase %q is none", p.Phase)
	}
	if (p.Phase == PhaseFailed) != (p.Reason != "") {
		return fmt.Errorf("phase %q with reason %q", p.Phase, p.Reason)
	}
	if b, err := hex.DecodeString(string(p.ServerSHA256)); err != nil || len(b) != 32 {
		return fmt.Errorf("server digest %q is no SHA-256", p.ServerSHA256)
	}
	if len(p.Mounts) == 0 || len(p.Network.Links) == 0 {
		return fmt.Errorf("%d mounts and %d links", len(p.Mounts), len(p.Network.Links))
	}
	if err := checkScreen(p.Screen); err != nil {
		return err
	}
	if p.Pid <= 0 {
		return fmt.Errorf("pid %d", p.Pid)
	}
	for name, v := range map[string]bench.Int64{"uptime": p.Uptime, "clock": p.Clock} {
		if _, err := strconv.ParseInt(string(v), 10, 64); err != nil {
			return fmt.Errorf("%s %q is not a number", name, v)
		}
	}
	return nil
}

func checkScreen(s *Screen) error {
	switch {
	case s == nil || s.Unknown != "":
		return nil
	case s.Width <= 0 || s.Height <= 0:
		return fmt.Errorf("screen of %dx%d pixels", s.Width, s.Height)
	case len(s.Windows) > proto.MaxWindows:
		return fmt.Errorf("screen with %d windows, the limit is %d", len(s.Windows), proto.MaxWindows)
	}
	return nil
}

// Screenshot returns a picture of the guest's screen, a PNG with the cursor in it.
// It is what the guest sent, of at most Limits.Picture bytes: package screen
// decodes it, and bounds that. ErrNoScreen where the guest says that there is no
// screen, or none that answers; ErrTooLarge, ErrProtocol.
func (c *Client) Screenshot(ctx context.Context) ([]byte, error) {
	const op = "take screenshot of guest"
	a, err := c.exchange(ctx, op, request{method: http.MethodGet, path: proto.PathScreenshot}, c.limits.Picture, c.limits.Exchange)
	if err != nil {
		return nil, err
	}
	switch a.status {
	case http.StatusOK:
		if t, _, err := mime.ParseMediaType(a.contentType); err != nil || t != "image/png" {
			return nil, fail(op, fmt.Errorf("%w: content type %q, want image/png", ErrProtocol, clip(a.contentType)))
		}
		return a.body, nil
	case http.StatusInternalServerError:
		var e proto.ErrorResponse
		if err := a.json(&e, lenient); err != nil {
			return nil, fail(op, err)
		}
		return nil, fail(op, fmt.Errorf("%w: %s", ErrNoScreen, clip(e.Error)))
	}
	return nil, a.refused(op)
}

// Pointer is where the guest's pointer is, in pixels from the screen's upper left
// corner. ErrNoScreen as Screenshot; ErrProtocol.
func (c *Client) Pointer(ctx context.Context) (x, y int, err error) {
	const op = "ask guest where the pointer is"
	a, err := c.exchange(ctx, op, request{method: http.MethodGet, path: proto.PathCursorPosition}, c.limits.Body, c.limits.Exchange)
	if err != nil {
		return 0, 0, err
	}
	switch a.status {
	case http.StatusOK:
		var at []int
		if err := a.json(&at, lenient); err != nil {
			return 0, 0, fail(op, err)
		}
		if len(at) != 2 {
			return 0, 0, fail(op, fmt.Errorf("%w: %d numbers, want two", ErrProtocol, len(at)))
		}
		return at[0], at[1], nil
	case http.StatusInternalServerError:
		var e proto.ErrorResponse
		if err := a.json(&e, lenient); err != nil {
			return 0, 0, fail(op, err)
		}
		return 0, 0, fail(op, fmt.Errorf("%w: %s", ErrNoScreen, clip(e.Error)))
	}
	return 0, 0, a.refused(op)
}

// Result is how a program in the guest ended. Exactly one of three holds: it
// exited (Signalled and TimedOut false, Exit 0 to 255); a signal ended it
// (Signalled, Exit is minus the signal's number); its time was up and the guest
// ended its tree (TimedOut, Exit is -1 and means nothing).
type Result struct {
	Exit      int
	Signalled bool
	TimedOut  bool
	// Stdout and Stderr as the program printed them, as far as the guest keeps them.
	Stdout, Stderr []byte
	// Truncated: one of the two is not complete.
	Truncated bool
}

// Execute runs argv in the guest, as its user, and waits until it has ended or
// timeout is up. timeout is rounded up to a millisecond; it must be positive.
//
//	the program ended, in whatever way   Result, nil (TimedOut is a Result too)
//	the guest could not run it           ErrExecute
//	the slot is failed                   ErrFailed, which is an engine.ErrDead
//	nobody answered                      engine.ErrDead, engine.ErrDeadline: the program may have run
//	nonsense, or too much of it          ErrProtocol, ErrTooLarge: the program may have run
//
// A server that is not guestd does not say timed_out: its time-outs are ErrExecute.
func (c *Client) Execute(ctx context.Context, argv []string, timeout time.Duration) (Result, error) {
	const op = "execute in guest"
	if len(argv) == 0 || argv[0] == "" || timeout <= 0 || timeout > proto.MaxExecuteTimeout {
		return Result{}, fail(op, fmt.Errorf("%w: argv %q, timeout %s", engine.ErrUsage, argv, timeout))
	}
	command, err := json.Marshal(argv)
	if err != nil {
		return Result{}, fail(op, err)
	}
	timeout = (timeout + time.Millisecond - 1).Truncate(time.Millisecond)
	seconds := timeout.Seconds()
	body, err := json.Marshal(proto.ExecuteRequest{Command: command, Timeout: &seconds})
	if err != nil {
		return Result{}, fail(op, err)
	}
	a, err := c.exchange(ctx, op, request{method: http.MethodPost, path: proto.PathExecute, contentType: "application/json", body: body},
		c.limits.Body, c.limits.Exchange+timeout)
	if err != nil {
		return Result{}, err
	}
	switch a.status {
	case http.StatusOK, http.StatusBadRequest, http.StatusInternalServerError, http.StatusServiceUnavailable:
	default:
		return Result{}, a.refused(op)
	}
	var r proto.ExecuteResponse
	if err := a.json(&r, lenient); err != nil {
		return Result{}, fail(op, err)
	}
	return result(op, a.status, r)
}

// result is how a program ended, by the answer's status and what it says.
func result(op string, status int, r proto.ExecuteResponse) (Result, error) {
	out := Result{
		Exit:      -1,
		TimedOut:  r.TimedOut,
		Stdout:    exact(r.Output, r.OutputBytes),
		Stderr:    exact(r.Error, r.ErrorBytes),
		Truncated: r.Truncated,
	}
	switch {
	case status == http.StatusOK && r.Status == proto.StatusSuccess && r.Returncode != nil && !r.TimedOut:
		out.Exit = *r.Returncode
		out.Signalled = out.Exit < 0
		if out.Exit < -128 || out.Exit > 255 {
			return Result{}, fail(op, fmt.Errorf("%w: return code %d", ErrProtocol, out.Exit))
		}
		return out, nil
	case status == http.StatusOK || r.Status != proto.StatusError || r.Message == "":
		return Result{}, fail(op, fmt.Errorf("%w: HTTP status %d with status %q, message %q", ErrProtocol, status, r.Status, clip(r.Message)))
	case status == http.StatusServiceUnavailable:
		return Result{}, fail(op, fmt.Errorf("%w: %s", ErrFailed, clip(r.Message)))
	case r.TimedOut:
		return out, nil
	}
	return Result{}, fail(op, fmt.Errorf("%w: %s", ErrExecute, clip(r.Message)))
}

func exact(text string, raw []byte) []byte {
	if raw != nil {
		return raw
	}
	return []byte(text)
}

// ReadFile returns the content of a file in the guest, of at most max bytes.
// fs.ErrNotExist where there is none, ErrTooLarge where it is larger.
func (c *Client) ReadFile(ctx context.Context, path string, max int64) ([]byte, error) {
	op := "read guest file " + path
	form := url.Values{"file_path": {path}}.Encode()
	a, err := c.exchange(ctx, op, request{method: http.MethodPost, path: proto.PathFile, contentType: "application/x-www-form-urlencoded", body: []byte(form)},
		max, c.limits.Exchange)
	if err != nil {
		return nil, err
	}
	switch a.status {
	case http.StatusOK:
		return a.body, nil
	case http.StatusNotFound:
		// A router that does not know the path says 404 too, but not in JSON.
		var e proto.ErrorResponse
		if err := a.json(&e, lenient); err != nil {
			return nil, fail(op, err)
		}
		return nil, fail(op, fmt.Errorf("%w: %s", fs.ErrNotExist, clip(e.Error)))
	}
	return nil, a.refused(op)
}

// WriteFile makes or replaces a file in the guest and reads it back: it returns
// nil only after the guest gave the same bytes. mode is the permission bits of a
// new file (0 leaves them to the server: 0644); those of a file that exists stay.
// Idempotent.
func (c *Client) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	op := "write guest file " + path
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	err := w.WriteField("file_path", path)
	if err == nil && mode != 0 {
		err = w.WriteField("mode", strconv.FormatUint(uint64(mode.Perm()), 8))
	}
	if err == nil {
		var part io.Writer
		if part, err = w.CreateFormFile("file_data", "file"); err == nil {
			_, err = part.Write(data)
		}
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fail(op, err)
	}
	a, err := c.exchange(ctx, op, request{method: http.MethodPost, path: proto.PathUpload, contentType: w.FormDataContentType(), body: b.Bytes()},
		c.limits.Body, c.limits.Exchange)
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return a.refused(op)
	}
	back, err := c.ReadFile(ctx, path, int64(len(data)))
	if err != nil {
		return fail(op, fmt.Errorf("read it back: %w", err))
	}
	if !bytes.Equal(back, data) {
		return fail(op, fmt.Errorf("%w: it was stored, but reads differently", ErrProtocol))
	}
	return nil
}

type request struct {
	method, path, contentType string
	body                      []byte
}

type answer struct {
	status      int
	contentType string
	body        []byte
}

// exchange makes one connection, sends r, reads the whole answer within max
// bytes of body, sees the server close, and closes.
func (c *Client) exchange(ctx context.Context, op string, r request, max int64, limit time.Duration) (answer, error) {
	deadline := time.Now().Add(limit)
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, fmt.Errorf("%w: no whole answer within %s", engine.ErrDeadline, limit))
	defer cancel()
	conn, err := c.dial(ctx, c.port)
	if err != nil {
		return answer{}, fail(op, connectionError(ctx, err))
	}
	defer conn.Close()
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		// Close then sends a reset: see Client.
		if err := tcp.SetLinger(0); err != nil {
			return answer{}, fail(op, fmt.Errorf("set linger: %w", err))
		}
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	in := &limitedReader{r: conn, left: c.limits.Header}
	a, err := c.talk(ctx, conn, in, r, max)
	if err != nil {
		return answer{}, fail(op, in.explain(ctx, err))
	}
	return a, nil
}

func (c *Client) talk(ctx context.Context, conn net.Conn, in *limitedReader, r request, max int64) (answer, error) {
	if err := write(conn, r, c.port); err != nil {
		in.err = cmp.Or(in.err, err)
		return answer{}, err
	}
	buffered := bufio.NewReaderSize(in, 4<<10)
	response, err := http.ReadResponse(buffered, &http.Request{Method: r.method})
	if err != nil {
		return answer{}, err
	}
	chunked := len(response.TransferEncoding) > 0
	if response.StatusCode < 200 || (response.ContentLength < 0 && !chunked) {
		return answer{}, fmt.Errorf("%w: HTTP status %d without a length", ErrProtocol, response.StatusCode)
	}
	if response.StatusCode != http.StatusOK {
		max = c.limits.Body // the text of an error is not what the caller's limit is for
	}
	if response.ContentLength > max {
		return answer{}, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrTooLarge, response.ContentLength, max)
	}
	// The marks of chunks come on top of the body; a server that sends each byte in a chunk of its own is none that we serve.
	in.left = max + max/2 + 64<<10
	body, err := io.ReadAll(io.LimitReader(response.Body, max+1))
	if err != nil {
		return answer{}, err
	}
	if int64(len(body)) > max {
		return answer{}, fmt.Errorf("%w: the limit is %d bytes", ErrTooLarge, max)
	}

	// The end of the stream is the proof that the server has no descriptor for the connection any more.
	// Some connections take no deadline once they are closed; the exchange's own holds then.
	_ = conn.SetReadDeadline(time.Now().Add(c.limits.Close))
	switch _, err := buffered.ReadByte(); {
	case err == nil:
		return answer{}, fmt.Errorf("%w: bytes after the answer", ErrProtocol)
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
		return answer{}, fmt.Errorf("%w: the connection is still open %s after the answer", ErrProtocol, c.limits.Close)
	case !errors.Is(err, io.EOF):
		return answer{}, err
	}
	return answer{status: response.StatusCode, contentType: response.Header.Get("Content-Type"), body: body}, nil
}

// write sends a request by hand: nothing of it depends on the environment.
func write(w io.Writer, r request, port int) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: drumsbench\r\nConnection: close\r\n", r.method, r.path, port)
	if r.method == http.MethodPost {
		fmt.Fprintf(&b, "Content-Type: %s\r\nContent-Length: %d\r\n", r.contentType, len(r.body))
	}
	b.WriteString("\r\n")
	b.Write(r.body)
	_, err := w.Write(b.Bytes())
	return err
}

// limitedReader reads no more than left bytes and remembers how the stream ended.
type limitedReader struct {
	r    io.Reader
	left int64
	err  error
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		l.err = ErrTooLarge
		return 0, l.err
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	if err != nil {
		l.err = err
	}
	return n, err
}

// explain types an error of the exchange: what the stream says counts more than
// what a parser made of it.
func (l *limitedReader) explain(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrProtocol):
		return err
	case l.err != nil && errors.Is(err, l.err):
		return connectionError(ctx, err)
	case l.err != nil:
		return connectionError(ctx, fmt.Errorf("%w (%w)", l.err, err))
	}
	return fmt.Errorf("%w: %w", ErrProtocol, err)
}

// connectionError types an error of the dialler or of the connection.
func connectionError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, dead := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE} {
		if errors.Is(err, dead) {
			return fmt.Errorf("%w: %w", engine.ErrDead, err)
		}
	}
	return err
}

type strictness bool

const (
	strict  strictness = true
	lenient strictness = false // servers that are not ours may say more
)

// json decodes exactly one JSON value of type application/json.
func (a answer) json(into any, s strictness) error {
	if t, _, err := mime.ParseMediaType(a.contentType); err != nil || t != "application/json" {
		return fmt.Errorf("%w: HTTP status %d with content type %q, want application/json", ErrProtocol, a.status, clip(a.contentType))
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	if s == strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: decode answer: %w", ErrProtocol, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something follows the JSON value", ErrProtocol)
	}
	return nil
}

// refused is the error for a status that the request has no meaning for.
func (a answer) refused(op string) error {
	text := ""
	var e proto.ErrorResponse
	if a.json(&e, lenient) == nil && e.Error != "" {
		text = ": " + clip(e.Error)
	}
	return fail(op, fmt.Errorf("%w: HTTP status %d%s", ErrProtocol, a.status, text))
}

func fail(op string, err error) error { return &engine.Error{Op: op, Err: err} }

// clip keeps a text from the guest short and on one line.
func clip(s string) string {
	const most = 300
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strings.Trim(strconv.Quote(s), `"`)
}

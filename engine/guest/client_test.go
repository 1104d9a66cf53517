package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hostile is a server that does to each connection what handle does. Its request
// is read first, as far as handle does not do so itself.
type hostile struct {
	*Client
	requests chan *http.Request
}

func serve(t *testing.T, limits Limits, handle func(c net.Conn)) *hostile {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{requests: make(chan *http.Request, 8)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			q, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				body, _ := io.ReadAll(q.Body)
				q.Body = io.NopCloser(bytes.NewReader(body))
				h.requests <- q
				handle(c)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	h.Client = New(func(ctx context.Context, port int) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp4", l.Addr().String())
	}, 5000, limits)
	return h
}

func say(text string) func(net.Conn) { return func(c net.Conn) { io.WriteString(c, text) } }

func reply(status int, contentType, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, contentType, len(body), body)
}

func jsonReply(status int, body string) string { return reply(status, "application/json", body) }

func validProbe() Probe {
	return Probe{
		Version: Version, Phase: PhaseRunning, Hostname: "slot", Pid: 1, Uptime: "5", Clock: "6",
		Live:         bench.LiveState{Token: strings.Repeat("0f", 16), Counter: "7"},
		ServerSHA256: bench.SHA256(strings.Repeat("ab", 32)),
		Mounts:       []bench.Mount{{Point: "/", Options: []string{}, Super: []string{}}},
		Network:      bench.Network{Links: []bench.Link{{Name: "lo"}}, Addresses: []string{}, Routes: []string{}, Rules: []string{}},
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestProbeAnswers(t *testing.T) {
	want := validProbe()
	h := serve(t, Limits{}, say(jsonReply(200, text(t, want))))
	got, err := h.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	q := <-h.requests
	if q.Method != "GET" || q.URL.Path != "/probe" || !q.Close || q.Host != "127.0.0.1:5000" {
		t.Errorf("%+v", q)
	}
}

func TestProbeWithoutSubstance(t *testing.T) {
	for name, change := range map[string]func(*Probe){
		"version": func(p *Probe) { p.Version = "guest/v0" },
		"token":   func(p *Probe) { p.Live.Token = "" },
		"counter": func(p *Probe) { p.Live.Counter = "-1" },
		"phase":   func(p *Probe) { p.Phase = "" },
		"reason":  func(p *Probe) { p.Phase = PhaseFailed },
		"digest":  func(p *Probe) { p.ServerSHA256 = "x" },
		"mounts":  func(p *Probe) { p.Mounts = nil },
		"links":   func(p *Probe) { p.Network.Links = nil },
		"screen":  func(p *Probe) { p.Screen = &Screen{} },
		"windows": func(p *Probe) { p.Screen = &Screen{Width: 1, Height: 1, Windows: make([]Window, 257)} },
		"pid":     func(p *Probe) { p.Pid = 0 },
		"uptime":  func(p *Probe) { p.Uptime = "" },
	} {
		t.Run(name, func(t *testing.T) {
			p := validProbe()
			change(&p)
			h := serve(t, Limits{}, say(jsonReply(200, text(t, p))))
			if got, err := h.Probe(t.Context()); !errors.Is(err, ErrProtocol) || !cmp.Equal(got, Probe{}) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestHostileAnswers(t *testing.T) {
	good := text(t, validProbe())
	endless := func(c net.Conn, head, unit string) {
		io.WriteString(c, head)
		for {
			if _, err := io.WriteString(c, unit); err != nil {
				return
			}
		}
	}
	small := Limits{Header: 4 << 10, Body: 64 << 10, Exchange: 500 * time.Millisecond, Close: 200 * time.Millisecond}
	for _, c := range []struct {
		name   string
		handle func(net.Conn)
		want   error
	}{
		{"nothing", say(""), engine.ErrDead},
		{"silence", func(c net.Conn) { io.Copy(io.Discard, c) }, engine.ErrDeadline},
		{"reset", func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }, engine.ErrDead},
		{"half a status line", say("HTTP/1."), engine.ErrDead},
		{"half a header", say("HTTP/1.1 200 OK\r\nContent-"), engine.ErrDead},
		{"no HTTP", say("SSH-2.0-OpenSSH_9.2\r\n\r\n"), ErrProtocol},
		{"bad status", say("HTTP/1.1 xyz OK\r\n\r\n"), ErrProtocol},
		{"early hints only", say("HTTP/1.1 103 Early Hints\r\n\r\n"), ErrProtocol},
		{"switching protocols", say("HTTP/1.1 101 x\r\nUpgrade: x\r\nContent-Length: 0\r\n\r\n"), ErrProtocol},
		{"two lengths", say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), ErrProtocol},
		{"negative length", say("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), ErrProtocol},
		{"no length", say("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + good), ErrProtocol},
		{"redirect", say("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), ErrProtocol},
		{"not found", say(jsonReply(404, `{"error": "no such request"}`)), ErrProtocol},
		{"server error", say(jsonReply(500, `{"error": "no clock"}`)), ErrProtocol},
		{"huge header", func(c net.Conn) { endless(c, "HTTP/1.1 200 OK\r\n", "X-A: "+strings.Repeat("a", 100)+"\r\n") }, ErrTooLarge},
		{"one endless header", func(c net.Conn) { endless(c, "HTTP/1.1 200 OK\r\nX-A: ", strings.Repeat("a", 1000)) }, ErrTooLarge},
		{"endless status line", func(c net.Conn) { endless(c, "HTTP/1.1 200 ", strings.Repeat("a", 1000)) }, ErrTooLarge},
		{"huge length", say("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"), ErrTooLarge},
		{"endless chunks", func(c net.Conn) {
			endless(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "400\r\n"+strings.Repeat("a", 0x400)+"\r\n")
		}, ErrTooLarge},
		{"endless chunk extension", func(c net.Conn) {
			endless(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1;"+strings.Repeat("e", 3000)+"\r\na\r\n")
		}, nil},
		{"bad chunk", say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), ErrProtocol},
		{"chunks without an end", say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"), engine.ErrDead},
		{"early close", say("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{"), engine.ErrDead},
		{"slow bytes", func(c net.Conn) {
			for _, b := range []byte(jsonReply(200, good)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}, engine.ErrDeadline},
		{"slow body", func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
			for range 5000 {
				if _, err := io.WriteString(c, " "); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}, engine.ErrDeadline},
		{"kept open", func(c net.Conn) { io.WriteString(c, jsonReply(200, good)); io.Copy(io.Discard, c) }, ErrProtocol},
		{"more after the answer", say(jsonReply(200, good) + jsonReply(200, good)), ErrProtocol},
		{"HTML", say(reply(200, "text/html", "<p>"+good)), ErrProtocol},
		{"no type", say(reply(200, "", good)), ErrProtocol},
		{"invalid JSON", say(jsonReply(200, good[:len(good)-1])), ErrProtocol},
		{"two values", say(jsonReply(200, good+good)), ErrProtocol},
		{"empty", say(jsonReply(200, "")), ErrProtocol},
		{"null", say(jsonReply(200, "null")), ErrProtocol},
		{"unknown field", say(jsonReply(200, `{"more": 1,`+good[1:])), ErrProtocol},
		{"wrong type", say(jsonReply(200, strings.Replace(good, `"pid":1`, `"pid":"1"`, 1))), ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			h := serve(t, small, c.handle)
			got, err := h.Probe(t.Context())
			if err == nil || !cmp.Equal(got, Probe{}) {
				t.Fatalf("%+v, %v", got, err)
			}
			var e *engine.Error
			if !errors.As(err, &e) || e.Op != "probe guest" {
				t.Errorf("not a typed error: %#v", err)
			}
			for _, s := range []error{engine.ErrDead, engine.ErrDeadline, ErrProtocol, ErrTooLarge} {
				if c.want != nil && errors.Is(err, s) != (s == c.want) {
					t.Errorf("is %q: %t, want %q: %v", s, errors.Is(err, s), c.want, err)
				}
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			t.Log(err)
		})
	}
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c := New(func(ctx context.Context, port int) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp4", address)
	}, 1, Limits{})
	if _, err := c.Probe(t.Context()); !errors.Is(err, engine.ErrDead) {
		t.Errorf("refused: %v", err)
	}
	if _, err := c.Execute(t.Context(), []string{"true"}, time.Second); !errors.Is(err, engine.ErrDead) || errors.Is(err, ErrExecute) {
		t.Errorf("refused: %v", err)
	}

	own := errors.New("no such slot")
	c = New(func(context.Context, int) (net.Conn, error) { return nil, own }, 1, Limits{})
	if _, err := c.Probe(t.Context()); !errors.Is(err, own) || errors.Is(err, engine.ErrDead) {
		t.Errorf("the dialler's own error: %v", err)
	}
	c = New(func(ctx context.Context, _ int) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, 1, Limits{Exchange: 50 * time.Millisecond})
	if _, err := c.Probe(t.Context()); !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("dialling for ever: %v", err)
	}
}

func TestCancel(t *testing.T) {
	for _, closing := range []bool{false, true} {
		good := text(t, validProbe())
		reached := make(chan struct{})
		h := serve(t, Limits{}, func(c net.Conn) {
			if closing {
				io.WriteString(c, jsonReply(200, good))
			}
			close(reached)
			io.Copy(io.Discard, c)
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the caller's reason")
		go func() { <-reached; time.Sleep(50 * time.Millisecond); cancel(why) }()
		if _, err := h.Probe(ctx); !errors.Is(err, why) || errors.Is(err, ErrProtocol) || errors.Is(err, engine.ErrDeadline) {
			t.Errorf("closing %t: %v", closing, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	h := serve(t, Limits{}, func(c net.Conn) { io.Copy(io.Discard, c) })
	if _, err := h.Probe(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's deadline: %v", err)
	}
}

func TestExecuteAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer string
		want   Result
		err    error
	}{
		{"exit", jsonReply(200, `{"status":"success","output":"o","error":"e","returncode":3}`), Result{Exit: 3, Stdout: []byte("o"), Stderr: []byte("e")}, nil},
		{"signal", jsonReply(200, `{"status":"success","output":"","error":"","returncode":-9}`), Result{Exit: -9, Signalled: true, Stdout: []byte{}, Stderr: []byte{}}, nil},
		{"bytes", jsonReply(200, `{"status":"success","output":"\ufffd","error":"","returncode":0,"output_bytes":"/w==","truncated":true}`),
			Result{Stdout: []byte{255}, Stderr: []byte{}, Truncated: true}, nil},
		{"time-out", jsonReply(500, `{"status":"error","output":"o","error":"","message":"m","timed_out":true}`),
			Result{Exit: -1, TimedOut: true, Stdout: []byte("o"), Stderr: []byte{}}, nil},
		{"public server's more", jsonReply(200, `{"status":"success","output":"","error":"","returncode":0,"extra":1}`), Result{Stdout: []byte{}, Stderr: []byte{}}, nil},
		{"not started", jsonReply(500, `{"status":"error","message":"no such file"}`), Result{}, ErrExecute},
		{"bad request", jsonReply(400, `{"status":"error","message":"command is empty"}`), Result{}, ErrExecute},
		{"failed", jsonReply(503, `{"status":"error","message":"service x ended"}`), Result{}, ErrFailed},
		{"no return code", jsonReply(200, `{"status":"success","output":"","error":""}`), Result{}, ErrProtocol},
		{"success with 500", jsonReply(500, `{"status":"success","output":"","error":"","returncode":0}`), Result{}, ErrProtocol},
		{"error with 200", jsonReply(200, `{"status":"error","message":"m","returncode":0}`), Result{}, ErrProtocol},
		{"no message", jsonReply(500, `{"status":"error"}`), Result{}, ErrProtocol},
		{"impossible code", jsonReply(200, `{"status":"success","output":"","error":"","returncode":256}`), Result{}, ErrProtocol},
		{"success in time-out", jsonReply(200, `{"status":"success","output":"","error":"","returncode":0,"timed_out":true}`), Result{}, ErrProtocol},
		{"redirect", "HTTP/1.1 307 x\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Result{}, ErrProtocol},
		{"HTML error", reply(500, "text/html", "<h1>Internal Server Error</h1>"), Result{}, ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := serve(t, Limits{}, say(c.answer))
			got, err := h.Execute(t.Context(), []string{"a", "b c"}, 1500*time.Millisecond)
			if !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			if errors.Is(err, engine.ErrDead) != (c.err == ErrFailed) {
				t.Errorf("dead: %v", err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			q := <-h.requests
			body, _ := io.ReadAll(q.Body)
			if q.URL.Path != "/execute" || string(body) != `{"command":["a","b c"],"shell":false,"timeout":1.5}` {
				t.Errorf("%s %s", q.URL.Path, body)
			}
		})
	}
	h := serve(t, Limits{Exchange: 200 * time.Millisecond}, func(c net.Conn) { io.Copy(io.Discard, c) })
	begin := time.Now()
	if _, err := h.Execute(t.Context(), []string{"a"}, 300*time.Millisecond); !errors.Is(err, engine.ErrDeadline) || time.Since(begin) < 500*time.Millisecond {
		t.Errorf("%s: %v", time.Since(begin), err)
	}
	for _, bad := range []struct {
		argv    []string
		timeout time.Duration
	}{{nil, time.Second}, {[]string{""}, time.Second}, {[]string{"a"}, 0}, {[]string{"a"}, 25 * time.Hour}} {
		if _, err := h.Execute(t.Context(), bad.argv, bad.timeout); !errors.Is(err, engine.ErrUsage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestReadFileAnswers(t *testing.T) {
	chunked := "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
	for _, c := range []struct {
		name   string
		answer string
		max    int64
		want   string
		err    error
	}{
		{"length", reply(200, "text/plain", "abcde"), 5, "abcde", nil},
		{"chunks", chunked, 5, "abcde", nil},
		{"empty", reply(200, "text/plain", ""), 0, "", nil},
		{"too long", reply(200, "text/plain", "abcde"), 4, "", ErrTooLarge},
		{"chunks too long", chunked, 4, "", ErrTooLarge},
		{"absent", jsonReply(404, `{"error": "File not found"}`), 3, "", fs.ErrNotExist},
		{"another 404", reply(404, "text/html", "<h1>Not Found</h1>"), 3, "", ErrProtocol},
		{"error", jsonReply(500, `{"error": "is a directory"}`), 3, "", ErrProtocol},
		{"moved", "HTTP/1.1 301 x\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 3, "", ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := serve(t, Limits{}, say(c.answer))
			got, err := h.ReadFile(t.Context(), "/a b&c", c.max)
			if string(got) != c.want || !errors.Is(err, c.err) {
				t.Errorf("%q, %v", got, err)
			}
			if q := <-h.requests; q.FormValue("file_path") != "/a b&c" || q.Method != "POST" || q.URL.Path != "/file" {
				t.Errorf("%+v", q.Form)
			}
		})
	}
}

// An upload counts only once it was read back.
func TestWriteFileReadsBack(t *testing.T) {
	for name, c := range map[string]struct {
		back string
		err  error
	}{
		"equal":   {reply(200, "text/plain", "data"), nil},
		"other":   {reply(200, "text/plain", "dat4"), ErrProtocol},
		"shorter": {reply(200, "text/plain", "dat"), ErrProtocol},
		"longer":  {reply(200, "text/plain", "data+"), ErrTooLarge},
		"absent":  {jsonReply(404, `{"error": "File not found"}`), fs.ErrNotExist},
		"dead":    {"", engine.ErrDead},
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			h := serve(t, Limits{}, func(conn net.Conn) {
				if first {
					first = false
					say(reply(200, "text/html; charset=utf-8", "File Uploaded"))(conn)
					return
				}
				say(c.back)(conn)
			})
			if err := h.WriteFile(t.Context(), "/f", []byte("data"), 0o600); !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			q := <-h.requests
			if err := q.ParseMultipartForm(1 << 20); err != nil {
				t.Fatal(err)
			}
			f, _, err := q.FormFile("file_data")
			if err != nil {
				t.Fatal(err)
			}
			data, _ := io.ReadAll(f)
			if q.FormValue("file_path") != "/f" || q.FormValue("mode") != "600" || string(data) != "data" || q.URL.Path != "/setup/upload" {
				t.Errorf("%+v %q", q.MultipartForm.Value, data)
			}
		})
	}
	h := serve(t, Limits{}, say(jsonReply(400, `{"error": "no path"}`)))
	if err := h.WriteFile(t.Context(), "/f", nil, 0); !errors.Is(err, ErrProtocol) {
		t.Errorf("%v", err)
	}
}

// The environment's proxies are of no concern to a slot.
func TestNoProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:1")
	h := serve(t, Limits{}, say(jsonReply(200, text(t, validProbe()))))
	if _, err := h.Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

// A connection that is no TCP connection serves as well.
func TestOtherConnections(t *testing.T) {
	good := text(t, validProbe())
	c := New(func(context.Context, int) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
				io.WriteString(theirs, jsonReply(200, good))
			}
		}()
		return ours, nil
	}, 1, Limits{})
	if _, err := c.Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestScreenshot(t *testing.T) {
	limits := Limits{Picture: 100}
	picture := strings.Repeat("x", 100)
	h := serve(t, limits, say(reply(200, "image/png", picture)))
	if got, err := h.Screenshot(t.Context()); err != nil || string(got) != picture {
		t.Errorf("%q, %v", got, err)
	}
	if q := <-h.requests; q.Method != "GET" || q.URL.Path != "/screenshot" || !q.Close {
		t.Errorf("%+v", q)
	}
	for name, c := range map[string]struct {
		answer string
		want   error
	}{
		"no display":     {jsonReply(500, `{"error": "the guest has no display"}`), ErrNoScreen},
		"too large":      {reply(200, "image/png", picture+"x"), ErrTooLarge},
		"claims to be":   {"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 99999999999\r\n\r\n", ErrTooLarge},
		"another type":   {reply(200, "text/html", "<html>"), ErrProtocol},
		"no JSON":        {reply(500, "text/html", "<html>"), ErrProtocol},
		"another server": {jsonReply(404, `{"error": "no such request"}`), ErrProtocol},
		"nothing":        {"", engine.ErrDead},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := serve(t, limits, say(c.answer)).Screenshot(t.Context()); !errors.Is(err, c.want) || got != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestPointer(t *testing.T) {
	h := serve(t, Limits{}, say(jsonReply(200, `[12, -3]`)))
	if x, y, err := h.Pointer(t.Context()); err != nil || x != 12 || y != -3 {
		t.Errorf("%d %d, %v", x, y, err)
	}
	if q := <-h.requests; q.Method != "GET" || q.URL.Path != "/cursor_position" {
		t.Errorf("%+v", q)
	}
	for answer, want := range map[string]error{
		jsonReply(500, `{"error": "the guest has no display"}`): ErrNoScreen,
		jsonReply(200, `[12]`):                         ErrProtocol,
		jsonReply(200, `{"x": 1}`):                     ErrProtocol,
		jsonReply(404, `{"error": "no such request"}`): ErrProtocol,
	} {
		if _, _, err := serve(t, Limits{}, say(answer)).Pointer(t.Context()); !errors.Is(err, want) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goqemu "github.com/digitalocean/go-qemu/qemu"
	"github.com/digitalocean/go-qemu/qmp"
	"github.com/digitalocean/go-qemu/qmp/raw"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hello = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "test"}, "capabilities": ["oob"]}}` + "\r\n"

// command as the fake server reads it.
type command struct {
	Execute   string          `json:"execute"`
	ID        json.RawMessage `json:"id"`
	Arguments json.RawMessage `json:"arguments"`
}

// server is a fake QEMU: it greets, answers qmp_capabilities and leaves the rest to serve.
type server struct {
	t     *testing.T
	path  string
	serve func(c net.Conn, cmd command)
	// greet replaces the greeting.
	greet string
}

// start listens; everything ends with the test.
func (s *server) start() string {
	s.t.Helper()
	s.path = filepath.Join(s.t.TempDir(), "qmp")
	l, err := net.Listen("unix", s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		stop := context.AfterFunc(s.t.Context(), func() { c.Close() })
		defer stop()
		defer c.Close()
		greeting := hello
		if s.greet != "" {
			greeting = s.greet
		}
		fmt.Fprint(c, greeting)
		in := bufio.NewScanner(c)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			var cmd command
			if err := json.Unmarshal(in.Bytes(), &cmd); err != nil {
				fmt.Fprint(c, `{"error": {"class": "GenericError", "desc": "JSON parse error"}}`+"\r\n")
				continue
			}
			if cmd.Execute == "qmp_capabilities" {
				returns(c, cmd, `{}`)
				continue
			}
			s.serve(c, cmd)
		}
	})
	s.t.Cleanup(func() { l.Close(); wg.Wait() })
	return s.path
}

func returns(c net.Conn, cmd command, value string) {
	fmt.Fprintf(c, `{"return": %s, "id": %s}`+"\r\n", value, cmd.ID)
}

func connect(t *testing.T, o Options, serve func(c net.Conn, cmd command)) *Monitor {
	t.Helper()
	m, err := Dial(t.Context(), (&server{t: t, serve: serve}).start(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Disconnect() })
	return m
}

func TestRepliesGoByID(t *testing.T) {
	var mu sync.Mutex
	var held []command
	m := connect(t, Options{}, func(c net.Conn, cmd command) {
		mu.Lock()
		defer mu.Unlock()
		if held = append(held, cmd); len(held) == 8 { // backwards, and an event between
			for i := len(held) - 1; i >= 0; i-- {
				fmt.Fprint(c, `{"event": "STOP", "data": {}, "timestamp": {"seconds": 1, "microseconds": 2}}`+"\n")
				returns(c, held[i], `"`+held[i].Execute+`"`)
			}
		}
	})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name, got := fmt.Sprintf("command-%d", i), ""
			if err := m.Execute(t.Context(), name, nil, &got); err != nil || got != name {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		})
	}
	wg.Wait()
	if v := m.Version(); v.String() != "7.2.22" || v.Package != "test" {
		t.Errorf("version %+v", v)
	}
}

func TestLargeReplyAndTheBound(t *testing.T) {
	big := strings.Repeat("x", 3<<20)
	m := connect(t, Options{Line: 4 << 20}, func(c net.Conn, cmd command) {
		if cmd.Execute == "too-much" {
			big += big
		}
		returns(c, cmd, `"`+big+`"`)
	})
	var got string
	if err := m.Execute(t.Context(), "much", nil, &got); err != nil || len(got) != 3<<20 {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	err := m.Execute(t.Context(), "too-much", nil, &got)
	if !errors.Is(err, ErrTooLarge) || !errors.Is(err, ErrProtocol) {
		t.Errorf("%v", err)
	}
	if err := m.Execute(t.Context(), "after", nil, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("after the end of the connection: %v", err)
	}
}

func TestCommandError(t *testing.T) {
	m := connect(t, Options{}, func(c net.Conn, cmd command) {
		fmt.Fprintf(c, `{"id": %s, "error": {"class": "GenericError", "desc": "no such thing"}}`+"\n", cmd.ID)
	})
	var e *CommandError
	if err := m.Execute(t.Context(), "x", nil, nil); !errors.As(err, &e) || e.Class != "GenericError" || e.Desc != "no such thing" {
		t.Errorf("%v", err)
	}
	if _, err := m.Run([]byte(`{"execute": "x"}`)); !errors.As(err, &e) {
		t.Errorf("%v", err)
	}
	if _, err := m.Run([]byte(`nonsense`)); err == nil {
		t.Error("nonsense was sent")
	}
}

// Each command has its deadline; the reply that comes late is nobody else's.
func TestDeadline(t *testing.T) {
	release := make(chan struct{})
	m := connect(t, Options{Timeout: 50 * time.Millisecond}, func(c net.Conn, cmd command) {
		if cmd.Execute == "stall" {
			<-release
			returns(c, cmd, `"late"`)
			return
		}
		returns(c, cmd, `"prompt"`)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := m.Execute(ctx, "stall", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := m.Run([]byte(`{"execute": "next"}`)); !errors.Is(err, engine.ErrDeadline) { // the server still stalls
		t.Errorf("%v", err)
	}
	close(release)
	var got string
	if err := m.Execute(t.Context(), "third", nil, &got); err != nil || got != "prompt" {
		t.Errorf("%q, %v", got, err)
	}
	done, stop := context.WithCancel(t.Context())
	stop()
	if err := m.Execute(done, "never", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A server that does not read cannot hold a command beyond its deadline.
func TestWriteDeadline(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		fmt.Fprint(theirs, hello)
		in := bufio.NewReader(theirs)
		line, err := in.ReadBytes('\n')
		var cmd command
		if err == nil && json.Unmarshal(line, &cmd) == nil {
			returns(theirs, cmd, `{}`)
		}
		<-t.Context().Done()
		theirs.Close()
	}()
	m, err := Open(t.Context(), ours, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := m.Execute(ctx, "x", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := m.Execute(t.Context(), "y", nil, nil); !errors.Is(err, engine.ErrDead) {
		t.Errorf("after half a command: %v", err)
	}
}

func TestServerEnds(t *testing.T) {
	m := connect(t, Options{}, func(c net.Conn, cmd command) { c.Close() })
	events, err := m.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Execute(t.Context(), "x", nil, nil); !errors.Is(err, engine.ErrDead) {
		t.Errorf("%v", err)
	}
	<-m.Done()
	if _, open := <-events; open {
		t.Error("the events go on")
	}
	if _, err := m.Events(t.Context()); !errors.Is(err, engine.ErrDead) {
		t.Errorf("%v", err)
	}
	if m.Connect() == nil {
		t.Error("Connect says that it is connected")
	}
	for range 2 {
		if err := m.Disconnect(); err != nil {
			t.Error(err)
		}
	}
}

// A server that lies ends the connection; nobody gets another's reply.
func TestLies(t *testing.T) {
	for name, lie := range map[string]string{
		"another id":        `{"return": {}, "id": "4711"}`,
		"no id":             `{"return": {}}`,
		"a number as id":    `{"return": {}, "id": 2}`,
		"an error, no id":   `{"error": {"class": "GenericError", "desc": "JSON parse error"}}`,
		"reply and event":   `{"return": {}, "event": "STOP", "id": "2"}`,
		"reply and error":   `{"return": {}, "error": {"class": "", "desc": ""}, "id": "2"}`,
		"nothing":           `{}`,
		"no JSON":           `hello`,
		"a list":            `[]`,
		"twice":             `{"return": {}, "id": "2"}` + "\n" + `{"return": {}, "id": "2"}`,
		"an event's time":   `{"event": "STOP", "timestamp": "now"}`,
		"the greeting anew": hello,
	} {
		t.Run(name, func(t *testing.T) {
			m := connect(t, Options{}, func(c net.Conn, cmd command) { fmt.Fprint(c, lie+"\n") })
			err := m.Execute(t.Context(), "x", nil, nil)
			if name == "twice" && err == nil {
				<-m.Done()
				err = m.Execute(t.Context(), "y", nil, nil)
			}
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestGreetings(t *testing.T) {
	for name, greet := range map[string]string{"none": "\n", "another": `{"QMP": 1}` + "\n", "no version": `{"QMP": {}}` + "\n", "a reply": `{"return": {}}` + "\n"} {
		s := &server{t: t, greet: greet}
		if m, err := Dial(t.Context(), s.start(), Options{}); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v %v", name, m, err)
		}
	}
	// As QEMU does to a second client: it is connected and never greeted.
	s := &server{t: t, greet: " "}
	path := s.start()
	if _, err := Dial(t.Context(), path, Options{Timeout: 20 * time.Millisecond}); !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("%v", err)
	}
	s = &server{t: t, greet: " "}
	path = s.start()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := Dial(ctx, path, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := Dial(t.Context(), filepath.Join(t.TempDir(), "nowhere"), Options{}); err == nil {
		t.Error("connected to nothing")
	}
}

// A flood of events blocks nobody: who does not read them loses them, by count.
func TestEventFlood(t *testing.T) {
	const flood = 5000
	m := connect(t, Options{Events: 16}, func(c net.Conn, cmd command) {
		for i := range flood {
			fmt.Fprintf(c, `{"event": "FLOOD", "data": {"n": %d}, "timestamp": {"seconds": 1, "microseconds": 0}}`+"\n", i)
		}
		returns(c, cmd, `{}`)
	})
	ctx, cancel := context.WithCancel(t.Context())
	deaf, err := m.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Execute(t.Context(), "flood", nil, nil); err != nil {
		t.Fatal(err)
	}
	if d := m.Dropped(); d != flood-16 {
		t.Errorf("%d events were dropped, want %d", d, flood-16)
	}
	for i := range 16 { // the first ones, in order
		if e := <-deaf; e.Event != "FLOOD" || e.Data["n"] != float64(i) || e.Timestamp.Seconds != 1 {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	cancel()
	if _, open := <-deaf; open {
		t.Error("the channel is not closed with its context")
	}
	if err := m.Execute(t.Context(), "flood", nil, nil); err != nil {
		t.Error(err)
	}
	if d := m.Dropped(); d != flood-16 {
		t.Errorf("%d events were dropped although nobody listens", d)
	}
}

// The libraries that take a qmp.Monitor work on ours.
func TestLibraries(t *testing.T) {
	m := connect(t, Options{}, func(c net.Conn, cmd command) {
		switch {
		case string(cmd.Arguments) == "null":
			fmt.Fprintf(c, `{"id": %s, "error": {"class": "GenericError", "desc": "QMP input member 'arguments' must be an object"}}`+"\n", cmd.ID)
		case cmd.Execute == "query-status":
			returns(c, cmd, `{"status": "paused", "singlestep": false, "running": false}`)
		case cmd.Execute == "query-version":
			returns(c, cmd, `{"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}`)
		case cmd.Execute == "query-kvm":
			returns(c, cmd, `{"enabled": false, "present": true}`)
		default:
			returns(c, cmd, `[]`)
		}
	})
	status, err := raw.NewMonitor(m).QueryStatus()
	if err != nil || status.Status != raw.RunStatePaused {
		t.Errorf("%+v %v", status, err)
	}
	kvm, err := raw.NewMonitor(m).QueryKVM()
	if err != nil || kvm.Enabled || !kvm.Present {
		t.Errorf("%+v %v", kvm, err)
	}
	d, err := goqemu.NewDomain(m, "drums")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := d.Version(); err != nil || v != "7.2.22" {
		t.Errorf("%q %v", v, err)
	}
	var args map[string]any
	if _, err := d.Run(qmp.Command{Execute: "query-block", Args: args}); err != nil {
		t.Errorf("a nil map as arguments: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A file travels with its command and is the same file on the other side.
func TestFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range pair {
		end := os.NewFile(uintptr(fd), "end")
		if ends[i], err = net.FileConn(end); err != nil {
			t.Fatal(err)
		}
		end.Close()
	}
	got := make(chan string, 1)
	go func() {
		theirs := ends[1].(*net.UnixConn)
		defer theirs.Close()
		fmt.Fprint(theirs, hello)
		for { // one command a message here: each waits for its reply
			text, oob := make([]byte, 4096), make([]byte, 64)
			n, nOOB, _, _, err := theirs.ReadMsgUnix(text, oob)
			var cmd command
			if err != nil || n == 0 || json.Unmarshal(text[:n], &cmd) != nil {
				return
			}
			if messages, err := unix.ParseSocketControlMessage(oob[:nOOB]); err == nil && len(messages) == 1 {
				if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
					link, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fds[0]))
					unix.Close(fds[0])
					got <- cmd.Execute + " " + link
				}
			}
			returns(theirs, cmd, `{}`)
		}
	}()
	m, err := Open(t.Context(), ends[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect()
	if err := m.ExecuteWithFile(t.Context(), f, "getfd", map[string]any{"fdname": "x"}, nil); err != nil {
		t.Fatal(err)
	}
	if have := <-got; have != "getfd "+f.Name() {
		t.Errorf("the server got %q", have)
	}
}

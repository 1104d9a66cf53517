package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

func TestProbe(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	p, err := s.client.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program(t))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	if want := hex.EncodeToString(sum[:]); string(p.ServerSHA256) != want {
		t.Errorf("digest %s, want %s", p.ServerSHA256, want)
	}
	if p.Pid != 1 || p.Reason != "" || len(p.Services) != 0 {
		t.Errorf("%+v", p)
	}
	if host, err := os.Hostname(); err != nil || p.Hostname != host {
		t.Errorf("host name %s, want %s (%v)", p.Hostname, host, err)
	}
	// The host's view of the same namespaces is equal, mount for mount.
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mounts, err := observe.ParseMounts(f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(mounts, p.Mounts); diff != "" {
		t.Error(diff)
	}
	network, err := observe.NetworkAt(fmt.Sprintf("/proc/%d/ns/net", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(network, p.Network); diff != "" {
		t.Error(diff)
	}
	clock, _ := strconv.ParseInt(string(p.Clock), 10, 64)
	if skew := time.Since(time.Unix(0, clock)); skew < 0 || skew > 10*time.Second {
		t.Errorf("clock is off by %s", skew)
	}

	// From outside the server: the same but for what only the server knows.
	var outside guest.Probe
	if err := json.Unmarshal([]byte(s.sh(program(t)+" probe")), &outside); err != nil {
		t.Fatal(err)
	}
	if outside.Live != (bench.LiveState{}) || outside.Phase != "" || outside.Pid == 1 {
		t.Errorf("%+v", outside)
	}
	for _, v := range []*guest.Probe{&p, &outside} {
		v.Live, v.Phase, v.Pid, v.Uptime, v.Clock = bench.LiveState{}, "", 0, "", ""
	}
	if diff := cmp.Diff(p, outside); diff != "" {
		t.Error(diff)
	}
	if v := s.sh(program(t) + " version"); !strings.HasPrefix(v, guest.Version+" go") {
		t.Error(v)
	}
}

func TestLiveState(t *testing.T) {
	s, sibling := start(t, guest.PhaseRunning), start(t, guest.PhaseRunning)
	read := func(s *testSlot) (string, uint64) {
		t.Helper()
		p, err := s.client.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseUint(string(p.Live.Counter), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return p.Live.Token, n
	}
	token, first := read(s)
	other, _ := read(sibling)
	if token == other {
		t.Error("two slots have one token")
	}
	time.Sleep(25 * proto.TickPeriod)
	again, second := read(s)
	if again != token {
		t.Error("the token changed")
	}
	if advanced := second - first; advanced < 10 || advanced > 40 {
		t.Errorf("advanced by %d in 25 periods and one probe", advanced)
	}
	_, third := read(s)
	if third <= second {
		t.Errorf("counter %d after %d", third, second)
	}
}

func TestExecute(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	for _, c := range []struct {
		name string
		argv []string
		want guest.Result
	}{
		{"output", []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, guest.Result{Exit: 3, Stdout: []byte("out\n"), Stderr: []byte("err\n")}},
		{"signal", []string{"sh", "-c", "kill -9 $$"}, guest.Result{Exit: -9, Signalled: true}},
		{"exact arguments", []string{"printf", "%s|", "a b", "", "$HOME", "'"}, guest.Result{Stdout: []byte("a b||$HOME|'|")}},
		{"no text", []string{"printf", `\377\000x`}, guest.Result{Stdout: []byte("\xff\x00x")}},
		{"environment", []string{"env"}, guest.Result{Stdout: []byte("HOME=/root\nLOGNAME=root\nPATH=" + searchPath + "\nSHELL=/bin/sh\nUSER=root\n")}},
		{"place", []string{"sh", "-c", "pwd; id -u; umask; ls /proc/self/fd | wc -l; read x; echo $?"}, guest.Result{Stdout: []byte("/root\n0\n0022\n4\n1\n")}},
		{"home", []string{"echo", "~/x", "a~/x"}, guest.Result{Stdout: []byte("/root/x a~/x\n")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := s.client.Execute(t.Context(), c.argv, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Stdout, c.want.Stderr = append([]byte{}, c.want.Stdout...), append([]byte{}, c.want.Stderr...)
			if diff := cmp.Diff(c.want, r); diff != "" {
				t.Error(diff)
			}
		})
	}
	// A session of its own, away from pid 1's.
	if f := strings.Fields(s.sh("cat /proc/self/stat; echo; cat /proc/$$/stat")); f[5] == "1" || f[4] != f[5] {
		t.Errorf("group %s and session %s", f[4], f[5])
	}
	for _, argv := range [][]string{{"/absent"}, {"absent-program"}, {"/etc/passwd"}, {"/proc"}} {
		if r, err := s.client.Execute(t.Context(), argv, time.Second); !errors.Is(err, guest.ErrExecute) || errors.Is(err, engine.ErrDead) {
			t.Errorf("%q: %+v, %v", argv, r, err)
		}
	}
	if got := s.processes(); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}

func TestExecuteTwentyAtOnce(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	errs := make(chan error)
	for i := range 20 {
		go func() {
			r, err := s.client.Execute(t.Context(), []string{"sh", "-c", fmt.Sprintf("(exit 9); sleep 0.1; echo %d; exit %d", i, i)}, 20*time.Second)
			if err == nil && (r.Exit != i || string(r.Stdout) != fmt.Sprintln(i)) {
				err = fmt.Errorf("%d got %+v", i, r)
			}
			errs <- err
		}()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// cases.md 22.
func TestTimeoutEndsTheWholeTree(t *testing.T) {
	for name, script := range map[string]string{
		"ignores TERM":  `trap "" TERM INT HUP; echo started; while :; do sleep 1; done`,
		"double fork":   `trap "" TERM; echo started; (setsid sh -c 'trap "" TERM; (setsid sleep 31 &) ; sleep 32 & wait' &); sleep 33`,
		"clean env":     `echo started; (env -i setsid sh -c 'exec sleep 34' </dev/null >/dev/null 2>&1 &); sleep 35`,
		"stopped child": `echo started; sleep 36 & kill -STOP $!; sleep 37`,
		// Whoever leaves session and parent behind and sets its own limit is found while its parent lives.
		"own limits": `echo started; (ulimit -x 7; setsid sleep 38 & sleep 39); sleep 40`,
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, guest.PhaseRunning)
			begin := time.Now()
			r, err := s.client.Execute(t.Context(), []string{"bash", "-c", script}, time.Second)
			took := time.Since(begin)
			if err != nil {
				t.Fatal(err)
			}
			if !r.TimedOut || r.Signalled || r.Exit != -1 || string(r.Stdout) != "started\n" {
				t.Errorf("%+v", r)
			}
			if took < time.Second || took > 4*time.Second {
				t.Errorf("took %s", took)
			}
			// The answer comes after the tree is gone; zombies are reaped right behind it.
			for pid, what := range s.processes() {
				if pid != s.pid && what[0] != 'Z' {
					t.Errorf("left: %s", what)
				}
			}
			eventually(t, "zombies reaped", func() bool { return len(s.processes()) == 1 })
			if out := s.sh("echo well"); out != "well\n" {
				t.Error(out)
			}
		})
	}
	t.Run("grows while it is ended", func(t *testing.T) {
		s := start(t, guest.PhaseRunning)
		// A bound like the slot's pids limit, which holds for anybody but root.
		const bomb = `
import os, resource
os.setgid(65534); os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (200, 200))
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass`
		r, err := s.client.Execute(t.Context(), []string{"python3", "-c", bomb}, time.Second)
		if err != nil || !r.TimedOut {
			t.Fatalf("%+v, %v", r, err)
		}
		for pid, what := range s.processes() {
			if pid != s.pid && what[0] != 'Z' {
				t.Errorf("left: %s", what)
			}
		}
	})
	t.Run("is never where one looks", func(t *testing.T) {
		s := start(t, guest.PhaseRunning)
		const comet = `
import os
while True:
    if os.fork(): os._exit(0)
    os.setsid()`
		// The first parent lives on: else the program has ended by itself.
		_, err := s.client.Execute(t.Context(), []string{"sh", "-c", "python3 -c \"$0\" & sleep 60", comet}, time.Second)
		left := func() (n int) {
			for pid, what := range s.processes() {
				if pid != s.pid && what[0] != 'Z' {
					n++
				}
			}
			return n
		}
		// Either it is gone, or the slot says that it is not.
		if err == nil {
			for range 20 {
				if n := left(); n > 0 {
					t.Fatalf("%d left", n)
				}
			}
		} else if p := s.wait(guest.PhaseFailed); !errors.Is(err, guest.ErrExecute) {
			t.Errorf("%+v, %v", p, err)
		}
		t.Logf("%v", err)
	})
}

func TestCancelEndsTheTree(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	c := guest.New(s.dial, testPort, guest.Limits{Exchange: time.Nanosecond})
	if _, err := c.Execute(t.Context(), []string{"sh", "-c", "(setsid sleep 50 &); sleep 51"}, time.Second); !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("time of the exchange: %v", err)
	}
	eventually(t, "tree ended", func() bool { return len(s.processes()) == 1 })

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		eventually(t, "tree started", func() bool { return len(s.processes()) == 3 })
		cancel()
	}()
	if _, err := s.client.Execute(ctx, []string{"sh", "-c", "(setsid sleep 50 &); exec sleep 51"}, 20*time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	eventually(t, "tree ended", func() bool { return len(s.processes()) == 1 })
}

func TestDaemonOfAnEndedProgramStays(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	begin := time.Now()
	// The daemon holds both outputs open.
	r := s.execute("sh", "-c", "head -c 60000 /dev/zero; (setsid sleep 60 &); echo done")
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("waited for the daemon: %s", took)
	}
	if r.Exit != 0 || len(r.Stdout) != 60005 || !bytes.HasSuffix(r.Stdout, []byte("done\n")) {
		t.Errorf("exit %d, %d bytes", r.Exit, len(r.Stdout))
	}
	if s.sh("pgrep -x sleep | wc -l") != "1\n" {
		t.Errorf("the daemon is gone: %v", s.processes())
	}
	// The end of another program's tree is not its end.
	if r, err := s.client.Execute(t.Context(), []string{"sleep", "61"}, 200*time.Millisecond); err != nil || !r.TimedOut {
		t.Errorf("%+v, %v", r, err)
	}
	if s.sh("pgrep -x sleep | wc -l") != "1\n" {
		t.Errorf("the daemon is gone: %v", s.processes())
	}
}

func TestOutputLimit(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	r := s.execute("sh", "-c", "head -c 100000000 /dev/zero; head -c 1048576 /dev/zero >&2; exit 4")
	if r.Exit != 4 || !r.Truncated || len(r.Stdout) != guest.OutputLimit || len(r.Stderr) != guest.OutputLimit {
		t.Errorf("exit %d, truncated %t, %d and %d bytes", r.Exit, r.Truncated, len(r.Stdout), len(r.Stderr))
	}
	r = s.execute("sh", "-c", "head -c 1048576 /dev/zero")
	if r.Truncated || len(r.Stdout) != guest.OutputLimit {
		t.Errorf("truncated %t, %d bytes", r.Truncated, len(r.Stdout))
	}
}

func TestOrphansAreReaped(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	s.sh("for i in $(seq 200); do (true & ) ; (setsid sh -c 'sleep 0.05' & ); done")
	eventually(t, "everybody reaped", func() bool { return len(s.processes()) == 1 })
}

func TestFiles(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	ctx := t.Context()
	s.sh("mkdir /run/d && ln -s target /run/d/link && mkfifo /run/d/fifo && echo old > /run/d/old && chmod 600 /run/d/old && ln /run/d/old /run/d/hard")
	for _, size := range []int{0, 1, 100_000, 5_000_000} {
		data := bytes.Repeat([]byte{0, 1, 2, 255}, size/4+1)[:size]
		if err := s.client.WriteFile(ctx, "/run/d/a b", data, 0o662); err != nil {
			t.Fatal(err)
		}
		got, err := s.client.ReadFile(ctx, "/run/d/a b", int64(size))
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes of %d: %v", len(got), size, err)
		}
		if size > 0 {
			if _, err := s.client.ReadFile(ctx, "/run/d/a b", int64(size)-1); !errors.Is(err, guest.ErrTooLarge) {
				t.Errorf("%v", err)
			}
		}
	}
	if out := s.sh("stat -c '%a %U' '/run/d/a b'"); out != "662 root\n" {
		t.Error(out)
	}
	// In place: links and mode stay.
	if err := s.client.WriteFile(ctx, "/run/d/old", []byte("new"), 0); err != nil {
		t.Fatal(err)
	}
	if out := s.sh("cat /run/d/hard; stat -c ' %a %h' /run/d/old"); out != "new 600 2\n" {
		t.Error(out)
	}
	if err := s.client.WriteFile(ctx, "/run/d/link", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if out := s.sh("cat /run/d/target; stat -c ' %a %F' /run/d/target"); out != "x 644 regular file\n" {
		t.Error(out)
	}
	// A file of the kernel has no size.
	if got, err := s.client.ReadFile(ctx, "/proc/self/status", 1<<20); err != nil || !bytes.Contains(got, []byte("NSpid:")) {
		t.Errorf("%q %v", got, err)
	}
	for _, path := range []string{"~/.profile", "$HOME/.profile", "${HOME}/.profile"} {
		if got, err := s.client.ReadFile(ctx, path, 1<<20); err != nil || len(got) == 0 {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/run/d/absent", "/run/d/old/below", "$ABSENT"} {
		if _, err := s.client.ReadFile(ctx, path, 1<<20); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/run/d", "/run/d/fifo", "/dev/zero"} {
		if _, err := s.client.ReadFile(ctx, path, 1<<20); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("read %s: %v", path, err)
		}
		if err := s.client.WriteFile(ctx, path, []byte("x"), 0); err == nil {
			t.Errorf("wrote %s", path)
		}
	}
	// Folders on the way are made, as the public server does.
	if err := s.client.WriteFile(ctx, "/run/absent/too/f", []byte("x"), 0); err != nil {
		t.Error(err)
	}
	if err := s.client.WriteFile(ctx, "/run/d/old/f", []byte("x"), 0); err == nil {
		t.Error("wrote below a file")
	}
}

// request speaks plain HTTP, as a client of the public server would.
func (s *testSlot) request(method, path, contentType, body string) (int, string, string) {
	s.t.Helper()
	conn, err := s.dial(s.t.Context(), testPort)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	hc := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
	q, err := http.NewRequest(method, "http://127.0.0.1:5000"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	q.Header.Set("Content-Type", contentType)
	r, err := hc.Do(q)
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if !r.Close {
		s.t.Error("the connection is kept")
	}
	return r.StatusCode, r.Header.Get("Content-Type"), string(text)
}

// The shapes of the public server.
func TestPublicShapes(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	for _, c := range []struct {
		name, method, path, contentType, body string
		status                                int
		wantType, want                        string
	}{
		{"list", "POST", "/execute", "application/json", `{"command": ["sh", "-c", "echo a; exit 2"], "shell": false}`,
			200, "application/json", `{"status":"success","output":"a\n","error":"","returncode":2}`},
		{"setup, text", "POST", "/setup/execute", "application/json", `{"command": "printf '%s,' 'a b' \"c\\\"d\" e\\ f ~/g"}`,
			200, "application/json", `{"status":"success","output":"a b,c\"d,e f,/root/g,","error":"","returncode":0}`},
		{"shell", "POST", "/execute", "application/json", `{"command": "echo $((1+1)); echo b >&2", "shell": true, "timeout": 5}`,
			200, "application/json", `{"status":"success","output":"2\n","error":"b\n","returncode":0}`},
		{"signal", "POST", "/execute", "application/json", `{"command": "kill -15 $$", "shell": true}`,
			200, "application/json", `{"status":"success","output":"","error":"","returncode":-15}`},
		{"absent program", "POST", "/execute", "application/json", `{"command": ["/absent"]}`,
			500, "application/json", `{"status":"error","output":"","error":"","message":"exec: \"/absent\": stat /absent: no such file or directory"}`},
		{"time-out", "POST", "/execute", "application/json", `{"command": ["sleep", "9"], "timeout": 0.2}`,
			500, "application/json", `{"status":"error","output":"","error":"","message":"command [\"sleep\" \"9\"] timed out after 0.2 seconds, its processes were ended","timed_out":true}`},
		{"bad JSON", "POST", "/execute", "application/json", `{`, 400, "application/json", ""},
		{"no command", "POST", "/execute", "application/json", `{"command": []}`, 400, "application/json", ""},
		{"bad command", "POST", "/execute", "application/json", `{"command": 5}`, 400, "application/json", ""},
		{"open quote", "POST", "/execute", "application/json", `{"command": "a 'b"}`, 400, "application/json", ""},
		{"bad timeout", "POST", "/execute", "application/json", `{"command": ["true"], "timeout": -1}`, 400, "application/json", ""},
		{"file", "POST", "/file", "application/x-www-form-urlencoded", "file_path=%2Fproc%2F1%2Fcomm", 200, "application/octet-stream", "guestd\n"},
		{"no file", "POST", "/file", "application/x-www-form-urlencoded", "file_path=%2Fabsent", 404, "application/json", `{"error":"File not found"}`},
		{"no path", "POST", "/file", "application/x-www-form-urlencoded", "x=y", 400, "application/json", `{"error":"file_path is required"}`},
		{"upload", "POST", "/setup/upload", "multipart/form-data; boundary=B",
			"--B\r\nContent-Disposition: form-data; name=\"file_path\"\r\n\r\n/run/up\r\n--B\r\nContent-Disposition: form-data; name=\"file_data\"; filename=\"up\"\r\n\r\ndata\r\n--B--\r\n",
			200, "text/plain; charset=utf-8", "File Uploaded: 4 bytes"},
		{"upload without a path", "POST", "/setup/upload", "multipart/form-data; boundary=B",
			"--B\r\nContent-Disposition: form-data; name=\"file_data\"; filename=\"up\"\r\n\r\ndata\r\n--B--\r\n", 400, "application/json", ""},
		{"no such request", "GET", "/absent", "", "", 404, "application/json", `{"error":"no such request: GET /absent"}`},
		{"wrong method", "GET", "/execute", "", "", 404, "application/json", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, contentType, body := s.request(c.method, c.path, c.contentType, c.body)
			if status != c.status || contentType != c.wantType || (c.want != "" && body != c.want) {
				t.Errorf("%d %s %s", status, contentType, body)
			}
		})
	}
}

func TestServices(t *testing.T) {
	s := launch(t, standard(
		bench.Service{Name: "first", Exec: []string{"sh", "-c", `sleep 0.3; echo "$COLOUR $HOME" > /run/first; echo said; echo err >&2; exec sleep 100`},
			Env: map[string]string{"COLOUR": "red", "HOME": "/run"}, Ready: "/run/first"},
		bench.Service{Name: "second", Exec: []string{"sh", "-c", `cat /run/first; exec sleep 101`}},
		bench.Service{Name: "third", Exec: []string{"sh", "-c", `sleep 0.3; touch /run/third; exec sleep 102`}, Ready: "/run/third"},
	))
	p := s.wait(guest.PhaseStarting)
	if p.Services[2].Pid != 0 || p.Services[2].Ready {
		t.Errorf("%+v", p.Services)
	}
	p = s.wait(guest.PhaseRunning)
	for _, v := range p.Services {
		if !v.Alive || !v.Ready || v.Pid <= 1 || v.Exit != "" {
			t.Errorf("%+v", v)
		}
	}
	eventually(t, "logs", func() bool {
		return s.sh("cat /run/guestd/first.log /run/guestd/second.log") == "said\nerr\nred /run\n"
	})

	// One that dies makes the slot failed, and it stays so.
	pid := strconv.Itoa(p.Services[1].Pid)
	if r, err := s.client.Execute(t.Context(), []string{"kill", "-9", pid}, 5*time.Second); err != nil || r.Exit != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	p = s.wait(guest.PhaseFailed)
	if want := "service second ended: signal 9"; p.Reason != want {
		t.Errorf("reason %q, want %q", p.Reason, want)
	}
	if v := p.Services[1]; v.Alive || v.Ready || v.Exit != "signal 9" || strconv.Itoa(v.Pid) != pid {
		t.Errorf("%+v", v)
	}
	if v := p.Services[0]; !v.Alive || !v.Ready {
		t.Errorf("%+v", v)
	}
	_, err := s.client.Execute(t.Context(), []string{"true"}, time.Second)
	if !errors.Is(err, guest.ErrFailed) || !errors.Is(err, engine.ErrDead) || !strings.Contains(err.Error(), p.Reason) {
		t.Errorf("%v", err)
	}
	// What it left is still to be read.
	if log, err := s.client.ReadFile(t.Context(), guest.LogDir+"/second.log", 100); err != nil || string(log) != "red /run\n" {
		t.Errorf("%q, %v", log, err)
	}
}

// A client of the next service must not find a socket that is not listened on yet.
func TestReadySocket(t *testing.T) {
	const late = `
import socket, time
s = socket.socket(socket.AF_UNIX); s.bind("/run/late"); time.sleep(0.4); s.listen(1); time.sleep(100)`
	s := start(t, guest.PhaseRunning,
		bench.Service{Name: "late", Exec: []string{"python3", "-c", late}, Ready: "/run/late"},
		bench.Service{Name: "client", Exec: []string{"python3", "-c", `import socket, time; socket.socket(socket.AF_UNIX).connect("/run/late"); open("/run/connected", "w"); time.sleep(100)`}, Ready: "/run/connected"},
	)
	if p := s.wait(guest.PhaseRunning); !p.Services[1].Alive {
		t.Errorf("%+v", p.Services)
	}
}

func TestServicesThatDoNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		services []bench.Service
		want     string
	}{
		"absent":            {[]bench.Service{{Name: "a", Exec: []string{"/absent"}}}, `service a: exec: "/absent": stat /absent: no such file or directory`},
		"ends first":        {[]bench.Service{{Name: "a", Exec: []string{"sh", "-c", "exit 3"}, Ready: "/run/never"}}, "service a ended: exit 3"},
		"ends after":        {[]bench.Service{{Name: "a", Exec: []string{"true"}}}, "service a ended: exit 0"},
		"was ready already": {[]bench.Service{{Name: "a", Exec: []string{"sleep", "9"}, Ready: "/etc/passwd"}}, "service a: its ready path /etc/passwd is there before it was started"},
		"stops the rest":    {[]bench.Service{{Name: "a", Exec: []string{"false"}, Ready: "/run/never"}, {Name: "b", Exec: []string{"sleep", "9"}}}, "service a ended: exit 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, standard(c.services...))
			p := s.wait(guest.PhaseFailed)
			if p.Reason != c.want {
				t.Errorf("reason %q, want %q", p.Reason, c.want)
			}
			if last := p.Services[len(p.Services)-1]; name == "stops the rest" && last.Pid != 0 {
				t.Errorf("%+v", last)
			}
		})
	}
}

func TestTermEndsTheServices(t *testing.T) {
	dir := t.TempDir()
	s := start(t, guest.PhaseRunning,
		bench.Service{Name: "polite", Exec: []string{"sh", "-c", `trap "echo bye > ` + dir + `/polite; exit" TERM; touch /run/p; while :; do sleep 0.05; done`}, Ready: "/run/p"},
		bench.Service{Name: "deaf", Exec: []string{"sh", "-c", `trap "" TERM; touch /run/d; while :; do sleep 0.05; done`}, Ready: "/run/d"},
	)
	begin := time.Now()
	p, err := os.FindProcess(s.pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	if took := time.Since(begin); took > shutdownGrace+3*time.Second {
		t.Errorf("took %s", took)
	}
	if s.state.ExitCode() != 0 {
		t.Errorf("%s: %s", s.state, s.stderr)
	}
	if text, err := os.ReadFile(dir + "/polite"); err != nil || string(text) != "bye\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// How a program ended while the slot ends is not told: the slot's end may have ended it.
func TestNoAnswerWhileTheSlotEnds(t *testing.T) {
	s := start(t, guest.PhaseRunning, // its time holds the slot's end up
		bench.Service{Name: "deaf", Exec: []string{"sh", "-c", `trap "" TERM; touch /run/d; while :; do sleep 0.05; done`}, Ready: "/run/d"})
	if r, err := s.client.Execute(t.Context(), []string{"sh", "-c", "kill -TERM 1; sleep 0.2; exit 7"}, time.Minute); err == nil {
		t.Errorf("answered %+v", r)
	}
	<-s.ended
}

// No socket may be left that a dump would have to refuse, or a restore to repeat.
func TestConnectionsLeaveNothing(t *testing.T) {
	s := start(t, guest.PhaseRunning)
	for range 20 {
		if _, err := s.client.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := s.sockets(); len(left) > 0 {
			t.Fatalf("sockets after a probe:\n%s", strings.Join(left, "\n"))
		}
	}
	s.execute("true")
	s.client.Execute(t.Context(), []string{"sleep", "5"}, 50*time.Millisecond)
	s.client.ReadFile(t.Context(), "/absent", 10)
	s.client.WriteFile(t.Context(), "/run/x", make([]byte, 1<<20), 0)
	s.client.ReadFile(t.Context(), "/run/x", 10) // hangs up in the middle
	eventually(t, "no socket", func() bool { return len(s.sockets()) == 0 })
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, fd := range fds {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", s.pid, fd.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexByte(link, '['); strings.HasPrefix(link, "socket:") && i > 0 {
			link = link[:i]
		}
		open = append(open, link)
	}
	slices.Sort(open)
	t.Logf("descriptors: %q", open)
	for _, link := range open {
		switch link {
		case "/dev/null", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "socket:":
		default:
			if !strings.HasPrefix(link, "pipe:") { // the test's own standard error
				t.Errorf("descriptor of %s", link)
			}
		}
	}
	// The listener is plain TCP: CRIU cannot dump MPTCP.
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/protocols", s.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if f := strings.Fields(line); len(f) > 2 && strings.HasPrefix(f[0], "MPTCP") && f[2] != "0" {
			t.Errorf("an MPTCP socket: %s", line)
		}
	}
}

func TestRefusedStarts(t *testing.T) {
	broken := standard()
	broken.Server.Port = 0
	nobody := standard()
	nobody.User = "drums-absent"
	twice := standard(bench.Service{Name: "a", Exec: []string{"true"}}, bench.Service{Name: "a", Exec: []string{"true"}})
	for name, c := range map[string]struct {
		config bench.Guest
		env    []string
		want   string
	}{
		"port":       {broken, nil, "port 0 is none"},
		"user":       {nobody, nil, "look up user drums-absent"},
		"names":      {twice, nil, `service "a" is named twice`},
		"descriptor": {standard(), []string{inheritVariable + "=1"}, "came from outside: /dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, c.config, c.env...)
			<-s.ended
			if s.state.ExitCode() != 1 || !strings.Contains(s.stderr.String(), c.want) {
				t.Errorf("%s: %s", s.state, s.stderr)
			}
		})
	}
}

// The configuration does not go on to what the slot runs, and neither does anything of the host.
func TestEnvironmentEndsAtTheSlot(t *testing.T) {
	s := start(t, guest.PhaseRunning, bench.Service{Name: "a", Exec: []string{"sh", "-c", "env > /run/env; touch /run/ready; exec sleep 100"}, Ready: "/run/ready"})
	if out := s.sh("env; cat /run/env"); strings.Contains(out, guest.ConfigVariable) || strings.Contains(out, "STRAY") {
		t.Error(out)
	}
}

func TestAnotherUser(t *testing.T) {
	config := standard()
	config.User, config.Home = "nobody", "/absent"
	s := launch(t, config)
	s.wait(guest.PhaseRunning)
	if out := s.sh("id -un; id -gn; id -Gn; pwd; echo $HOME $USER"); out != "nobody\nnogroup\nnogroup\n/\n/absent nobody\n" {
		t.Error(out)
	}
}

// What each slot pays. The bounds are wide: they are there to catch a heavy dependency.
func TestCost(t *testing.T) {
	program(t)
	begin := time.Now()
	s := start(t, guest.PhaseRunning)
	started := time.Since(begin)
	execute := median(func() { s.execute("true") })
	probe := median(func() {
		if _, err := s.client.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	info, err := os.Stat(program(t))
	if err != nil {
		t.Fatal(err)
	}
	ticks := func() int {
		total := 0
		dirs, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.pid))
		for _, d := range dirs {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", s.pid, d.Name()))
			if err == nil {
				n, _ := strconv.Atoi(strings.Fields(string(line))[0])
				total += n
			}
		}
		return total
	}
	before := ticks()
	time.Sleep(3 * time.Second)
	idle := float64(ticks()-before) / 3e9 * 100
	t.Logf("start to running %s, probe %s, execute %s", started, probe, execute)
	t.Logf("program %d KiB, RSS %d KiB, anonymous %d KiB, %d threads, idle %.2f%% of a CPU",
		info.Size()>>10, s.status("VmRSS"), s.status("Anonymous"), s.status("Threads"), idle)
	if info.Size() > 12<<20 || s.status("VmRSS") > 24<<10 || s.status("Anonymous") > 12<<10 || s.status("Threads") > 12 || idle > 5 {
		t.Error("guestd has become heavy")
	}
}

func median(do func()) time.Duration {
	times := make([]time.Duration, 51)
	for i := range times {
		begin := time.Now()
		do()
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// status is a number that the kernel gives of guestd's memory or threads, in KiB or as it is.
func (s *testSlot) status(name string) int {
	s.t.Helper()
	for _, file := range []string{"status", "smaps_rollup"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.pid, file))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			if rest, ok := strings.CutPrefix(line, name+":"); ok {
				n, _ := strconv.Atoi(strings.Fields(rest)[0])
				return n
			}
		}
	}
	s.t.Fatalf("no %s", name)
	return 0
}

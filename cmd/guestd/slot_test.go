package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The tests run the real program as pid 1 of new namespaces on the host's own
// root, with a private /proc and /run. The test binary is the arm: it
// starts itself in the namespaces, prepares them, and becomes guestd.

const (
	stageVariable   = "DRUMS_TEST_STAGE" // path of the program to become, or "restore"
	inheritVariable = "DRUMS_TEST_INHERIT"
	tmpVariable     = "DRUMS_TEST_TMP" // set: the slot has a /tmp and a /usr/local/sbin of its own
	testPort        = 5000
)

func TestMain(m *testing.M) {
	switch stage := os.Getenv(stageVariable); stage {
	case "":
	case "restore":
		fmt.Fprintln(os.Stderr, "prepare restore:", restoreStage(os.Args[1:]))
		os.Exit(70)
	default:
		fmt.Fprintln(os.Stderr, "prepare slot:", becomeGuestd(stage))
		os.Exit(70)
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

func becomeGuestd(program string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if base := os.Getenv(rootVariable); base != "" {
		if err := enterRoot(base); err != nil {
			return err
		}
		return execGuestd("/bin/guestd")
	}
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"drums", "/run", "tmpfs", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if os.Getenv(tmpVariable) != "" {
		// What is below /tmp is the slot's own; the program lies below the host's.
		const at = "/run/guestd-program"
		if err := os.WriteFile(at, nil, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(program, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", at, err)
		}
		for dir, mode := range map[string]string{"/tmp": "mode=1777", "/usr/local/sbin": "mode=755"} {
			if err := unix.Mount("drums", dir, "tmpfs", 0, mode); err != nil {
				return fmt.Errorf("mount %s: %w", dir, err)
			}
		}
		program = at
	}
	return execGuestd(program)
}

func execGuestd(program string) error {
	if os.Getenv(inheritVariable) != "" {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
	} else if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	return unix.Exec(program, []string{program, "init"}, []string{guest.ConfigVariable + "=" + os.Getenv(guest.ConfigVariable), "STRAY=1"})
}

var built struct {
	sync.Once
	dir string
	err error
}

// program builds guestd as the image gets it.
func program(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "drums-guestd"); built.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(built.dir, "guestd"), ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build guestd: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "guestd")
}

type testSlot struct {
	t      testing.TB
	pid    int // of guestd, on the host
	client *guest.Client
	ended  chan struct{} // closed once guestd was reaped
	state  *os.ProcessState
	stderr *bytes.Buffer // read it after ended
}

// launch starts a slot. It is ended, and seen to be, with the test.
func launch(t testing.TB, config bench.Guest, env ...string) *testSlot {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &testSlot{t: t, ended: make(chan struct{}), stderr: &bytes.Buffer{}}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append([]string{stageVariable + "=" + program(t), guest.ConfigVariable + "=" + string(text)}, env...)
	cmd.Stderr = s.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true,
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a process in new namespaces (needs root): %v", err)
	}
	s.pid = cmd.Process.Pid
	s.client = guest.New(s.dial, testPort, guest.Limits{})
	go func() {
		cmd.Wait()
		s.state = cmd.ProcessState
		close(s.ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill() // with pid 1 goes the namespace
		select {
		case <-s.ended:
		case <-time.After(10 * time.Second):
			t.Error("the slot did not end")
		}
		if t.Failed() {
			t.Logf("guestd said: %s", s.stderr)
		}
	})
	return s
}

func standard(services ...bench.Service) bench.Guest {
	return bench.Guest{User: "root", Home: "/root", Services: services, Server: bench.Server{Port: testPort}}
}

// start is launch, and waits until the slot is in the phase.
func start(t testing.TB, phase guest.Phase, services ...bench.Service) *testSlot {
	t.Helper()
	s := launch(t, standard(services...))
	s.wait(phase)
	return s
}

func (s *testSlot) wait(phase guest.Phase) guest.Probe {
	s.t.Helper()
	var p guest.Probe
	var err error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if p, err = s.client.Probe(s.t.Context()); err == nil && p.Phase == phase {
			return p
		}
		select {
		case <-s.ended:
			s.t.Fatalf("the slot ended: %s %s", s.state, s.stderr)
		default:
		}
	}
	s.t.Fatalf("not %s in time: %+v, %v", phase, p, err)
	return p
}

// dial connects inside the slot's network namespace, as an arm does.
func (s *testSlot) dial(ctx context.Context, port int) (net.Conn, error) {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer own.Close()
	ns, err := netns.GetFromPath("/proc/" + strconv.Itoa(s.pid) + "/ns/net")
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return nil, err // the thread stays locked, and ends with the goroutine
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if back := netns.Set(own); back != nil {
		return nil, errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "slot")
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

func (s *testSlot) execute(argv ...string) guest.Result {
	s.t.Helper()
	r, err := s.client.Execute(s.t.Context(), argv, 20*time.Second)
	if err != nil {
		s.t.Fatalf("%q: %v", argv, err)
	}
	return r
}

// sh runs a script that must end with 0 and returns what it printed.
func (s *testSlot) sh(script string) string {
	s.t.Helper()
	r := s.execute("sh", "-c", script)
	if r.Exit != 0 || r.TimedOut {
		s.t.Fatalf("%s: %+v\nstdout %s\nstderr %s", script, r, r.Stdout, r.Stderr)
	}
	return string(r.Stdout)
}

// processes are the slot's processes as the host sees them: "state name" by host pid.
func (s *testSlot) processes() map[int]string {
	s.t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.t.Fatal(err)
	}
	out := make(map[int]string)
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != own {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		text := string(stat)
		open, closed := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
		out[pid] = text[closed+2:closed+3] + " " + text[open+1:closed]
	}
	return out
}

// sockets are the states of the TCP sockets in the slot's network namespace, without the listener's.
func (s *testSlot) sockets() []string {
	s.t.Helper()
	var out []string
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", s.pid, table))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
			if f := strings.Fields(line); f[3] != "0A" {
				out = append(out, line)
			}
		}
	}
	return out
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

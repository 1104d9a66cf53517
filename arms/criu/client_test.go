package criu

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
)

// fakeCommand starts the test program as a fake CRIU.
func fakeCommand(t *testing.T, mode string) (*exec.Cmd, string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{fakeVariable + "=" + mode, fakeDir + "=" + dir}
	return cmd, dir
}

func versionRequest() Request {
	return Request{Op: "ask", CriuReq: &rpc.CriuReq{Type: rpc.CriuReqType_VERSION.Enum()}}
}

// leaksNothing compares descriptors, goroutines and children before and after.
func leaksNothing(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	before := openFiles(t)
	t.Cleanup(func() {
		if err := goleak.Find(ignore); err != nil {
			t.Error(err)
		}
		if after := openFiles(t); after > before {
			t.Errorf("%d descriptors are open, there were %d", after, before)
		}
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil); err == nil && info.Signo != 0 {
			t.Error("a dead child was not reaped")
		}
	})
}

// littersNothing compares the host's /run, where a CRIU without a private one leaves files.
func littersNothing(t *testing.T) {
	t.Helper()
	list := func() string {
		names, err := filepath.Glob("/run/criu*")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(names, " ")
	}
	before := list()
	t.Cleanup(func() {
		if after := list(); after != before {
			t.Errorf("/run holds %q, it held %q", after, before)
		}
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// isGone says whether a process that a fake left the pid of is dead. The zombie
// of an orphan belongs to somebody else's subreaper and counts as dead.
func isGone(t *testing.T, dir, name string) bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return !isRunning(pid)
}

func isRunning(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false
	}
	state := string(stat[strings.LastIndexByte(string(stat), ')')+2])
	return state != "Z" && state != "X"
}

// A hanging CRIU ends with the deadline, and so does what it started (case 30).
func TestDeadlineEndsEverything(t *testing.T) {
	leaksNothing(t)
	cmd, dir := fakeCommand(t, "hang")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	start := time.Now()
	_, err := Run(ctx, cmd, versionRequest(), nil)
	if took := time.Since(start); took > 6*time.Second {
		t.Errorf("took %s", took)
	}
	var e *engine.Error
	if !errors.Is(err, engine.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != "ask" {
		t.Errorf("error %v", err)
	}
	if cmd.ProcessState == nil {
		t.Error("not reaped")
	}
	for _, name := range []string{"helper", "escaped"} {
		if !isGone(t, dir, name) {
			t.Errorf("%s still runs", name)
		}
	}
}

func TestCancelIsNoDeadline(t *testing.T) {
	leaksNothing(t)
	cmd, _ := fakeCommand(t, "deaf")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	_, err := Run(ctx, cmd, versionRequest(), nil)
	if !errors.Is(err, context.Canceled) || errors.Is(err, engine.ErrDeadline) {
		t.Errorf("error %v", err)
	}
	// Nothing is started for a context that is over.
	cmd, _ = fakeCommand(t, "deaf")
	if _, err := Run(ctx, cmd, versionRequest(), nil); !errors.Is(err, context.Canceled) || cmd.Process != nil {
		t.Errorf("error %v, process %v", err, cmd.Process)
	}
}

// A CRIU that ends while a helper of its keeps the socket open does not block the call.
func TestEndIsNoticedBehindOpenSocket(t *testing.T) {
	leaksNothing(t)
	cmd, dir := fakeCommand(t, "orphans")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := Run(ctx, cmd, versionRequest(), nil)
	if err == nil || ctx.Err() != nil {
		t.Errorf("error %v", err)
	}
	if !isGone(t, dir, "helper") {
		t.Error("the helper still runs")
	}
}

func TestAnswers(t *testing.T) {
	tests := []struct {
		mode  string
		check func(t *testing.T, err error, f *Failure)
	}{
		{"crash", func(t *testing.T, err error, f *Failure) {
			if f == nil || f.Kind != KindCrash || f.Signal != syscall.SIGSEGV {
				t.Errorf("failure %+v", f)
			}
		}},
		{"silent", func(t *testing.T, err error, f *Failure) {
			if f == nil || f.Exit != 3 || !strings.Contains(err.Error(), "stage: cannot mount anything") {
				t.Errorf("failure %+v", f)
			}
		}},
		{"garbage", func(t *testing.T, err error, f *Failure) {
			if !strings.Contains(err.Error(), "decode answer of 3 bytes") {
				t.Errorf("error %v", err)
			}
		}},
		{"wrong", func(t *testing.T, err error, f *Failure) {
			if !strings.Contains(err.Error(), "answered WAIT_PID to VERSION") {
				t.Errorf("error %v", err)
			}
		}},
		{"large", func(t *testing.T, err error, f *Failure) {
			if f == nil || len(f.Lines) != 1 || len(f.Lines[0]) != 150<<10 {
				t.Errorf("the long line is not whole: %.100v", err)
			}
		}},
		{"errno", func(t *testing.T, err error, f *Failure) {
			if f == nil || f.Errno != syscall.ESRCH || !strings.Contains(err.Error(), "no such process") {
				t.Errorf("error %v", err)
			}
		}},
		{"linger", func(t *testing.T, err error, f *Failure) {
			if !strings.Contains(err.Error(), "did not end within") {
				t.Errorf("error %v", err)
			}
		}},
		{"exit", func(t *testing.T, err error, f *Failure) {
			if f == nil || f.Exit != 1 {
				t.Errorf("error %v", err)
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.mode, func(t *testing.T) {
			leaksNothing(t)
			cmd, _ := fakeCommand(t, test.mode)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := Run(ctx, cmd, versionRequest(), nil)
			var e *engine.Error
			if !errors.As(err, &e) || e.Op != "ask" {
				t.Fatalf("error %v is not typed", err)
			}
			var f *Failure
			_ = errors.As(err, &f)
			test.check(t, err, f)
		})
	}
}

// The file of orphan-pts-master arrives, and its copy is closed after the callback.
func TestNotificationCarriesFile(t *testing.T) {
	leaksNothing(t)
	cmd, _ := fakeCommand(t, "pts")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := Run(ctx, cmd, versionRequest(), func(_ context.Context, n Notification) error {
		if n.Script != ScriptOrphanPtsMaster || n.File == nil || n.CRIU != cmd.Process.Pid {
			t.Errorf("notification %+v", n)
			return nil
		}
		_, err := n.File.Write([]byte("seen"))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A notification that nobody asked for is refused, not waved through.
func TestNobodyAnswers(t *testing.T) {
	leaksNothing(t)
	cmd, _ := fakeCommand(t, "pts")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var veto *VetoError
	if _, err := Run(ctx, cmd, versionRequest(), nil); !errors.As(err, &veto) || veto.Script != ScriptOrphanPtsMaster {
		t.Errorf("error %v", err)
	}
}

// The caller's own files follow the socket, and its old log does not explain a new failure.
func TestCallersFilesAndOldLog(t *testing.T) {
	leaksNothing(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	log := filepath.Join(t.TempDir(), "dump.log")
	if err := os.WriteFile(log, []byte("Error (criu/x.c:1): from yesterday\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "echo here >&4; exit 3")
	cmd.ExtraFiles = []*os.File{file}
	r := versionRequest()
	r.Log = log
	_, err = Run(t.Context(), cmd, r, nil)
	if err == nil || strings.Contains(err.Error(), "yesterday") {
		t.Errorf("error %v", err)
	}
	if data, err := os.ReadFile(file.Name()); err != nil || string(data) != "here\n" {
		t.Errorf("file holds %q, %v", data, err)
	}
}

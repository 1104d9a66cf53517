//go:build linux && !elsewhere

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/fake"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/soaktest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// mounted mounts a file system of a test's own.
func mounted(t *testing.T, point, options string, flags uintptr) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(point, 0o755), unix.Mount("drums", point, "tmpfs", flags, options)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// noNumber wants that a run which broke says so with a text and a remedy, gives no number and left nothing.
func noNumber(t *testing.T, what, state, dir, said string, err error, want string) {
	t.Helper()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != codeFailed && exit.ExitCode() != codeBlocked || !strings.Contains(said, want) {
		t.Errorf("%s: %v, want %q: %s", what, err, want, said)
	}
	if text, err := os.ReadFile(filepath.Join(dir, record.RecordFile)); err == nil && strings.Contains(string(text), `"verdict":"passed"`) {
		t.Errorf("%s: it has a record that passed", what)
	}
	if left, err := filepath.Glob(filepath.Join(state, "work", "*")); err != nil || len(left) > 0 {
		t.Errorf("%s: left behind: %v, %q", what, err, left)
	}
	if strings.Contains(said, "panic") {
		t.Errorf("%s: %s", what, said)
	}
}

// Disks that are full or read-only, below the run and below the state.
func TestBadDisks(t *testing.T) {
	folder := t.TempDir()
	manifest := filepath.Join(folder, "manifest")
	r := &resumer{T: t, arm: "fake"}
	try := func(state, out string) (string, error) {
		t.Helper()
		r.state = state
		said, _, err := r.program(nil, "run", "-t", "server="+string(fake.ServerSHA256()), "-t", "rollouts=40", "--out", out, filepath.Join(manifest, "desk"))
		return said, err
	}
	made := func(name string) string {
		t.Helper()
		state := newState(t, folder, name)
		if err := writeFakeManifest(state, manifest); err != nil {
			t.Fatal(err)
		}
		return state
	}

	state := made("full-run")
	out := filepath.Join(folder, "small")
	mounted(t, out, "size=400k", 0)
	said, err := try(state, filepath.Join(out, "run"))
	noNumber(t, "the disk of the run is full", state, filepath.Join(out, "run", "fake-restore"), said, err, "no space left on device")

	state = filepath.Join(folder, "full-state")
	mounted(t, state, "size=400k", 0)
	made("full-state")
	said, err = try(state, filepath.Join(state, "runs", "run"))
	noNumber(t, "the disk of the state is full", state, filepath.Join(state, "runs", "run", "fake-restore"), said, err, "no space left on device")

	state = made("read-only-run")
	out = filepath.Join(folder, "sealed")
	mounted(t, out, "size=4m", unix.MS_RDONLY)
	said, err = try(state, filepath.Join(out, "run"))
	noNumber(t, "the folder of the run is read-only", state, filepath.Join(out, "run", "fake-restore"), said, err, "read-only file system")

	state = made("read-only-state")
	mounted(t, filepath.Join(state, "work"), "size=4m", unix.MS_RDONLY)
	said, err = try(state, filepath.Join(folder, "elsewhere"))
	noNumber(t, "the scratch directory is read-only", state, filepath.Join(folder, "elsewhere", "fake-restore"), said, err, "read-only file system")
}

// greedy has the oracle take more memory than the slot has.
const greedy = `oracle: [{exec: ["/usr/bin/python3", "-c", "x = bytearray(2 << 30); x[::4096] = b'1' * len(x[::4096])"]}]`

// What breaks a real slot: the kernel ends its processes for memory, the file behind the image's loop
// device is cut short while it runs.
func TestBadSlots(t *testing.T) {
	folder, err := os.MkdirTemp(realState(), "drums-failures-")
	if err != nil {
		t.Fatalf("%v: scripts/prepare makes it", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	manifest := soakManifest(t, folder, "drums")
	state := filepath.Join(folder, "drums")
	r := &resumer{T: t, arm: "drums", state: state}
	nothing := func(what string) {
		t.Helper()
		v := map[string]int64{}
		for range 100 { // dead processes take a moment to go
			if err := soaktest.Host(t.Context(), "none", filepath.Join(state, "work"), state, v); err != nil {
				t.Fatal(err)
			}
			if v["own.processes"]+v["own.mounts"]+v["own.loops"] == 0 {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("%s: left behind: %v", what, v)
	}
	numbers := func(what, dir string) bench.Record {
		t.Helper()
		got := r.read(dir)
		if got.Verdict == engine.RunPassed || got.Reason == "" {
			t.Errorf("%s: %s", what, got.Verdict)
		}
		report, err := record.Verify(dir)
		for _, p := range append(report.Damage, report.Crash...) {
			t.Errorf("%s: %v", what, p)
		}
		if err != nil || len(report.Owned) > 0 {
			t.Errorf("%s: owned %v: %v", what, report.Owned, err)
		}
		nothing(what)
		return got
	}

	path := filepath.Join(manifest, "soak.cue")
	const oracle = `oracle: [{exec: ["/bin/mv", "/root/Desktop/todo", "/root/Desktop/done"]}]`
	small := strings.Replace(strings.Replace(renameTiny, oracle, greedy, 1), `memory: "512MiB"`, `memory: "96MiB"`, 1)
	if small == renameTiny || os.WriteFile(path, []byte(small), 0o644) != nil {
		t.Fatal("the manifest cannot be changed")
	}
	out := filepath.Join(state, "runs", "oom")
	said, _, err := r.program(nil, "run", "-t", "rollouts=1", "--arm", "drums", "--out", out, manifest)
	noNumber(t, "out of memory", state, r.dir(out), said, err, "")
	got := numbers("out of memory", r.dir(out))
	if c := got.Rollouts[1].Class; c != record.Invalid && c != record.EnvFailure {
		t.Errorf("a rollout whose act was killed for memory is %s: %s", c, got.Rollouts[1].Reason)
	}
	t.Logf("out of memory: %s: %s; %s", got.Verdict, got.Reason, got.Rollouts[1].Reason)
	if !strings.Contains(got.Reason, "r1/act") && !strings.Contains(got.Reason, "task quarantined") {
		t.Errorf("out of memory: %s", got.Reason)
	}

	// during does something to a run once it has come to a step.
	during := func(name, step string, rollouts int, do func(dir string)) (dir, said string, err error) {
		t.Helper()
		out := filepath.Join(state, "runs", name)
		program, err := exec.LookPath("drumsbench-crash")
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		cmd := exec.Command(program, "run", "-t", fmt.Sprint("rollouts=", rollouts), "--arm", "drums", "--out", out, manifest)
		cmd.Env = append(os.Environ(), "DRUMSBENCH_STATE="+state)
		cmd.Stdout, cmd.Stderr = &text, &text
		cmd.WaitDelay = time.Second
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if cmd.ProcessState == nil { // the test gave up: it takes away what it made
				cmd.Process.Signal(unix.SIGTERM)
				cmd.Wait()
			}
		}()
		for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			events, _ := os.ReadFile(filepath.Join(r.dir(out), record.EventsFile))
			if strings.Contains(string(events), `"step":"`+step+`"`) {
				break
			}
			if time.Since(begun) > 3*time.Minute {
				t.Fatalf("it did not come to its rollouts: %s", text.String())
			}
		}
		do(r.dir(out))
		err = cmd.Wait()
		return r.dir(out), text.String(), err
	}

	// The server of pages is killed while somebody acts: the slot has pages that nobody brings any more.
	const act = `oracle: [{exec: ["/bin/sh", "-c", "for i in $(seq 2000); do test -d /root/Desktop/todo || exit 1; sleep 0.01; done; mv /root/Desktop/todo /root/Desktop/done"]}]`
	slow := strings.Replace(strings.Replace(renameTiny, oracle, act, 1), "drums: {}", `drums: pages: "workingSet"`, 1)
	if !strings.Contains(slow, act) || !strings.Contains(slow, "workingSet") || os.WriteFile(path, []byte(slow), 0o644) != nil {
		t.Fatal("the manifest cannot be changed")
	}
	dir, said, err := during("pages", "r1/evaluate-before", 1, func(dir string) {
		open, _, err := record.ReadLedger(filepath.Join(dir, record.LedgerFile))
		if err != nil {
			t.Fatal(err)
		}
		killed := 0
		for _, o := range open {
			if o.Kind == "process" && o.Claim.Note == "server of pages" && o.Identity != nil {
				if err := procfs.Kill(t.Context(), *o.Identity); err != nil {
					t.Fatal(err)
				}
				killed++
			}
		}
		if killed != 1 {
			t.Fatalf("%d servers of pages are in %+v", killed, open)
		}
	})
	noNumber(t, "the server of pages was killed", state, dir, said, err, "")
	got = numbers("the server of pages was killed", dir)
	if c := got.Rollouts[1].Class; c != record.Invalid && c != record.EnvFailure {
		t.Errorf("a rollout whose server of pages was killed is %s: %s", c, got.Rollouts[1].Reason)
	}
	if !strings.Contains(got.Rollouts[1].Reason, "r1/act") {
		t.Errorf("the server of pages was killed: %s", got.Rollouts[1].Reason)
	}
	t.Logf("the server of pages was killed: %s: %s; %s", got.Verdict, got.Reason, got.Rollouts[1].Reason)

	if err := os.WriteFile(path, []byte(renameTiny), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, said, err = during("vanished", "r3/restore", 12, func(string) {
		loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			t.Fatal(err)
		}
		cut := 0
		for _, l := range loops {
			backing, err := os.ReadFile(l)
			if file := strings.TrimSpace(string(backing)); err == nil && strings.HasPrefix(file, state+"/") {
				if err := os.Truncate(file, 1<<20); err != nil {
					t.Fatal(err)
				}
				cut++
			}
		}
		if cut != 1 {
			t.Fatalf("%d loop devices stand on files below %s", cut, state)
		}
	})
	noNumber(t, "the disk behind the loop device vanished", state, dir, said, err, "")
	got = numbers("the disk behind the loop device vanished", dir)
	t.Logf("the disk behind the loop device vanished: %s: %s", got.Verdict, got.Reason)
}

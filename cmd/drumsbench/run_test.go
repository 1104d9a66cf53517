//go:build linux && !elsewhere

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// locksManifest is manifests/locks with the pins of the image that scripts/prepare built.
func locksManifest(t *testing.T) string {
	t.Helper()
	path := filepath.Join(realState(), "manifests", "manifests", "locks")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: scripts/prepare builds the image and its pins; scripts/test calls it", err)
	}
	return path
}

// runLocks runs the real program on the real arm; out is a folder for its runs.
func runLocks(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer, out string) {
	t.Helper()
	base := filepath.Join(realState(), "runs")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.MkdirTemp(base, "drums-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(out) })
	args = append([]string{"--state", realState(), "run", "--arm", "drums", "--out", out, "--reset", "restore"}, args...)
	cmd = exec.Command("drumsbench", append(args, locksManifest(t))...)
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr, out
}

func exitOf(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// nothingOwned requires that the ledger of a run says that everything is gone.
func nothingOwned(t *testing.T, run string) {
	t.Helper()
	open, torn, err := record.ReadLedger(filepath.Join(run, record.LedgerFile))
	if err != nil || torn != 0 || len(open) != 0 {
		t.Errorf("the ledger is torn at %d (%v) or still owns %+v", torn, err, open)
	}
	if problems, err := record.VerifyChain(run); err != nil || len(problems) != 0 {
		t.Errorf("the run does not verify: %v %v", err, problems)
	}
}

// The three settings of one manifest: the loss, the refusal, the repair (cases 1, 2, 3).
func TestRunLocks(t *testing.T) {
	for _, c := range []struct {
		locks string
		exit  int
		says  []string
	}{
		{"criu", 1, []string{"POSIX READ lock on /var/lib/locks/mapped bytes 4096-4607", "is lost", "POSIX WRITE lock on /var/lib/locks/tail bytes 64-EOF", "/var/lib/locks/wal.db-shm bytes 128-128", "hint: "}},
		{"refuse", 1, []string{"/var/lib/locks/wal.db-shm", "is held", "hint: set the arm's locks to repair"}},
		{"repair", 0, []string{"passed", "2/2", "0.0->1.0 x2"}},
	} {
		t.Run(c.locks, func(t *testing.T) {
			cmd, stdout, stderr, out := runLocks(t, "-t", "locks="+c.locks, "-t", "rollouts=2")
			if got := exitOf(t, cmd.Run()); got != c.exit {
				t.Fatalf("exit code %d, want %d\n%s%s", got, c.exit, stdout, stderr)
			}
			for _, want := range c.says {
				if !strings.Contains(stdout.String(), want) {
					t.Errorf("the result does not say %q:\n%s", want, stdout)
				}
			}
			if c.exit != 0 && strings.Contains(stdout.String(), "0.0->") {
				t.Errorf("a run that did not pass shows a number:\n%s", stdout)
			}
			run := filepath.Join(out, "drums-restore")
			nothingOwned(t, run)
			// CRIU itself saw no fault: only the gate did.
			if c.locks == "criu" {
				r := readBack(t, run)
				for _, s := range r.Steps {
					if s.Step == "r0/restore" && s.Verdict != engine.Pass {
						t.Errorf("the restore ended %s, the loss must be silent", s.Verdict)
					}
				}
			}
		})
	}
}

func readBack(t *testing.T, run string) (r bench.Record) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(run, record.RecordFile))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A first signal undoes whatever was begun, at any moment; the run is blocked,
// never passed, and it leaves a record.
func TestRunInterrupted(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		after  time.Duration
	}{
		{syscall.SIGINT, 60 * time.Millisecond}, {syscall.SIGTERM, 250 * time.Millisecond},
		{syscall.SIGINT, 600 * time.Millisecond}, {syscall.SIGTERM, 1200 * time.Millisecond},
	} {
		t.Run(c.signal.String()+" "+c.after.String(), func(t *testing.T) {
			cmd, stdout, stderr, out := runLocks(t, "-t", "rollouts=60")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.after)
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			var got int
			select {
			case err := <-done:
				got = exitOf(t, err)
			case <-time.After(time.Minute):
				cmd.Process.Kill()
				t.Fatalf("it does not end\n%s%s", stdout, stderr)
			}
			run := filepath.Join(out, "drums-restore")
			if _, err := os.Stat(filepath.Join(run, record.LedgerFile)); err != nil {
				// The signal came before there was a run: nothing was begun.
				if got == 0 {
					t.Errorf("exit code 0 without a run\n%s%s", stdout, stderr)
				}
				return
			}
			if got != 3 && got != 1 {
				t.Errorf("exit code %d, want 3 (blocked) or 1\n%s%s", got, stdout, stderr)
			}
			nothingOwned(t, run)
			if r := readBack(t, run); r.Verdict == engine.RunPassed || r.Reason == "" {
				t.Errorf("verdict %s, reason %q", r.Verdict, r.Reason)
			}
		})
	}
}

// Slots of a pool are made ready beforehand on a real arm too: what that took is in
// no clock, is told apart, and is paid by the run.
func TestRunPool(t *testing.T) {
	cmd, stdout, stderr, out := runLocks(t, "--arm", "oci", "-t", "pool=2", "-t", "rollouts=3")
	if got := exitOf(t, cmd.Run()); got != 0 {
		t.Fatalf("exit code %d\n%s%s", got, stdout, stderr)
	}
	for _, arm := range []string{"drums", "oci"} {
		run := filepath.Join(out, arm+"-restore")
		nothingOwned(t, run)
		slots := map[string]bool{}
		for _, o := range readBack(t, run).Rollouts {
			if o.Control != "" {
				continue
			}
			slots[o.Slot] = true
			prepared, err := strconv.ParseInt(string(o.Prepared), 10, 64)
			if err != nil || prepared <= 0 || o.Class != record.Success || o.Clocks == nil || o.Clocks.Usable == "" || o.Clocks.Mechanism != "" {
				t.Errorf("%s: rollout %d %s was prepared in %q, with the clocks %+v", arm, o.Index, o.Class, o.Prepared, o.Clocks)
			}
		}
		if len(slots) != 3 {
			t.Errorf("%s: slots %v, want the one that acts and two of the pool", arm, slots)
		}
	}
}

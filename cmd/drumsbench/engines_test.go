//go:build linux && !elsewhere

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/arms/crashtest"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

// One engine, or one sweep, works in a run directory; whoever comes second is
// refused and changes nothing.
func TestSecondEngineIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h := fakeCrash(t, t.TempDir())
	out := filepath.Join(h.State, "runs", "one")
	run := append(append([]string{"run"}, h.Run...), "--out", out)

	first := h.Program(ctx, []string{crashtest.Window{Kind: crashtest.Pause, Line: 8}.Environment()}, run...)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	defer first.Wait()
	defer first.Process.Kill()
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", first.Process.Pid))
		if err != nil || ctx.Err() != nil {
			t.Fatalf("the first engine did not come to its line: %v", err)
		}
		if bytes.Contains(text, []byte(") T ")) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	dir := filepath.Join(out, "fake-restore")
	before := content(t, dir, filepath.Join(h.State, "work"))
	for _, second := range [][]string{run, {"sweep", out}, {"sweep", "--dry-run", dir}} {
		cmd := h.Program(ctx, nil, second...)
		said, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != codeFailed || !strings.Contains(string(said), "refused") {
			t.Errorf("%s beside a living engine: exit code %d, %v: %s", second[0], code, err, said)
		}
	}
	if _, err := record.Create(dir); err == nil {
		t.Error("its directory could be taken")
	}
	if after := content(t, dir, filepath.Join(h.State, "work")); after != before {
		t.Errorf("something was changed:\n%s\n%s", before, after)
	}
	// It goes on, and to its end; what it measured while it was stopped is no number.
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); first.ProcessState.ExitCode() != codeBlocked {
		t.Error(err)
	}
	sound(t, dir)
	r, err := readRecord(dir)
	if err != nil || r.Verdict != engine.RunBlocked || !strings.Contains(r.Reason, "SIGCONT") {
		t.Errorf("a run whose engine was stopped: %s: %s: %v", r.Verdict, r.Reason, err)
	}
	for _, o := range r.Rollouts {
		if o.Class == record.Success {
			t.Errorf("rollout %d counts", o.Index)
		}
	}
	if left, err := filepath.Glob(filepath.Join(h.State, "work", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Of engines that start at once, one runs.
func TestEnginesAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	h := fakeCrash(t, t.TempDir())
	for i := range 5 {
		out := filepath.Join(h.State, "runs", fmt.Sprint(i))
		run := append(append([]string{"run"}, h.Run...), "--out", out)
		var mu sync.Mutex
		var all sync.WaitGroup
		passed := 0
		for range 3 {
			all.Go(func() {
				cmd := h.Program(ctx, nil, run...)
				said, err := cmd.CombinedOutput()
				mu.Lock()
				defer mu.Unlock()
				switch code := cmd.ProcessState.ExitCode(); {
				case code == codeDone:
					passed++
				case code != codeFailed || !strings.Contains(string(said), "run directory") && !strings.Contains(string(said), "refused"):
					t.Errorf("exit code %d, %v: %s", code, err, said)
				}
			})
		}
		all.Wait()
		if passed != 1 {
			t.Errorf("%d of three engines ran in one directory", passed)
		}
		sound(t, filepath.Join(out, "fake-restore"))
		if left, err := filepath.Glob(filepath.Join(h.State, "work", "*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	}
}

func sound(t *testing.T, dir string) {
	t.Helper()
	report, err := record.Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(report.Damage, report.Crash...) {
		t.Error(p)
	}
}

// content is every file below some folders, with what is in it.
func content(t *testing.T, folders ...string) string {
	t.Helper()
	var b strings.Builder
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				fmt.Fprintln(&b, path)
				return err
			}
			text, err := os.ReadFile(path)
			fmt.Fprintf(&b, "%s %s\n", path, text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

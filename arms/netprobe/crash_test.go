package netprobe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/crashtest"
	"github.com/drumsbench/drumsbench/arms/hostview"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
)

var crashAll = flag.Bool("crash", false, "kill the probe at every line of its ledger, not at a sample")

// Variables for the process that is killed.
const (
	crashRun   = "DRUMS_CRASH_RUN"
	crashClaim = "DRUMS_CRASH_CLAIM"
	crashStage = "DRUMS_CRASH_STAGE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashRun); dir != "" {
		if err := doomed(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// doomed is a probe that kills itself, at a line of the ledger or at a stage.
func doomed(dir string) error {
	d, err := record.Create(dir)
	if err != nil {
		return err
	}
	state := filepath.Dir(filepath.Dir(dir))
	ws := &engine.Workspace{Run: d.Path, State: state, ID: os.Getenv(crashClaim), Ledger: d.Ledger, Evidence: d.Evidence, Log: slog.New(slog.DiscardHandler)}
	ws.Work = filepath.Join(state, "work", ws.ID)
	if w, ok := crashtest.FromEnvironment(); ok {
		ws.Ledger = w.WrapLedger(ws.Ledger)
	}
	if err := ws.MakeWork(); err != nil {
		return err
	}
	_, err = Probe(context.Background(), ws, Options{Layers: []string{CRIU, OCI}, stage: func(layer, stage, _ string) error {
		if layer+" "+stage == os.Getenv(crashStage) {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	}})
	return errors.Join(err, ws.Release(context.Background()), d.Close())
}

// Whenever the probe is killed, a sweep takes away what is left, by the ledger.
func TestKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the network probe needs root")
	}
	var tries []string
	for _, layer := range []string{CRIU, ociOwn, ociHolder} {
		tries = append(tries, crashStage+"="+layer+" "+stageReady, crashStage+"="+layer+" "+stageDumped)
	}
	lines := wholeLedger(t)
	var windows []crashtest.Window
	for line := range lines {
		windows = append(windows, crashtest.Window{Kind: crashtest.Ledger, Line: line}, crashtest.Window{Kind: crashtest.Ledger, Line: line, After: true})
	}
	if !*crashAll {
		mathrand.Shuffle(len(windows), func(i, j int) { windows[i], windows[j] = windows[j], windows[i] })
		windows = windows[:8]
	}
	for _, w := range windows {
		tries = append(tries, w.Environment())
	}
	for _, try := range tries {
		t.Run(try, func(t *testing.T) { killed(t, try) })
	}
}

func newClaim() string {
	var random [6]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	return hex.EncodeToString(random[:])
}

// wholeLedger is how many lines the ledger of a probe has that is not killed.
func wholeLedger(t *testing.T) int {
	state := t.TempDir()
	must(t, os.Symlink(filepath.Join(stateDir(), "criu"), filepath.Join(state, "criu")))
	run := filepath.Join(state, "runs", "probe")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashRun+"="+run, crashClaim+"="+newClaim())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(run, record.LedgerFile))
	must(t, err)
	return bytes.Count(text, []byte("\n"))
}

func killed(t *testing.T, try string) {
	state := t.TempDir()
	must(t, os.Symlink(filepath.Join(stateDir(), "criu"), filepath.Join(state, "criu")))
	run := filepath.Join(state, "runs", "probe")
	claim := newClaim()
	scope := hostview.Scope{ID: claim, Paths: []string{state}}
	before, err := hostview.Take(t.Context(), scope)
	must(t, err)

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashRun+"="+run, crashClaim+"="+claim, try)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		t.Fatalf("it was not killed: %s", out)
	case !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
		t.Fatalf("%v: %s", err, out)
	}

	report, err := sweep.Sweep(t.Context(), sweep.Options{RunDir: run, State: state})
	must(t, err)
	for _, thing := range report.Things {
		if thing.Outcome != sweep.Taken && thing.Outcome != sweep.Absent {
			t.Errorf("%+v", thing)
		}
	}
	if open, _, err := record.ReadLedger(filepath.Join(run, record.LedgerFile)); err != nil || len(open) > 0 {
		t.Errorf("the ledger owns %+v, %v", open, err)
	}
	var left []string
	for range 100 {
		left = nil
		after, err := hostview.Take(t.Context(), scope)
		must(t, err)
		for _, f := range hostview.Diff(before, after) {
			if f.Verdict == engine.Fail {
				left = append(left, f.Subject+" "+f.Text)
			}
		}
		if left == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("the host is not as it was: %s", strings.Join(left, "; "))
}

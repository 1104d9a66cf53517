package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/engine/record"
)

// Result is what became of one window.
type Result struct {
	Arm    string `json:"arm"`
	Window Window `json:"window"`
	Name   string `json:"name"`
	// Killed: the program died by SIGKILL in the window. Otherwise the run was over before.
	Killed bool `json:"killed"`
	// Inside: the call of criu or QMP had not ended yet when the program was killed.
	Inside bool   `json:"inside,omitempty"`
	Claim  string `json:"claim,omitempty"`
	// Taken counts what sweeps took away, by kind.
	Taken map[string]int `json:"taken,omitempty"`
	// Problems are criteria that do not hold. Empty is a pass.
	Problems []string `json:"problems,omitempty"`
	Seconds  float64  `json:"seconds"`
}

func (r *Result) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// patience bounds one program.
const patience = 90 * time.Second

// settle is how long dead processes and what hung on them may take to go.
const settle = 5 * time.Second

// Try kills the program in the window, sweeps and looks. The error says that
// the window could not be tried.
func (h *Harness) Try(ctx context.Context, w Window) (r Result, err error) {
	start := time.Now()
	r = Result{Arm: h.Arm, Window: w, Name: w.String(), Taken: map[string]int{}}
	defer func() { r.Seconds = time.Since(start).Seconds() }()
	before, err := h.look(ctx, "")
	if err != nil {
		return r, err
	}
	dir, err := h.crash(ctx, w, &r)
	if err != nil {
		return r, err
	}
	if dir != "" {
		defer os.RemoveAll(filepath.Dir(dir))
	}
	if !record.IsRun(dir) { // it died before it could own anything
		return r, h.compare(ctx, &r, before, nil, settle)
	}
	r.Claim = claimOf(dir)
	spaces := namespacesOf(r.Claim)
	decoys, err := h.plant(r.Claim)
	if err != nil {
		return r, err
	}
	defer decoys.remove()

	if w.Kind == Sweep {
		killed, out, err := h.killed(ctx, w, "sweep", dir)
		if err != nil {
			return r, err
		}
		if r.Killed = killed; !killed {
			r.problem("the sweep did not come to its point: %s", out)
		}
	}
	h.sweep(ctx, &r, dir, decoys)
	ledger := h.nothingOpen(&r, dir)
	h.sweepAgain(ctx, &r, dir, ledger)
	for _, touched := range decoys.touched() {
		r.problem("decoy: %s", touched)
	}
	if err := decoys.remove(); err != nil {
		r.problem("decoys could not be removed: %v", err)
	}
	h.runHolds(ctx, &r, dir)
	if err := h.earlierHolds(ctx); err != nil {
		r.problem("the earlier run: %v", err)
	}
	return r, h.compare(ctx, &r, before, spaces, settle)
}

// Unswept kills the program in the window and returns what the criteria say
// while nobody has swept: the proof that they see what they are about. Then it
// sweeps, and the error says what is left.
func (h *Harness) Unswept(ctx context.Context, w Window) (problems []string, err error) {
	r := Result{Arm: h.Arm, Window: w, Taken: map[string]int{}}
	before, err := h.look(ctx, "")
	if err != nil {
		return nil, err
	}
	dir, err := h.crash(ctx, w, &r)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(filepath.Dir(dir))
	r.Claim = claimOf(dir)
	spaces := namespacesOf(r.Claim)
	h.nothingOpen(&r, dir)
	if err := h.compare(ctx, &r, before, spaces, 200*time.Millisecond); err != nil {
		return nil, err
	}
	problems, r.Problems = r.Problems, nil
	h.sweep(ctx, &r, dir, &decoys{})
	if err := h.compare(ctx, &r, before, spaces, settle); err != nil {
		return nil, err
	}
	if len(r.Problems) > 0 {
		return problems, fmt.Errorf("after the sweep: %s", strings.Join(r.Problems, "; "))
	}
	return problems, nil
}

// errAgain: the run ended by itself before it could be killed, for a reason that
// another try need not meet.
var errAgain = errors.New("the run ended before it was killed")

// crash runs the program into the window. A run that is blocked is tried again,
// since others on the machine may keep something from being known for a moment;
// so is one whose criu was started and gone again between two looks at it.
func (h *Harness) crash(ctx context.Context, w Window, r *Result) (dir string, err error) {
	for range 3 {
		if dir, err = h.crashOnce(ctx, w, r); !errors.Is(err, errAgain) {
			break
		}
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			return "", err
		}
	}
	return dir, err
}

func (h *Harness) crashOnce(ctx context.Context, w Window, r *Result) (dir string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	env := w
	if w.Kind == Sweep {
		env = Window{Kind: Ledger, Line: w.Line, After: true}
	}
	var during func(pid int)
	switch w.Kind {
	case Random:
		during = func(pid int) {
			time.Sleep(w.Delay)
			unix.Kill(pid, unix.SIGKILL)
		}
	case Criu:
		during = func(pid int) { r.Inside = killInCriu(ctx, pid, w) }
	}
	dir, said, err := h.run(ctx, []string{env.Environment()}, during)
	r.Inside = r.Inside || strings.Contains(said, saidInside)
	if ctx.Err() != nil {
		return dir, fmt.Errorf("%s: the program did not end within %s: %s", w, patience, said)
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL && exit.Sys().(syscall.WaitStatus).Signaled():
		r.Killed = true
	case h.Campaign && exit != nil && exit.ExitCode() == engine.ExitCode(engine.RunBlocked): // over before: a comparison may be refused
	case exit != nil && exit.ExitCode() == engine.ExitCode(engine.RunBlocked):
		return dir, fmt.Errorf("%s: %w: %s", w, errAgain, said)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return dir, fmt.Errorf("%s: the run failed before it was killed: %w: %s", w, err, said)
	case w.Kind == Criu:
		return dir, fmt.Errorf("%s: %w: its criu call was not seen: %s", w, errAgain, said)
	case w.Kind != Random: // the run was over before
		return dir, fmt.Errorf("%s: the run never came there: %s", w, said)
	}
	if w.Kind == Torn && dir != "" {
		// Half of the line that it would have written.
		f, err := os.OpenFile(filepath.Join(dir, record.LedgerFile), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return dir, err
		}
		_, err = fmt.Fprintf(f, `{"seq":%d,"time":"2026-01-01T00:00:00Z","bo`, w.Line)
		if err := errors.Join(err, f.Close()); err != nil {
			return dir, err
		}
	}
	return dir, nil
}

// killInCriu waits for the nth criu call of a process, and kills the process a
// while after its start. It says whether the call still went on.
func killInCriu(ctx context.Context, pid int, w Window) (inside bool) {
	seen := map[int]bool{}
	for ctx.Err() == nil {
		proc, err := prom.NewProc(pid)
		if err != nil {
			return false
		}
		if st, err := proc.Stat(); err != nil || st.State == "Z" {
			return false
		}
		for _, child := range children(pid) {
			if seen[child] || !isCriuCall(child) {
				continue
			}
			seen[child] = true
			if len(seen) < w.Call {
				continue
			}
			call, err := procfs.Identity(child)
			time.Sleep(w.Delay)
			if err == nil {
				inside, _ = procfs.Alive(call)
			}
			unix.Kill(pid, unix.SIGKILL)
			return inside
		}
		time.Sleep(500 * time.Microsecond)
	}
	return false
}

func children(pid int) (list []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, word := range strings.Fields(string(text)) {
			var child int
			if _, err := fmt.Sscan(word, &child); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// isCriuCall says whether a process is criu at a dump or a restore: in a group of
// the run, which one that only says what it can do is not. It is seen at its
// start only: criu changes its arguments to what it does (criu/cr-service.c).
func isCriuCall(pid int) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(args, []byte("\x00swrk\x00")) && !isRuncCall(args) {
		return false
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && bytes.Contains(groups, []byte("/drums-"))
}

// claimOf is the random claim of a run, as its ledger begins with; empty for none.
func claimOf(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, record.LedgerFile))
	if err != nil {
		return ""
	}
	first, _, whole := bytes.Cut(text, []byte("\n"))
	var line struct{ Claim struct{ Path string } }
	if !whole || json.Unmarshal(first, &line) != nil {
		return ""
	}
	return filepath.Base(line.Claim.Path)
}

// command runs the program to its end.
func (h *Harness) command(ctx context.Context, w *Window, args ...string) (stdout []byte, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var env []string
	if w != nil {
		env = []string{w.Environment()}
	}
	cmd := h.Program(ctx, env, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, 0, fmt.Errorf("%v did not end within %s: %s%s", args, patience, out.String(), errs.String())
	case errors.As(err, &exit):
		status := exit.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return append(out.Bytes(), errs.Bytes()...), -int(status.Signal()), nil
		}
		return append(out.Bytes(), errs.Bytes()...), exit.ExitCode(), nil
	case err != nil:
		return nil, 0, err
	}
	return out.Bytes(), 0, nil
}

// killed runs the program into a window and says whether it died there.
func (h *Harness) killed(ctx context.Context, w Window, args ...string) (bool, string, error) {
	out, code, err := h.command(ctx, &w, args...)
	return code == -int(unix.SIGKILL), string(out), err
}

type swept struct {
	Runs []sweep.Report
}

// sweep sweeps the run and wants that all of it could be taken away.
func (h *Harness) sweep(ctx context.Context, r *Result, dir string, d *decoys) {
	out, code, err := h.command(ctx, nil, "-o", "json", "sweep", dir)
	if err != nil || code != 0 {
		r.problem("sweep: exit code %d, %v: %s", code, err, out)
		return
	}
	var s swept
	if err := json.Unmarshal(out, &s); err != nil || len(s.Runs) != 1 {
		r.problem("sweep said: %v: %s", err, out)
		return
	}
	for _, t := range s.Runs[0].Things {
		if t.Outcome == sweep.Taken {
			r.Taken[t.Kind]++
		}
		// A loop device that cleared itself may have been given to a decoy.
		if t.Outcome == sweep.Foreign && !(d.device != "" && strings.HasPrefix(t.What, d.device+" ")) {
			r.problem("sweep took the run's own %s %s for somebody else's: %s", t.Kind, t.What, t.Reason)
		}
	}
}

// sweepAgain wants a sweep that finds nothing and writes nothing.
func (h *Harness) sweepAgain(ctx context.Context, r *Result, dir string, ledger []byte) {
	out, code, err := h.command(ctx, nil, "-o", "json", "sweep", dir)
	var s swept
	if err == nil && code == 0 {
		err = json.Unmarshal(out, &s)
	}
	if err != nil || code != 0 || len(s.Runs) != 1 || len(s.Runs[0].Things) != 0 {
		r.problem("the second sweep: exit code %d, %v: %s", code, err, out)
	}
	if now, _ := os.ReadFile(filepath.Join(dir, record.LedgerFile)); !bytes.Equal(now, ledger) {
		r.problem("the second sweep wrote to the ledger")
	}
}

// nothingOpen wants a ledger in which everything is gone, and returns it.
func (h *Harness) nothingOpen(r *Result, dir string) []byte {
	path := filepath.Join(dir, record.LedgerFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it died before
	}
	open, torn, err := record.ReadLedger(path)
	if err != nil {
		r.problem("the ledger after the sweep: %v", err)
	}
	if torn != 0 && len(open) > 0 {
		r.problem("the ledger's line %d is still torn", torn)
	}
	for _, o := range open {
		r.problem("the ledger still has %s %s", o.Kind, o.Claim.Path+o.Claim.Cgroup+o.Claim.Backing)
	}
	return text
}

// runHolds wants a chain that is whole up to where the program was killed, and
// checkpoints that are sealed and hold, or are not there.
func (h *Harness) runHolds(ctx context.Context, r *Result, dir string) {
	report, err := record.Verify(dir)
	if err != nil {
		r.problem("verify the killed run: %v", err)
	}
	for _, p := range report.Damage {
		r.problem("verify the killed run: %v", p)
	}
	for _, o := range report.Owned {
		r.problem("verify the killed run: it still owns %s %s", o.Kind, o.Claim.Path)
	}
	if err := checkpointsHold(ctx, dir); err != nil {
		r.problem("the killed run: %v", err)
	}
	temporary, _ := filepath.Glob(filepath.Join(dir, ".*"))
	more, _ := filepath.Glob(filepath.Join(dir, "*", ".*"))
	for _, path := range append(temporary, more...) {
		r.problem("a temporary file is left: %s", path)
	}
}

// checkpointsHold wants that every folder of checkpoints holds a sealed one.
func checkpointsHold(ctx context.Context, dir string) error {
	folders, err := filepath.Glob(filepath.Join(dir, "checkpoints", "*"))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		cp, err := checkpoint.Open(folder)
		if err != nil {
			return err
		}
		if _, err := checkpoint.Verify(ctx, cp); err != nil {
			return err
		}
	}
	return nil
}

// earlierHolds wants the run that was not killed as it was written.
func (h *Harness) earlierHolds(ctx context.Context) error {
	report, err := record.Verify(h.earlier)
	if err != nil {
		return err
	}
	for _, p := range append(report.Damage, report.Crash...) {
		return p
	}
	found, err := filepath.Glob(filepath.Join(h.earlier, "checkpoints", "*"))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("it has no checkpoint: %w", errors.Join(err, os.ErrNotExist))
	}
	return checkpointsHold(ctx, h.earlier)
}

// isRuncCall says whether arguments are those of a runc that has criu work for it.
// Its criu is a child of its own; the runc is what the program started.
func isRuncCall(args []byte) bool {
	name, _, _ := bytes.Cut(args, []byte{0})
	return filepath.Base(string(name)) == "runc" &&
		(bytes.Contains(args, []byte("\x00checkpoint\x00")) || bytes.Contains(args, []byte("\x00restore\x00")))
}

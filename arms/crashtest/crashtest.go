// Package crashtest kills the real program where it hurts and looks at what is
// left once the run was swept. Every arm passes the same windows: before and
// after each line of the ledger, with a line torn in two, inside criu calls or
// those of a machine's monitor, inside a sweep, at random moments.
//
// Always holds: the program is started as a process and ended by SIGKILL, as an
// operator or the kernel would; the host is read by other code than that which
// swept; a window whose kill did not happen does not count as tried; decoys that
// look like the run's own things stand beside them and have to be untouched.
//
// The program under test is the test binary itself, whose TestMain calls the
// real main: it sets WrapLedger, AtPoint and Watch where main has a seam, so
// that the program that is shipped has no way to be told to kill itself.
package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/sweep"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The kinds of windows.
const (
	// Ledger: before or after a line of the ledger.
	Ledger = "ledger"
	// Torn: before a line, of which a part is in the file.
	Torn = "torn"
	// Criu: a while after a criu call started.
	Criu = "criu"
	// QMP: at a random moment while a machine saves or loads its state.
	QMP = "qmp"
	// Timing: nowhere; the program says how long its QMP calls take.
	Timing = "timing"
	// Sweep: the run is killed after a line, and the sweep at a point of its own.
	Sweep = "sweep"
	// Receipt: before or after a line of the chain of receipts.
	Receipt = "receipt"
	// Step: before or after the receipt of the step that Stage names.
	Step = "step"
	// Random: some moment of the run.
	Random = "random"
	// Pause: the program stops after a line, and lives.
	Pause = "pause"
)

// Window is a moment at which the program is killed.
type Window struct {
	Kind string `json:"kind"`
	// Line of the ledger, or of the chain, from 0.
	Line int `json:"line,omitempty"`
	// After the line, not before it.
	After bool `json:"after,omitempty"`
	// Command of QMP.
	Command string `json:"command,omitempty"`
	// Call of criu, or of the command, from 1.
	Call int `json:"call,omitempty"`
	// Delay after the start of the call or of the program.
	Delay time.Duration `json:"delay,omitempty"`
	// Stage and Index of the sweep's point; Stage alone is a step.
	Stage string `json:"stage,omitempty"`
	Index int    `json:"index,omitempty"`
}

// String names the window; it is a good name for a subtest.
func (w Window) String() string {
	side := "before"
	if w.After {
		side = "after"
	}
	switch w.Kind {
	case Ledger:
		return fmt.Sprintf("ledger-%d-%s", w.Line, side)
	case Receipt:
		return fmt.Sprintf("receipt-%d-%s", w.Line, side)
	case Step:
		return fmt.Sprintf("step-%s-%s", strings.ReplaceAll(w.Stage, "/", "."), side)
	case Torn:
		return fmt.Sprintf("torn-%d", w.Line)
	case Criu:
		return fmt.Sprintf("criu-%d-%s", w.Call, w.Delay)
	case QMP:
		return fmt.Sprintf("qmp-%s-%d-%s", w.Command, w.Call, w.Delay)
	case Sweep:
		return fmt.Sprintf("sweep-%s-%d-of-%d", w.Stage, w.Index, w.Line)
	}
	return fmt.Sprintf("random-%s", w.Delay)
}

// variable tells the program under test where it kills itself.
const variable = "DRUMS_CRASH_WINDOW"

// FromEnvironment returns the window that the harness chose; ok is false without one.
func FromEnvironment() (w Window, ok bool) {
	text := os.Getenv(variable)
	if text == "" {
		return w, false
	}
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		panic(err)
	}
	return w, true
}

// Environment is the window as FromEnvironment finds it.
func (w Window) Environment() string {
	text, err := json.Marshal(w)
	if err != nil {
		panic(err)
	}
	return variable + "=" + string(text)
}

// die does not return.
func die() {
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

// WrapLedger returns a ledger at whose line the program dies.
func (w Window) WrapLedger(l engine.Ledger) engine.Ledger {
	if w.Kind != Ledger && w.Kind != Torn && w.Kind != Pause {
		return l
	}
	return &dyingLedger{Ledger: l, window: w, gone: map[int64]bool{}}
}

// WrapSink returns a sink of receipts at whose line the program dies.
func (w Window) WrapSink(s engine.Sink) engine.Sink {
	if w.Kind != Receipt && w.Kind != Step {
		return s
	}
	return &dyingSink{Sink: s, window: w}
}

// dyingSink is called by one goroutine at a time.
type dyingSink struct {
	engine.Sink
	window Window
	line   int
}

func (s *dyingSink) Append(r bench.Receipt) error {
	here := s.line == s.window.Line
	if s.window.Kind == Step {
		here = r.Step == s.window.Stage
	}
	s.line++
	if here && !s.window.After {
		die()
	}
	err := s.Sink.Append(r)
	if here {
		die()
	}
	return err
}

type dyingLedger struct {
	engine.Ledger
	window Window

	mu   sync.Mutex
	line int
	gone map[int64]bool
}

// at writes a line; the lock is held so that the line is the one that was counted.
func (l *dyingLedger) at(write func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	here := l.line == l.window.Line
	l.line++
	if here && !l.window.After && l.window.Kind != Pause {
		die()
	}
	err := write()
	switch {
	case here && l.window.Kind == Pause:
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	case here:
		die()
	}
	return err
}

func (l *dyingLedger) Intend(kind string, claim bench.Claim) (id int64, err error) {
	err = l.at(func() error {
		id, err = l.Ledger.Intend(kind, claim)
		return err
	})
	return id, err
}

func (l *dyingLedger) Bind(id int64, identity bench.Identity) error {
	return l.at(func() error { return l.Ledger.Bind(id, identity) })
}

func (l *dyingLedger) Gone(id int64) error {
	l.mu.Lock()
	again := l.gone[id]
	l.gone[id] = true
	l.mu.Unlock()
	if again {
		return l.Ledger.Gone(id) // writes nothing
	}
	return l.at(func() error { return l.Ledger.Gone(id) })
}

// AtPoint dies at the window's point of a sweep.
func (w Window) AtPoint(p sweep.Point) {
	if w.Kind == Sweep && w.Stage == p.Stage && w.Index == p.Index {
		die()
	}
}

// What the program says of its QMP calls, on a line of its own.
const (
	saidInside = "drums: killed while QEMU worked"
	saidTook   = "drums: QMP"
)

// Watch returns what is told that a command of QMP begins, and is told by its
// result that it ended: the program dies at the window's moment. Whether the
// command still went on then is the last thing that it says.
func (w Window) Watch() func(command string) (ended func()) {
	var mu sync.Mutex
	calls := map[string]int{}
	return func(command string) func() {
		mu.Lock()
		calls[command]++
		call := calls[command]
		mu.Unlock()
		begin, over := time.Now(), false
		if w.Kind == QMP && w.Command == command && w.Call == call {
			time.AfterFunc(w.Delay, func() {
				mu.Lock()
				if !over {
					fmt.Fprintln(os.Stderr, saidInside)
				}
				die()
			})
		}
		return func() {
			mu.Lock()
			over = true
			mu.Unlock()
			if w.Kind == Timing {
				fmt.Fprintf(os.Stderr, "\n%s %s %d %d\n", saidTook, command, call, time.Since(begin).Nanoseconds())
			}
		}
	}
}

// timed reads the QMP calls of a run, each as a window at its end.
func timed(said string) (calls []Window) {
	for _, line := range strings.Split(said, "\n") {
		w := Window{Kind: QMP}
		if n, err := fmt.Sscanf(line, saidTook+" %s %d %d", &w.Command, &w.Call, &w.Delay); n == 3 && err == nil {
			calls = append(calls, w)
		}
	}
	return calls
}

// Harness is one arm's part of the suite.
type Harness struct {
	// Arm names the arm in results.
	Arm string
	// Program is the program under test with arguments; env is added to its environment.
	Program func(ctx context.Context, env []string, args ...string) *exec.Cmd
	// State is a state directory whose work and runs are nobody else's.
	State string
	// Run are the arguments of the run command, which executes one plan on the arm.
	Run []string
	// Criu says that the arm calls criu.
	Criu bool
	// Campaign says that the command executes several runs, one after the other: an
	// experiment. Its windows are random moments, also between two runs and in their comparison.
	Campaign bool
	// QMP is at how many moments of each of its first calls of a machine's monitor the program is killed.
	QMP int
	// Warm says that the caches of the state directory are filled.
	Warm bool
	// Lines bounds the lines of the ledger that windows are about; 0 for all, -1 for none.
	Lines int

	// earlier is a run that was not killed; its record and checkpoints have to hold to the end.
	earlier string
	// lines of the ledger of such a run, and how long it takes.
	lines []bench.LedgerLine
	took  time.Duration
	// calls of QMP in such a run, each with how long it took.
	calls []Window
	next  int
}

// Begin executes runs to their end: the last one is what the windows are made
// from, and what every crash has to leave as it is.
func (h *Harness) Begin(ctx context.Context) error {
	var dir string
	// The first one fills caches; the second one takes as long as those that are killed.
	for i := range 2 {
		if i == 0 && h.Warm {
			continue
		}
		start := time.Now()
		var said string
		var err error
		if dir, said, err = h.run(ctx, []string{Window{Kind: Timing}.Environment()}, nil); err != nil {
			return fmt.Errorf("run %s to its end: %w\n%s", h.Arm, err, said)
		}
		h.took, h.calls = time.Since(start), timed(said)
	}
	if h.QMP > 0 && len(h.calls) == 0 {
		return fmt.Errorf("run %s to its end: no call of QMP was told of", h.Arm)
	}
	h.earlier = dir
	text, err := os.ReadFile(filepath.Join(dir, record.LedgerFile))
	if err != nil {
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var line bench.LedgerLine
		if err := d.Decode(&line); err != nil {
			return err
		}
		if h.Lines <= 0 || len(h.lines) < h.Lines {
			h.lines = append(h.lines, line)
		}
	}
	return h.earlierHolds(ctx)
}

// After is the window after the first line that says op of a thing of a kind; ok is false without one.
func (h *Harness) After(op, kind string) (w Window, ok bool) {
	for i, line := range h.lines {
		if line.Op == op && line.Kind == kind {
			return Window{Kind: Ledger, Line: i, After: true}, true
		}
	}
	return w, false
}

// run starts the program and returns the run's directory with what the program
// said. during is called while it runs.
func (h *Harness) run(ctx context.Context, env []string, during func(pid int)) (dir, said string, err error) {
	h.next++
	out := filepath.Join(h.State, "runs", h.Arm+"-"+strconv.Itoa(h.next))
	cmd := h.Program(ctx, env, append(append([]string{"run"}, h.Run...), "--out", out)...)
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	// Processes of the run outlive it and hold the output open.
	cmd.WaitDelay = 100 * time.Millisecond
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	if during != nil {
		during(cmd.Process.Pid)
	}
	err = cmd.Wait()
	return h.runIn(out), text.String(), err
}

// runIn is the run of a command: of several, the one that has no record, or the first if all have one.
func (h *Harness) runIn(out string) string {
	found, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil || !h.Campaign {
		if err == nil && len(found) == 1 {
			return found[0]
		}
		return ""
	}
	first := ""
	for _, dir := range found {
		if !record.IsRun(dir) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, record.RecordFile)); err != nil {
			return dir
		}
		if sealed, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*")); first == "" || len(sealed) > 0 {
			first = dir
		}
	}
	return first
}

// Windows are all windows of the arm, in the order of the run; random moments
// come from the seed.
func (h *Harness) Windows(seed uint64, random int) []Window {
	var all []Window
	rnd := rand.New(rand.NewPCG(seed, 0))
	if h.Campaign {
		for range random {
			all = append(all, Window{Kind: Random, Delay: time.Duration(rnd.Int64N(int64(h.took))).Round(100 * time.Microsecond)})
		}
		return all
	}
	lines := len(h.lines)
	if h.Lines < 0 {
		lines = 0
	}
	for line := range lines {
		all = append(all, Window{Kind: Ledger, Line: line, After: false}, Window{Kind: Ledger, Line: line, After: true})
	}
	for range min(lines, 6) {
		all = append(all, Window{Kind: Torn, Line: rnd.IntN(lines)})
	}
	if h.Criu {
		for call := 1; call <= 2; call++ {
			// The later moments lie behind the end of a call where the machine is quick; the early ones never do.
			for _, ms := range []int{10, 20, 30, 80, 150, 250} {
				all = append(all, Window{Kind: Criu, Call: call, Delay: time.Duration(ms) * time.Millisecond})
			}
		}
	}
	for _, call := range h.calls {
		if call.Call > 2 {
			continue
		}
		for range h.QMP {
			call := call
			call.Delay = time.Duration(rnd.Int64N(int64(call.Delay) + 1)).Round(10 * time.Microsecond)
			all = append(all, call)
		}
	}
	// Where most is there: in the middle; early, and late.
	for _, line := range []int{lines / 4, lines / 2, lines * 3 / 4} {
		if lines == 0 {
			break
		}
		all = append(all,
			Window{Kind: Sweep, Line: line, Stage: sweep.StageEnded},
			Window{Kind: Sweep, Line: line, Stage: sweep.StageTaken, Index: 1},
			Window{Kind: Sweep, Line: line, Stage: sweep.StageRecorded, Index: 2},
		)
	}
	for range random {
		all = append(all, Window{Kind: Random, Delay: time.Duration(rnd.Int64N(int64(h.took))).Round(100 * time.Microsecond)})
	}
	return all
}

// Sample takes n windows of all kinds, by the seed.
func Sample(all []Window, n int, seed uint64) []Window {
	rnd := rand.New(rand.NewPCG(seed, 1))
	byKind := map[string][]Window{}
	var kinds []string
	for _, i := range rnd.Perm(len(all)) {
		w := all[i]
		if byKind[w.Kind] == nil {
			kinds = append(kinds, w.Kind)
		}
		byKind[w.Kind] = append(byKind[w.Kind], w)
	}
	var out []Window
	for i := 0; len(out) < min(n, len(all)); i++ {
		// Half of them are about the ledger, where the kinds of things are.
		kind := kinds[i/2%len(kinds)]
		if i%2 == 1 && len(byKind[Ledger]) > 0 {
			kind = Ledger
		}
		if list := byKind[kind]; len(list) > 0 {
			out, byKind[kind] = append(out, list[0]), list[1:]
		}
	}
	return out
}

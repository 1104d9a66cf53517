package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// drawn is a random plan with random failures.
type drawn struct {
	steps  []drawnStep
	plan   *Plan
	cancel int // step that interrupts the run, -1 for none
}

type drawnStep struct {
	needs   []int
	release bool
	window  int // 0 for none
	end     string
}

func drawPlan(t *rapid.T) drawn {
	n := rapid.IntRange(1, 25).Draw(t, "steps")
	d := drawn{steps: make([]drawnStep, n), cancel: -1}
	b := NewBuilder()
	promises := make([]Promise[int], n)
	// The windows follow each other in the plan, so that none waits for itself.
	edge := 0
	for i := range n {
		s := &d.steps[i]
		s.release = rapid.IntRange(0, 5).Draw(t, "release") == 0
		if edge > 0 && !s.release && rapid.Bool().Draw(t, "in window") {
			s.window = edge
		}
		if rapid.IntRange(0, 4).Draw(t, "new window") == 0 {
			edge++
		}
		s.end = rapid.SampledFrom([]string{"pass", "pass", "pass", "pass", "review", "fail", "error", "unknown", "panic", "not_applicable"}).Draw(t, "end")
		var in []Input
		for j := range i {
			// Within a window or from before it: a step in a window never needs one that could need the window.
			if s.window > 0 && d.steps[j].window != s.window && d.dependsOnWindow(j, s.window) {
				continue
			}
			if rapid.IntRange(0, 3).Draw(t, "edge") == 0 {
				s.needs = append(s.needs, j)
				if rapid.Bool().Draw(t, "data") {
					in = append(in, Read(promises[j]))
				} else {
					in = append(in, After(promises[j]))
				}
			}
		}
		sp := spec(fmt.Sprint("s", i))
		sp.Release = s.release
		if s.window > 0 {
			sp.Window = fmt.Sprint("w", s.window)
		}
		promises[i] = Add[int](b, sp, in...)
	}
	if rapid.IntRange(0, 2).Draw(t, "interrupted") == 0 {
		d.cancel = rapid.IntRange(0, n-1).Draw(t, "by")
	}
	p, err := b.Build(noWorkload, "restore")
	if err != nil {
		t.Fatal(err)
	}
	d.plan = p
	return d
}

func (d drawn) dependsOnWindow(i, w int) bool {
	return d.steps[i].window == w || slices.ContainsFunc(d.steps[i].needs, func(j int) bool { return d.dependsOnWindow(j, w) })
}

// trace is what was seen while a plan ran.
type trace struct {
	mu       sync.Mutex
	active   map[int]bool
	started  []bool
	finished []bool
	wrong    []string
}

func (d drawn) run(parallel int) (Result, *trace, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tr := &trace{active: map[int]bool{}, started: make([]bool, len(d.steps)), finished: make([]bool, len(d.steps))}
	index := map[string]int{}
	for i, s := range d.plan.Steps {
		index[s.Id] = i
	}
	// A step that was not run is finished too; only the executor's receipts say so.
	sink := sinkFunc(func(r bench.Receipt) {
		if r.Event == "step" && r.Verdict == NotRun {
			tr.mu.Lock()
			tr.finished[index[r.Step]] = true
			tr.mu.Unlock()
		}
	})
	body := func(ctx context.Context, x *Exec, _ struct{}) (int, error) {
		i := index[x.Step().Id]
		s := d.steps[i]
		tr.mu.Lock()
		tr.started[i] = true
		for _, need := range s.needs {
			if !tr.finished[need] && d.steps[need].window == 0 {
				tr.wrong = append(tr.wrong, fmt.Sprintf("s%d started before its need s%d was finished", i, need))
			}
			if tr.active[need] {
				tr.wrong = append(tr.wrong, fmt.Sprintf("s%d started while its need s%d ran", i, need))
			}
		}
		for other := range tr.active {
			if w := d.steps[other].window; w != s.window && (w != 0 || s.window != 0) {
				tr.wrong = append(tr.wrong, fmt.Sprintf("s%d (window %d) ran beside s%d (window %d)", i, s.window, other, w))
			}
		}
		tr.active[i] = true
		tr.mu.Unlock()
		defer func() {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			delete(tr.active, i)
			tr.finished[i] = true
		}()
		if i == d.cancel {
			cancel()
		}
		if i%3 == 0 {
			time.Sleep(20 * time.Microsecond)
		}
		switch s.end {
		case "error":
			return 0, errors.New("broke")
		case "unknown":
			return 0, ErrUnknown
		case "panic":
			panic("ouch")
		case "review":
			x.Judge(Judgement{Findings: []bench.Finding{{Verdict: Review}}})
		case "fail":
			x.Judge(Judgement{Findings: []bench.Finding{{Verdict: Fail}}})
		case "not_applicable":
			x.Judge(Judgement{Findings: []bench.Finding{{Verdict: NotApplicable}}})
		}
		return i, nil
	}
	e := &Executor{Plan: d.plan, Bindings: Bindings{}.Add(Bind("k", body)), Workspace: &Workspace{Evidence: &memory{}}, Sink: sink, Parallel: parallel}
	r, err := e.Run(ctx)
	return r, tr, err
}

type sinkFunc func(bench.Receipt)

func (f sinkFunc) Append(r bench.Receipt) error { f(r); return nil }

func TestExecutionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawPlan(t)
		r, tr, err := d.run(rapid.IntRange(1, 5).Draw(t, "parallel"))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range tr.wrong {
			t.Error(w)
		}
		bad := make([]bool, len(d.steps)) // by the rules, without an interruption
		for i, s := range d.steps {
			v := r.Outcomes[i].Verdict
			blamed := !s.release && slices.ContainsFunc(s.needs, func(j int) bool { return bad[j] })
			bad[i] = blamed || s.end != "pass" && s.end != "review"
			switch {
			case s.release:
				if !tr.started[i] {
					t.Errorf("release step s%d was not run", i)
				}
			case tr.started[i] == (v == NotRun):
				t.Errorf("s%d is %s, started: %v", i, v, tr.started[i])
			case blamed && tr.started[i]:
				t.Errorf("s%d ran although something that it needs failed", i)
			case d.cancel < 0 && !blamed && !tr.started[i]:
				t.Errorf("s%d was not run although nothing that it needs failed", i)
			}
		}
		interrupted := d.cancel >= 0 && tr.started[d.cancel]
		if interrupted && r.Verdict == RunPassed && len(r.Findings) > 0 {
			t.Error("an interrupted run passed")
		}
		if slices.ContainsFunc(r.Outcomes, func(o bench.StepOutcome) bool { return o.Verdict == NotRun }) && (r.Verdict == RunPassed || r.Verdict == RunReview) {
			t.Errorf("a run with a step that was not run is %s", r.Verdict)
		}
	})
}

// reaches is the plainest way to say that a path exists.
func reaches(needs [][]int, from, to int) bool {
	return from == to || slices.ContainsFunc(needs[to], func(j int) bool { return reaches(needs, from, j) })
}

// Build agrees with the rules of ownership as they are written down.
func TestOwnershipProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 9).Draw(t, "steps")
		b := NewBuilder()
		thing := Add[Slot](b, spec("thing"))
		promises := []Promise[int]{{}}
		needs := make([][]int, n+1)
		modes := make([]string, n+1)
		for i := 1; i <= n; i++ {
			mode := rapid.SampledFrom([]string{"", ModeRead, ModeRead, ModeUse, ModeUse, ModeMove}).Draw(t, "mode")
			modes[i] = mode
			var in []Input
			switch mode {
			case ModeRead:
				in = append(in, Read(thing))
			case ModeUse:
				in = append(in, Use(AsPlace(thing)))
			case ModeMove:
				in = append(in, Move(thing))
			}
			if mode != "" {
				needs[i] = append(needs[i], 0)
			}
			for j := 1; j < i; j++ {
				if rapid.IntRange(0, 2).Draw(t, "edge") > 0 {
					needs[i] = append(needs[i], j)
					in = append(in, After(promises[j]))
				}
			}
			promises = append(promises, Add[int](b, spec(fmt.Sprint("s", i)), in...))
		}
		want := true
		for i := 1; i <= n; i++ {
			for j := i + 1; j <= n; j++ {
				if modes[i] == "" || modes[j] == "" || modes[i] == ModeRead && modes[j] == ModeRead {
					continue
				}
				if modes[i] == ModeMove || !reaches(needs, i, j) {
					want = false
				}
			}
		}
		if _, err := b.Build(noWorkload, "restore"); (err == nil) != want {
			t.Errorf("built: %v, by the rules: %v, modes %q needs %v", err, want, modes, needs)
		}
	})
}

//go:build linux && !elsewhere

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// allowance is what a budget leaves to an experiment.
type allowance struct {
	// until is when its time is over; zero is never.
	until time.Time
	// spare is how many rollouts there are beside those that every turn has once; nil for any number.
	spare *int64
	// cut says that a turn ended before its time for want of rollouts.
	cut bool
}

// over says that the time is.
func (a *allowance) over() bool { return !a.until.IsZero() && !time.Now().Before(a.until) }

// again says whether a turn may have one run more than every turn has, with n rollouts, and takes
// them; where it may not, people are told, and the experiment is not whole.
func (a *allowance) again(g *globals, t register.Turn, n int64) bool {
	if a.spare == nil {
		return true
	}
	if *a.spare < n {
		a.cut = true
		if !g.json() {
			_, _ = fmt.Fprintf(g.Stderr, "cut by experiment.budget.trials: no run %s, its %d rollouts would be more than it allows\n", t.Folder(), n)
		}
		return false
	}
	*a.spare -= n
	return true
}

// budget says on standard error how long the turns will take by runs that took so long,
// refuses them if that is longer than the manifest allows, or if they have more rollouts,
// and returns what they may use.
func budget(g *globals, e bench.Experiment, times wallTimes, turns []register.Turn) (*allowance, error) {
	estimate, known := times.estimate(turns, e)
	if !g.json() {
		text := "estimate: unknown until the first rollouts are done: no run of this workload has passed for each arm and reset"
		if known {
			text = fmt.Sprintf("estimate: %s for %d runs, by the medians of earlier ones", estimate.Round(time.Second), len(turns))
		}
		_, _ = fmt.Fprintln(g.Stderr, text)
	}
	a := &allowance{}
	if e.Budget == nil {
		return a, nil
	}
	if most := e.Budget.Trials; most > 0 {
		spare := most
		for _, t := range turns {
			spare -= rolloutsOf(t, e)
		}
		if spare < 0 {
			return nil, &engine.Error{Op: "run experiment", Err: usage(fmt.Sprintf("its runs have %d rollouts at least, controls and warm-ups among them, the budget is %d", most-spare, most)),
				Hint: "raise experiment.budget.trials, or ask for fewer rollouts, blocks, arms or resets"}
		}
		a.spare = &spare
	}
	if e.Budget.Time == "" {
		return a, nil
	}
	limit, err := time.ParseDuration(string(e.Budget.Time))
	if err != nil {
		return nil, &engine.Error{Op: "read budget", Err: err}
	}
	if known && estimate > limit {
		return nil, &engine.Error{Op: "run experiment", Err: usage(fmt.Sprintf("it will take about %s by earlier runs, the budget is %s", estimate.Round(time.Second), limit)),
			Hint: "raise experiment.budget.time, or ask for fewer rollouts, blocks, arms or resets"}
	}
	a.until = time.Now().Add(limit)
	return a, nil
}

// sayLeft says on standard error which turn comes, and how long it and those after it take.
func sayLeft(g *globals, times wallTimes, turns []register.Turn, next int, e bench.Experiment) {
	if g.json() {
		return
	}
	left := "time left not known yet"
	if d, known := times.estimate(turns[next:], e); known {
		left = "about " + d.Round(time.Second).String() + " left"
	}
	_, _ = fmt.Fprintf(g.Stderr, "run %d of %d: %s, %s\n", next+1, len(turns), turns[next].Folder(), left)
}

// side is what an estimate tells apart: part is "" for an ordinary run.
type side struct {
	arm, reset, part string
	slots            int64
}

func sideOf(arm, reset string, p *bench.Part) side {
	if p == nil {
		return side{arm: arm, reset: reset}
	}
	return side{arm, reset, p.Kind, p.Slots}
}

// wall is how long a run took, with how many rollouts.
type wall struct {
	took     time.Duration
	rollouts int64
}

// wallTimes of passed runs of one workload.
type wallTimes map[side][]wall

// take a run in, if it passed.
func (w wallTimes) take(r bench.Record) {
	started, serr := time.Parse(time.RFC3339Nano, string(r.Started))
	ended, eerr := time.Parse(time.RFC3339Nano, string(r.Ended))
	part, perr := record.PartOf(r)
	if serr != nil || eerr != nil || perr != nil || r.Verdict != engine.RunPassed || len(r.Rollouts) == 0 || !ended.After(started) {
		return
	}
	at := sideOf(r.Arm, string(r.Reset), part)
	w[at] = append(w[at], wall{ended.Sub(started), int64(len(r.Rollouts))})
}

// earlierRuns are those of the workload below the folders (each
// FOLDER/EXPERIMENT/RUN). A record that cannot be read tells nothing.
func earlierRuns(workload bench.SHA256, folders ...string) wallTimes {
	times, seen := wallTimes{}, map[string]bool{}
	for _, folder := range folders {
		full, err := filepath.Abs(folder)
		if err != nil || seen[full] {
			continue
		}
		seen[full] = true
		paths, _ := filepath.Glob(filepath.Join(full, "*", "*", record.RecordFile))
		for _, path := range paths {
			var r bench.Record
			data, err := record.ReadRegular(path)
			if err == nil && json.Unmarshal(data, &r) == nil && r.Digests["workload"] == workload {
				times.take(r)
			}
		}
	}
	return times
}

// counted is the experiment with its rollouts as a record counts them: each branch of a task that branches is one.
func counted(m bench.Manifest) bench.Experiment {
	e := m.Experiment
	if b := m.Task.Branching; b != nil {
		e.Rollouts, e.Warmup = e.Rollouts*int64(len(b.Branches)), e.Warmup*int64(len(b.Branches))
	}
	return e
}

// rolloutsOf a turn's run, controls and warm-ups among them; the experiment is counted.
func rolloutsOf(t register.Turn, e bench.Experiment) int64 {
	n := int64(len(steps.Controls))
	switch {
	case t.Part == nil:
		return n + e.Warmup + e.Rollouts
	case t.Part.Kind == steps.PartLevel:
		return n + t.Part.Slots
	}
	return n + e.Rollouts
}

// median wall time of a turn's run: of runs of the same part of the experiment, else
// of ordinary ones, else of any of its arm and reset, each by its rollouts. Not known without one.
func (w wallTimes) median(t register.Turn, e bench.Experiment) (time.Duration, bool) {
	n := rolloutsOf(t, e)
	of := w[sideOf(t.Arm, t.Reset, t.Part)]
	if len(of) == 0 {
		of = w[sideOf(t.Arm, t.Reset, nil)]
	}
	if len(of) == 0 {
		for at, more := range w {
			if at.arm == t.Arm && at.reset == t.Reset {
				of = append(of, more...)
			}
		}
	}
	if len(of) == 0 {
		return 0, false
	}
	var took []time.Duration
	for _, one := range of {
		took = append(took, one.took*time.Duration(n)/time.Duration(one.rollouts))
	}
	slices.Sort(took)
	return took[len(took)/2], true
}

// estimate sums the turns. A sustained window is as many runs as begin within its
// time. Not known if a side has no earlier run.
func (w wallTimes) estimate(turns []register.Turn, e bench.Experiment) (sum time.Duration, known bool) {
	for _, t := range turns {
		took, known := w.median(t, e)
		if !known {
			return 0, false
		}
		if t.Part != nil && t.Part.Kind == steps.PartSustain && took > 0 {
			if d, err := time.ParseDuration(string(e.Sustain.Duration)); err == nil {
				took *= max(1, (d+took-1)/took)
			}
		}
		sum += took
	}
	return sum, true
}

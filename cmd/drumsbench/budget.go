package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// budget says on standard error how long the turns will take, refuses them if that is
// longer than the manifest allows, and returns when their time is over; zero is never.
func (c *runCmd) budget(g *globals, m bench.Manifest, workload bench.SHA256, turns []register.Turn) (time.Time, error) {
	e := m.Experiment
	estimate, known := estimateOf(earlierRuns(workload, filepath.Join(g.State, "runs"), filepath.Dir(c.Out)), turns, e)
	if !g.json() {
		text := "estimate: unknown until the first rollouts are done: no run of this workload has passed for each arm and reset"
		if known {
			text = fmt.Sprintf("estimate: %s for %d runs, by the medians of earlier ones", estimate.Round(time.Second), len(turns))
		}
		_, _ = fmt.Fprintln(g.Stderr, text)
	}
	if e.Budget == nil {
		return time.Time{}, nil
	}
	limit, err := time.ParseDuration(string(e.Budget.Time))
	if err != nil {
		return time.Time{}, &engine.Error{Op: "read budget", Err: err}
	}
	if known && estimate > limit {
		return time.Time{}, &engine.Error{Op: "run experiment", Err: usage(fmt.Sprintf("it will take about %s by earlier runs, the budget is %s", estimate.Round(time.Second), limit)),
			Hint: "raise experiment.budget.time, or ask for fewer rollouts, blocks, arms or resets"}
	}
	return time.Now().Add(limit), nil
}

// side is what an estimate tells apart.
type side struct{ arm, reset string }

// earlierRuns are the wall times a rollout of passed runs of the workload below the
// folders (each FOLDER/EXPERIMENT/RUN). A record that cannot be read tells nothing.
func earlierRuns(workload bench.SHA256, folders ...string) map[side][]time.Duration {
	times, seen := map[side][]time.Duration{}, map[string]bool{}
	for _, folder := range folders {
		full, err := filepath.Abs(folder)
		if err != nil || seen[full] {
			continue
		}
		seen[full] = true
		paths, _ := filepath.Glob(filepath.Join(full, "*", "*", record.RecordFile))
		for _, path := range paths {
			var r struct {
				Arm, Reset     string
				Verdict        bench.RunVerdict
				Started, Ended time.Time
				Digests        map[string]bench.SHA256
				Rollouts       []struct{}
			}
			data, err := os.ReadFile(path)
			if err != nil || json.Unmarshal(data, &r) != nil {
				continue
			}
			took := r.Ended.Sub(r.Started)
			if r.Verdict != engine.RunPassed || r.Digests["workload"] != workload || len(r.Rollouts) == 0 || took <= 0 {
				continue
			}
			at := side{r.Arm, r.Reset}
			times[at] = append(times[at], took/time.Duration(len(r.Rollouts)))
		}
	}
	return times
}

// estimateOf sums the turns: the median time a rollout, as often as each has rollouts;
// a sustained window takes at least its own time. Not known if a side has no earlier run.
func estimateOf(times map[side][]time.Duration, turns []register.Turn, e bench.Experiment) (sum time.Duration, known bool) {
	for _, t := range turns {
		of := times[side{t.Arm, t.Reset}]
		if len(of) == 0 {
			return 0, false
		}
		of = slices.Sorted(slices.Values(of))
		one, n := of[len(of)/2], e.Warmup+e.Rollouts
		if t.Part != nil && t.Part.Kind == "level" {
			n = t.Part.Slots
		}
		took := one * time.Duration(n)
		if t.Part != nil && t.Part.Kind == "sustain" {
			if d, err := time.ParseDuration(string(e.Sustain.Duration)); err == nil {
				took = max(took, d)
			}
		}
		sum += took
	}
	return sum, true
}

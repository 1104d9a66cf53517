//go:build linux && !elsewhere

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/record/irregulartest"
	"github.com/drumsbench/drumsbench/engine/record/recordtest"
	"github.com/drumsbench/drumsbench/engine/register"
	"github.com/drumsbench/drumsbench/schemas/bench"
	"github.com/drumsbench/drumsbench/steps"
)

// An estimate comes of passed runs of the same workload only, and one above the budget is refused.
func TestBudget(t *testing.T) {
	state := t.TempDir()
	put := func(name, verdict, workload, ended string) {
		dir := filepath.Join(state, "runs", "e", name)
		text := `{"arm":"fake","reset":"restore","verdict":"` + verdict + `","started":"2026-11-30T00:00:00Z","ended":"2026-11-30T` + ended +
			`Z","digests":{"workload":"` + workload + `"},"rollouts":[{},{}]}`
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, record.RecordFile), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	put("failed", "failed", "w", "09:00:00")
	put("other", "passed", "v", "09:00:00")
	e := bench.Experiment{Rollouts: 5, Warmup: 1, Blocks: 2, Budget: &bench.Budget{Time: "2m"}}
	turns := register.Schedule([]string{"fake"}, []string{"restore"}, e)
	try := func() (string, error) {
		var out bytes.Buffer
		_, err := budget(&globals{State: state, Stderr: &out}, e, earlierRuns("w", filepath.Join(state, "runs")), turns)
		return out.String(), err
	}
	if text, err := try(); err != nil || !strings.Contains(text, "unknown") {
		t.Errorf("%q %v", text, err)
	}
	put("passed", "passed", "w", "00:00:20") // 10 s a rollout, twice 8 rollouts with the controls: 160 s
	e.Budget.Time = "160s"
	if text, err := try(); err != nil || !strings.Contains(text, "estimate: 2m40s for 2 runs") {
		t.Errorf("%q %v", text, err)
	}
	irregulartest.Each(t, filepath.Join(state, "runs", "e", "passed", record.RecordFile), func() error {
		if len(earlierRuns("w", filepath.Join(state, "runs"))) == 0 {
			return errors.New("a record that cannot be read tells nothing")
		}
		return nil
	})
	e.Budget.Time = "159s"
	if _, err := try(); !errors.Is(err, engine.ErrUsage) || codeOf(err) != codeUsage {
		t.Errorf("%v", err)
	}
}

// A budget of rollouts is counted as the plans have them, kept for the turns that are still to
// come, and spent by a window's further runs.
func TestBudgetOfRollouts(t *testing.T) {
	m := recordtest.Run{}.Plans()
	m.Experiment = bench.Experiment{Reset: []string{"restore", "cold"}, Rollouts: 3, Warmup: 1, Blocks: 1, Slots: 1, Order: "abba", Reuse: "post_setup",
		Sweep: &bench.Sweep{Slots: []int64{1, 3}, Trials: 1, Settle: "1s", Samples: 1}, Sustain: &bench.Sustain{Slots: 1, Duration: "1h", Windows: 1}}
	e := counted(m)
	turns := register.Schedule([]string{"fake"}, e.Reset, e)
	sum := int64(0)
	for _, turn := range turns {
		plan, err := steps.BlockOf(m, bench.SHA256(strings.Repeat("0", 64)), turn.Reset, turn.Part)
		if err != nil {
			t.Fatal(err)
		}
		n := rolloutsOf(turn, e)
		if have := int64(newRemaining(plan.Steps).total); have != n {
			t.Errorf("%s: %d rollouts, its plan has %d", turn.Folder(), n, have)
		}
		sum += n
	}
	if sum != 2*(6+3+5+5) {
		t.Errorf("%d rollouts in all", sum)
	}
	g := &globals{Stderr: &bytes.Buffer{}}
	e.Budget = &bench.Budget{Trials: sum - 1}
	if _, err := budget(g, e, wallTimes{}, turns); !errors.Is(err, engine.ErrUsage) {
		t.Errorf("%v", err)
	}
	e.Budget.Trials = sum + 6
	a, err := budget(g, e, wallTimes{}, turns)
	if err != nil || a.over() {
		t.Fatal(err)
	}
	last := turns[len(turns)-1]
	if !a.again(g, last.Next(), 5) || a.cut || a.again(g, last.Next(), 5) || !a.cut {
		t.Errorf("%+v", a)
	}
	if none, err := budget(g, bench.Experiment{}, wallTimes{}, nil); err != nil || none.over() || !none.again(g, last, 1<<40) {
		t.Errorf("%+v %v", none, err)
	}
}

// A part of an experiment is estimated by runs of the same part, where there are any; a
// sustained window is as many runs as begin within its time. What is left is said
// before each run, and not to programs.
func TestEstimateOfParts(t *testing.T) {
	record := func(took string, rollouts int, part string, slots string) bench.Record {
		r := bench.Record{Arm: "fake", Reset: "cold", Verdict: engine.RunPassed, Started: "2026-11-30T00:00:00Z", Ended: bench.Time("2026-11-30T" + took + "Z"), Rollouts: make([]bench.Rollout, rollouts)}
		if part != "" {
			r.Facts = []bench.Fact{{Name: "experiment.part", Known: true, Value: part}, {Name: "experiment.slots", Known: true, Value: slots}}
		}
		return r
	}
	e := bench.Experiment{Rollouts: 2, Blocks: 1, Sweep: &bench.Sweep{Slots: []int64{1, 2}, Trials: 1}, Sustain: &bench.Sustain{Slots: 2, Duration: "90s", Windows: 1}}
	turns := register.Schedule([]string{"fake"}, []string{"cold"}, e)
	times := wallTimes{}
	times.take(record("00:00:40", 4, "", ""))
	for _, c := range []struct {
		add  bench.Record
		want time.Duration
	}{
		{record("09:00:00", 0, "", ""), 40*time.Second + 30*time.Second + 40*time.Second + 120*time.Second}, // one without a rollout says nothing
		{record("00:01:00", 4, "level", "2"), 40*time.Second + 30*time.Second + 60*time.Second + 120*time.Second},
		{record("00:00:50", 4, "sustain", "2"), 40*time.Second + 30*time.Second + 60*time.Second + 100*time.Second},
	} {
		times.take(c.add)
		if got, known := times.estimate(turns, e); !known || got != c.want {
			t.Errorf("%v %v, want %v", got, known, c.want)
		}
	}
	var out bytes.Buffer
	sayLeft(&globals{Stderr: &out}, times, turns, 3, e)
	sayLeft(&globals{Stderr: &out, Output: "json"}, times, turns, 3, e)
	sayLeft(&globals{Stderr: &out}, wallTimes{}, turns, 1, e)
	if want := "run 4 of 4: fake-cold-window0-000, about 1m40s left\nrun 2 of 4: fake-cold-level1-0, time left not known yet\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// A round counts as many rollouts as it has branches.
func TestCountedBranches(t *testing.T) {
	m := bench.Manifest{Experiment: bench.Experiment{Rollouts: 3, Warmup: 1}}
	if e := counted(m); e.Rollouts != 3 || e.Warmup != 1 {
		t.Errorf("%+v", e)
	}
	m.Task.Branching = &bench.Branching{Branches: make([]bench.Branch, 4)}
	if e := counted(m); e.Rollouts != 12 || e.Warmup != 4 || m.Experiment.Rollouts != 3 {
		t.Errorf("%+v", e)
	}
}

package register

import (
	"fmt"
	"strings"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// manyRun is a level of slots in a trial, with so many MiB of host memory.
func manyRun(t *testing.T, m bench.Manifest, slots, trial, mib int64, fired []string) Run {
	t.Helper()
	var r Run
	r.Registered.Time = "2026-11-30T00:00:00Z"
	r.Manifest = m
	r.Record = bench.Record{Run: fmt.Sprintf("x/level%d-%d", slots, trial), Arm: "fake", Reset: "restore", Verdict: engine.RunPassed,
		Started: bench.Time(fmt.Sprintf("2026-11-30T01:%02d:%02dZ", slots, trial)), Ended: bench.Time(fmt.Sprintf("2026-11-30T01:%02d:%02dZ", slots, trial+1)),
		Digests: map[string]bench.SHA256{"workload": "w", "events": bench.SHA256(fmt.Sprint(slots, trial))}}
	add := func(name string, v any) {
		text, is := v.(string)
		if !is {
			b, err := canonical.JSON(v)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		r.Record.Facts = append(r.Record.Facts, bench.Fact{Name: name, Known: true, Value: text})
	}
	add("experiment.part", "level")
	add("experiment.slots", fmt.Sprint(slots))
	add("experiment.block", fmt.Sprint(trial))
	used := func(n int64) bench.HostMemory {
		return bench.HostMemory{Used: bench.Int64(fmt.Sprint(n << 20)), Low: "1", High: "1", Readings: 1}
	}
	add("baseline-before/host-memory", used(100))
	add("baseline-after/host-memory", used(100))
	add("density/level", bench.Level{Host: used(100 + mib), Slots: []bench.LevelSlot{}, Engine: "5"})
	if slots > 1 {
		reading := bench.IsolationReading{Fired: fired, Missed: []string{}, Watched: []string{"file"}, Exposure: "36000000000000", Looks: 4, Events: []bench.ContaminationEvent{}}
		if len(fired) == 0 {
			reading.Missed = []string{"file"}
		}
		add("isolate/isolation", reading)
	}
	return r
}

// Bars of many slots at once pass, fail and are undecided by the same rule as others;
// a number that is not there, a trial that is not there and a control that did not
// fire are no pass.
func TestManyBars(t *testing.T) {
	m := bench.Manifest{Arms: bench.Arms{Fake: &bench.FakeSettings{}}, Experiment: bench.Experiment{Reset: []string{"restore"}, Rollouts: 1, Blocks: 1, Order: "abba",
		Sweep: &bench.Sweep{Slots: []int64{1, 2, 4}, Trials: 4}}}
	reg := Registered{Registration: bench.Registration{Manifest: m, Method: bench.RegisteredMethod{Statistics: compare.Method, Judging: Rule}}}
	all := func(fired []string) (runs []Run) {
		for trial := range int64(4) {
			for _, n := range []int64{1, 2, 4} {
				runs = append(runs, manyRun(t, m, n, trial, 10*n+trial%2, fired))
			}
		}
		return runs
	}
	good := all([]string{"file"})
	failed := all([]string{"file"})
	failed[5].Record.Verdict = engine.RunFailed
	for name, c := range map[string]struct {
		runs   []Run
		metric string
		bound  bench.Bound
		n      int64
		want   bench.BarVerdict
		reason string
	}{
		"slope within":      {good, "memory-slope", bench.Bound{Max: "12MiB"}, 4, Pass, ""},
		"slope above":       {good, "memory-slope", bench.Bound{Max: "8MiB"}, 4, Fail, "above max"},
		"too few trials":    {good, "memory-slope", bench.Bound{Max: "12MiB"}, 5, NotEnough, "asks for 5"},
		"stable":            {good, "stable-n", bench.Bound{Min: "4"}, 4, Pass, ""},
		"not stable enough": {good, "stable-n", bench.Bound{Min: "5"}, 1, Fail, "below min"},
		"isolated":          {good, "contamination", bench.Bound{Max: "1"}, 2, Pass, ""},
		"hours too few":     {good, "contamination", bench.Bound{Max: "0.001"}, 2, NotEnough, "straddles"},
		"control unfired":   {all([]string{}), "contamination", bench.Bound{Max: "1"}, 1, NotEnough, "not fired"},
		"a trial is gone":   {good[1:], "memory-slope", bench.Bound{Max: "12MiB"}, 1, NotEnough, "11 of 12"},
		"a trial twice":     {append(good[:1:1], good...), "memory-slope", bench.Bound{Max: "12MiB"}, 1, Unknown, "more than one"},
		"a trial failed":    {failed, "memory-slope", bench.Bound{Max: "12MiB"}, 1, Unknown, "did not pass"},
		"no window":         {good, "valid-per-hour", bench.Bound{Min: "1"}, 1, Unknown, "no sustained window"},
		"no cost":           {good, "usd-per-valid-owned", bench.Bound{Max: "1"}, 1, Unknown, "no sustained window"},
	} {
		t.Run(name, func(t *testing.T) {
			j := judge{reg: reg, runs: c.runs}
			got := j.bar(bench.Bar{Name: "b", Metric: c.metric, Of: bench.BarSide{Arm: "fake", Reset: "restore"}, P50: &c.bound, N: c.n})
			if got.Verdict != c.want || !strings.Contains(got.Reason, c.reason) || (got.Reason == "") != (c.want == Pass) {
				t.Errorf("%s: %s, want %s: %s", got.Verdict, got.Reason, c.want, c.reason)
			}
		})
	}
}

// A rate is between its slowest and its fastest window; of windows below ten
// minutes nothing passes; a cost is exact.
func TestManyEstimate(t *testing.T) {
	events, upper := int64(2), 9.0
	d := bench.Density{PerHour: bench.PerHour{Windows: 2, Value: "10", Low: "8", High: "12", Short: true}, Costs: []bench.Cost{{Price: "owned", Usd: "0.25", Valid: 7}},
		Isolation: bench.IsolationResult{Events: &events, Hours: "1", Upper: &upper, Runs: 3}}
	if e, n, short := manyEstimate(d, "valid-per-hour"); *e.Value != 10 || e.Interval.Low != 8 || e.Interval.High != 12 || n != 2 || !short {
		t.Errorf("%+v %d %v", e, n, short)
	}
	if e, n, short := manyEstimate(d, "usd-per-valid-owned"); *e.Value != 0.25 || e.Interval.Low != 0.25 || n != 7 || !short {
		t.Errorf("%+v %d %v", e, n, short)
	}
	if e, _, _ := manyEstimate(d, "usd-per-valid-second"); e.Value != nil {
		t.Errorf("%+v", e)
	}
	if e, n, _ := manyEstimate(d, "contamination"); *e.Value != 2 || e.Interval.Low != 2 || e.Interval.High != 9 || n != 3 {
		t.Errorf("%+v %d", e, n)
	}
	if err := checkBars([]bench.Bar{{Name: "b", Metric: "stable-n", P95: &bench.Bound{Min: "1"}}}); err == nil {
		t.Error("a 95th percentile of one number is registered")
	}
	if err := checkBars([]bench.Bar{{Name: "b", Metric: "memory-slope", P50: &bench.Bound{Max: "3"}}}); err == nil {
		t.Error("a size without a unit is registered")
	}
	if err := checkBars([]bench.Bar{{Name: "b", Metric: "memory-slope", P50: &bench.Bound{Max: "3MiB"}}, {Name: "c", Metric: "stable-n", P50: &bench.Bound{Min: "2"}}}); err != nil {
		t.Error(err)
	}
}

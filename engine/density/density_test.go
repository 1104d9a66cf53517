package density

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/canonical"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var start = time.Date(2026, 11, 30, 5, 0, 0, 0, time.UTC)

func stamp(s float64) bench.Time {
	return bench.Time(start.Add(time.Duration(s * 1e9)).Format(time.RFC3339Nano))
}

// run is a part of an experiment that passed; from and to are seconds.
func run(kind string, slots, series, n int64, from, to float64) Run {
	var r Run
	r.Record = bench.Record{Run: fmt.Sprintf("x/%s%d-%d-%d", kind, slots, series, n), Arm: "drums", Reset: "restore", Verdict: engine.RunPassed,
		Started: stamp(from), Ended: stamp(to), Digests: map[string]bench.SHA256{"workload": "w", "events": bench.SHA256(fmt.Sprint(kind, slots, series, n, from))}}
	add := func(name, value string) { r.fact("experiment."+name, value) }
	add("part", kind)
	add("slots", fmt.Sprint(slots))
	add("block", fmt.Sprint(series))
	if kind == "sustain" {
		add("run", fmt.Sprint(n))
	}
	return r
}

func (r *Run) fact(name, value string) {
	r.Record.Facts = append(r.Record.Facts, bench.Fact{Name: name, Known: true, Value: value})
}

func (r *Run) json(t *testing.T, name string, v any) {
	t.Helper()
	text, err := canonical.JSON(v)
	if err != nil {
		t.Fatal(err)
	}
	r.fact(name, string(text))
}

// held is a level with used bytes above a baseline of 1000.
func held(t *testing.T, slots, trial, used int64) Run {
	r := run("level", slots, trial, 0, float64(100*slots+trial), float64(100*slots+trial+1))
	r.json(t, factBefore, bench.HostMemory{Used: "990", Low: "990", High: "990", Readings: 1})
	r.json(t, factAfter, bench.HostMemory{Used: "1010", Low: "1010", High: "1010", Readings: 1})
	l := bench.Level{Host: bench.HostMemory{Used: whole(1000 + used), Low: "1", High: "1", Readings: 1}, Slots: []bench.LevelSlot{}, Engine: "5"}
	for k := range slots {
		l.Slots = append(l.Slots, bench.LevelSlot{Slot: bench.Name(fmt.Sprintf("slot-%d", k)), Cpu: "1000000000",
			Memory: bench.Memory{PrivateDirty: whole(100 + k), Pss: "200", Processes: 2, Harness: "0"}})
	}
	r.json(t, factLevel, l)
	return r
}

func one(t *testing.T, runs ...Run) bench.Density {
	t.Helper()
	all, err := Of(runs)
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Densities) != 1 {
		t.Fatalf("%d densities", len(all.Densities))
	}
	for i := range all.Densities { // the schema's digests are longer than a test's
		all.Densities[i].Workload = bench.SHA256(strings.Repeat("0", 64))
	}
	text, err := canonical.JSON(all)
	if err == nil {
		err = compile.Validate("#Densities", text)
	}
	if err != nil {
		t.Error(err)
	}
	return all.Densities[0]
}

func TestSlopeAndStable(t *testing.T) {
	var runs []Run
	for trial, per := range []int64{10, 11, 12, 14} {
		for _, n := range []int64{1, 2, 4} {
			runs = append(runs, held(t, n, int64(trial), 50+per*n))
		}
	}
	d := one(t, append(runs, runs[0])...) // named twice is one
	// testdata/slope.py of package stats has the interval.
	if d.Slope.Value == nil || math.Abs(*d.Slope.Value-11.75) > 1e-9 || math.Abs(*d.Slope.Low-9.90122506778137) > 1e-9 || math.Abs(*d.Slope.High-15.44754986443726) > 1e-9 || d.Slope.Levels != 3 {
		t.Errorf("slope %+v", d.Slope)
	}
	if d.Stable.N == nil || *d.Stable.N != 4 || d.Stable.Above != "not tried above 4" {
		t.Errorf("stable %+v", d.Stable)
	}
	if l := d.Levels[2]; l.Slots != 4 || *l.PrivateDirty != 101.5 || *l.Cpu != 1e9 || *l.Engine != 5 || len(l.Runs) != 4 || l.Runs[0].Above != "60" && l.Runs[0].Above != "90" {
		t.Errorf("level %+v", l)
	}
	if len(d.Noise) != 24 { // nobody probed
		t.Errorf("noise %q", d.Noise)
	}

	// A run that failed gives no number, takes its level from the slope, and bounds the stable number.
	bad := held(t, 4, 1, 1_000_000)
	bad.Record.Verdict, bad.Record.Reason = engine.RunFailed, "gate-locks: a lock is gone"
	var some []Run
	for _, r := range runs {
		if r.Record.Run != bad.Record.Run {
			some = append(some, r)
		}
	}
	d = one(t, append(some, bad)...)
	if d.Slope.Value != nil || d.Slope.Few == nil || d.Slope.Few.Have != 2 {
		t.Errorf("slope of two levels %+v", d.Slope)
	}
	if d.Stable.N == nil || *d.Stable.N != 2 || !strings.Contains(d.Stable.Above, "a lock is gone") {
		t.Errorf("stable %+v", d.Stable)
	}
	if f := Failures(d); len(f) != 1 || !strings.Contains(f[0], "failed: gate-locks") {
		t.Errorf("failures %q", f)
	}
	// One window is none that is confirmed.
	if d = one(t, runs[0]); d.Stable.N != nil || !strings.Contains(d.Stable.Above, "it takes 2") {
		t.Errorf("stable %+v", d.Stable)
	}
	// A run that passed and does not have the reading is damage.
	blind := run("level", 1, 0, 0, 0, 1)
	if _, err := Of([]Run{blind}); err == nil {
		t.Error("a level without a reading counts")
	}
}

func sustained(from, to float64, series, n int64, valid, broken int) Run {
	r := run("sustain", 2, series, n, from, to)
	r.Record.Rollouts = []bench.Rollout{{Index: 0, Slot: "slot-0", Class: "failed_valid", Control: "none"}, {Index: 1, Slot: "slot-0", Class: "success", Control: "oracle"}}
	for range valid {
		r.Record.Rollouts = append(r.Record.Rollouts, bench.Rollout{Slot: "slot-0", Class: "success"})
	}
	for range broken {
		r.Record.Rollouts = append(r.Record.Rollouts, bench.Rollout{Index: 9, Slot: "slot-1", Class: "env_failure", Reason: "restore: deadline"})
	}
	r.Manifest.Experiment.Prices = &bench.Prices{
		Owned:     bench.OwnedPrice{Date: "2026-11-30", Source: "s", Purchase: "2400", Hours: 24000, Watts: "150", Kwh: "0.40"},
		OnDemand:  bench.CloudPrice{Date: "2026-11-30", Source: "s", Hourly: "0.30", Minimum: "24"},
		Second:    bench.SecondPrice{Date: "2026-11-30", Source: "s", Currency: "EUR", Hourly: "0.1", Minimum: "0", Usd: "1.1", RateDate: "2026-11-30", RateSource: "s"},
		Inference: bench.InferencePrice{Counted: "out"},
	}
	return r
}

// Two windows of 360 s and 720 s with 6 and 10 valid rollouts in passed runs: 16 in
// 0.3 h is 53.3333 an hour; owned 2400/24000 + 0.15*0.40 = 0.16 USD/h, 0.048 in
// all, 0.003 each; on demand 24 h at 0.30 = 7.2, 0.45 each; second 0.11*0.3 = 0.033, 0.0020625 each.
func TestSustained(t *testing.T) {
	runs := []Run{sustained(0, 170, 0, 0, 4, 0), sustained(175, 360, 0, 1, 2, 1), sustained(1000, 1720, 1, 0, 10, 0)}
	failed := sustained(1100, 1200, 1, 1, 5, 0)
	failed.Record.Verdict, failed.Record.Reason = engine.RunFailed, "gate-cleanup"
	runs[1].Record.Verdict = engine.RunPassed
	d := one(t, append(runs, failed)...)
	if d.PerHour.Value != "53.3333" || d.PerHour.Low != "50.0000" || d.PerHour.High != "60.0000" || !d.PerHour.Short || d.PerHour.Windows != 2 {
		t.Errorf("%+v", d.PerHour)
	}
	if w := d.Windows[0]; w.Wall != "360000000000" || !w.Short || w.Runs != 2 || w.Valid != 6 || w.Attempts != 11 {
		t.Errorf("%+v", w)
	}
	if w := d.Windows[1]; w.Short || w.Valid != 10 || w.Attempts != 19 {
		t.Errorf("%+v", w)
	}
	lines := strings.Join(Failures(d), "\n")
	for _, want := range []string{"x/sustain2-0-1 rollout 9 slot-1: env_failure: restore: deadline", "x/sustain2-1-1: failed: gate-cleanup; 5 of its rollouts were valid and do not count"} {
		if !strings.Contains(lines, want) {
			t.Errorf("%s lacks %q", lines, want)
		}
	}
	for i, want := range []bench.Cost{
		{Price: "owned", Hourly: "0.160000", Paid: "0.048000", Hours: "0.300000", Usd: "0.003000"},
		{Price: "onDemand", Hourly: "0.300000", Paid: "7.200000", Hours: "24.000000", Usd: "0.450000"},
		{Price: "second", Hourly: "0.110000", Paid: "0.033000", Hours: "0.300000", Usd: "0.002063"},
	} {
		c := d.Costs[i]
		if c.Price != want.Price || c.Hourly != want.Hourly || c.Paid != want.Paid || c.Hours != want.Hours || c.Usd != want.Usd || c.Valid != 16 || c.Label != "estimate" || c.Inference != "out" {
			t.Errorf("%+v, want %+v", c, want)
		}
	}
	// A bill that every run found makes it no estimate; one that a run did not find does not.
	for i := range runs {
		runs[i].fact(ReceiptFact+"owned", "abc")
		d = one(t, runs...)
		if have := d.Costs[0].Label == "receipt sha256 abc"; have != (i == len(runs)-1) {
			t.Errorf("%d runs found the bill: label %q", i+1, d.Costs[0].Label)
		}
	}
	// Inference that is counted is paid for each of the 23 rollouts that were begun: 0.048 + 0.23.
	for i := range runs {
		runs[i].Manifest.Experiment.Prices.Inference = bench.InferencePrice{Counted: "in", Rollout: "0.01", Date: "2026-11-30", Source: "s"}
	}
	if d = one(t, runs...); d.Costs[0].Paid != "0.278000" || d.Costs[0].Inference != "in" {
		t.Errorf("%+v", d.Costs[0])
	}
	// A window that ended before its time has no rate either: one that lasted exactly as long has.
	for d, whole := range map[bench.Duration]bool{"360s": true, "361s": false} {
		cut := slices.Clone(runs)
		for i := range cut {
			cut[i].Manifest.Experiment.Sustain = &bench.Sustain{Slots: 2, Duration: d, Windows: 2}
		}
		if d := one(t, cut...); (d.PerHour.Value != "") != whole || (d.NoCosts == "") != whole || !whole && !strings.Contains(d.Windows[0].Reason, "it ended after 6m0s and was to last 6m1s") {
			t.Errorf("%+v, %+v", d.Windows, d.PerHour)
		}
	}
	// A window of which a run is missing has no rate, and then there is none at all.
	if d = one(t, runs[1], runs[2]); d.PerHour.Value != "" || d.PerHour.Reason == "" || d.NoCosts == "" {
		t.Errorf("%+v, %q", d.PerHour, d.NoCosts)
	}
}

// Events of isolation stand only beside a control that fired in the same run.
func TestIsolation(t *testing.T) {
	all := []string{"file", "port"}
	reading := func(fired, missed []string, events ...bench.ContaminationEvent) bench.IsolationReading {
		if events == nil {
			events = []bench.ContaminationEvent{}
		}
		return bench.IsolationReading{Fired: fired, Missed: missed, Watched: all, Exposure: "1800000000000", Looks: 3, Events: events}
	}
	with := func(trial int64, r bench.IsolationReading) Run {
		one := held(t, 2, trial, 10)
		one.json(t, factIsolation, r)
		return one
	}
	event := bench.ContaminationEvent{Channel: "file", Slot: "slot-1", From: "slot-0"}
	for name, c := range map[string]struct {
		runs   []Run
		events int64 // -1: absent
		upper  float64
		say    string
	}{
		"nobody looked":      {[]Run{held(t, 2, 0, 10)}, -1, 0, "no run had a detector"},
		"clean":              {[]Run{with(0, reading(all, []string{})), with(1, reading(all, []string{}))}, 0, 2.995732, "fired in each of 2"},
		"seen":               {[]Run{with(0, reading(all, []string{}, event))}, 1, 2 * 4.743865, "fired in each of 1"},
		"missed one":         {[]Run{with(0, reading([]string{"file"}, []string{"port"}))}, -1, 0, "missed in port"},
		"missed all":         {[]Run{with(0, reading([]string{}, []string{}))}, -1, 0, "missed in every channel"},
		"another run's only": {[]Run{with(0, reading(all, []string{})), with(1, reading([]string{}, all))}, -1, 0, "missed in file, port"},
	} {
		i := one(t, c.runs...).Isolation
		if (c.events < 0) != (i.Events == nil) || i.Events != nil && (*i.Events != c.events || math.Abs(*i.Upper-c.upper) > 1e-5) || !strings.Contains(i.Control+i.Reason, c.say) {
			t.Errorf("%s: %+v", name, i)
		}
	}
	// What a slot saw fails its run, and counts all the same.
	seen := with(0, reading(all, []string{}, event))
	seen.Record.Verdict = engine.RunFailed
	if i := one(t, seen).Isolation; i.Events == nil || *i.Events != 1 || len(i.Seen) != 1 {
		t.Errorf("%+v", i)
	}
}

// Each output says the same, a short window is marked in all, and ordinary runs have none.
func TestOutputs(t *testing.T) {
	all, err := Of([]Run{held(t, 1, 0, 10), sustained(0, 100, 0, 0, 4, 1)})
	if err != nil {
		t.Fatal(err)
	}
	table, err := CSV(all)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"text": Text(all), "md": Markdown(all), "csv": table} {
		for _, want := range []string{"memory-slope", "too few levels to say", "stable-n", "144.0000", "SHORT", "usd-per-valid-onDemand", "estimate", "contamination", "no run had a detector"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q:\n%s", name, want, text)
			}
		}
	}
	none, err := Of([]Run{{}})
	if err != nil || len(none.Densities) != 0 || Text(none) != "" {
		t.Errorf("%+v, %v", none, err)
	}
}

package register

import (
	"fmt"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/density"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Metrics of many slots at once, each with its unit. n is what a bar's n counts.
var manyMetrics = map[string]string{
	"memory-slope":           "bytes",    // n: trials
	"stable-n":               "slots",    // n: runs of that level
	"valid-per-hour":         "1/h",      // n: windows
	"usd-per-valid-owned":    "USD",      // n: valid rollouts
	"usd-per-valid-onDemand": "USD",      // n: valid rollouts
	"usd-per-valid-second":   "USD",      // n: valid rollouts
	"contamination":          "1/slot-h", // n: runs that were watched
}

// unitOf a metric of a rollout, or of many slots at once.
func unitOf(metric string) (unit string, known bool) {
	if unit, known = manyMetrics[metric]; known {
		return unit, true
	}
	return compare.Unit(metric)
}

func many(metric string) bool { _, is := manyMetrics[metric]; return is }

// manyNames are the metrics of many slots at once, sorted.
func manyNames() (names []string) {
	for name := range manyMetrics {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// parts are the runs of a side that belong to one kind of part, or why they cannot be counted.
func (j *judge) parts(s bench.BarSide, kind string) (runs []density.Run, verdict bench.BarVerdict, reason string) {
	m := j.reg.Manifest
	place := func(p bench.Part) string { return fmt.Sprintf("%d slots, %d", p.Slots, p.Series) }
	want, have := map[string]bool{}, map[string]int{}
	for _, t := range Schedule(ArmsInTurn(m), m.Experiment.Reset, m.Experiment) {
		if t.Arm == string(s.Arm) && t.Reset == string(s.Reset) && t.Part != nil && t.Part.Kind == kind {
			want[place(*t.Part)] = true
		}
	}
	if len(want) == 0 {
		return nil, Unknown, "the experiment has no " + map[string]string{"level": "sweep", "sustain": "sustained window"}[kind]
	}
	for _, r := range j.runs {
		p, err := record.PartOf(r.Record)
		if err != nil {
			return nil, Unknown, err.Error()
		}
		if p == nil || p.Kind != kind || r.Record.Arm != string(s.Arm) || r.Record.Reset != string(s.Reset) {
			continue
		}
		why := ""
		switch {
		case r.Unsound:
			why = "its directory is not sound"
		case r.Record.Verdict != engine.RunPassed && kind == "level": // of a window it is counted, and is paid for
			why = "it did not pass: " + string(r.Record.Verdict)
		default:
			why = stray(r)
		}
		if why != "" {
			return nil, Unknown, fmt.Sprintf("run %s yields no number: %s", r.Record.Run, why)
		}
		if have[place(*p)]++; have[place(*p)] > 1 && kind == "level" {
			return nil, Unknown, fmt.Sprintf("%s %s: more than one run of %s; register it anew to run it again", s.Arm, s.Reset, place(*p))
		}
		runs = append(runs, density.Run{Record: r.Record, Manifest: r.Manifest})
	}
	if len(have) < len(want) {
		return nil, NotEnough, fmt.Sprintf("%s %s: %d of %d registered levels or windows", s.Arm, s.Reset, len(have), len(want))
	}
	return runs, Pass, ""
}

// manyBar judges a bar of many slots at once, by the same rule as any other. Where
// a number is exact, as the stable number and a cost are, its interval is itself;
// that of a rate is from the slowest to the fastest window. A window below ten
// minutes says too little.
func (j *judge) manyBar(b bench.Bar, unit string) bench.BarResult {
	out := bench.BarResult{Bar: b, Verdict: Unknown, Unit: unit}
	if j.reg.Method.Statistics != compare.Method || j.reg.Method.Judging != Rule {
		out.Reason = "this program counts or judges otherwise than registered"
		return out
	}
	kind := "level"
	if strings.HasPrefix(b.Metric, "valid-per-hour") || strings.HasPrefix(b.Metric, "usd-") {
		kind = "sustain"
	}
	runs, verdict, reason := j.parts(b.Of, kind)
	if reason != "" {
		out.Verdict, out.Reason = verdict, reason
		return out
	}
	all, err := density.Of(runs)
	switch {
	case err != nil:
		out.Reason = err.Error()
		return out
	case len(all.Densities) != 1:
		out.Reason = fmt.Sprintf("the runs of %s %s are not of one kind", b.Of.Arm, b.Of.Reset)
		return out
	}
	d := all.Densities[0]
	out.Emulated = d.Emulated
	e, n, short := manyEstimate(d, b.Metric)
	out.N, out.P50 = n, &e
	switch {
	case e.Value == nil:
		out.Verdict, out.Reason, out.Few = NotEnough, e.Reason, e.Few
	case short:
		out.Verdict, out.Reason = NotEnough, fmt.Sprintf("a window is shorter than %s", density.ShortWindow)
	case n < b.N:
		out.Verdict, out.Few = NotEnough, &bench.TooFew{Have: n, Need: b.N}
		out.Reason = fmt.Sprintf("n of %s is %d, the bar asks for %d", b.Metric, n, b.N)
	case b.P50 == nil:
		out.Reason = "it bounds nothing"
	default:
		out.Verdict, out.Reason, out.Few = Within(e, *b.P50, n)
	}
	return out
}

// manyEstimate is a number of a density with its interval and n.
func manyEstimate(d bench.Density, metric string) (e bench.Estimate, n int64, short bool) {
	exact := func(v float64) bench.Estimate {
		return bench.Estimate{Value: &v, Interval: &bench.Interval{Low: v, High: v, Confidence: 1}}
	}
	number := func(text bench.Decimal) (v float64, ok bool) {
		_, err := fmt.Sscan(string(text), &v)
		return v, err == nil
	}
	switch metric {
	case "memory-slope":
		e = bench.Estimate{Value: d.Slope.Value, Few: d.Slope.Few, Reason: d.Slope.Reason}
		if d.Slope.Low != nil && d.Slope.High != nil && d.Slope.Confidence != nil {
			e.Interval = &bench.Interval{Low: *d.Slope.Low, High: *d.Slope.High, Confidence: *d.Slope.Confidence}
		}
		return e, int64(len(d.Slope.Trials)), false
	case "stable-n":
		if d.Stable.N == nil {
			return bench.Estimate{Reason: d.Stable.Above}, 0, false
		}
		for _, l := range d.Levels {
			if l.Slots == *d.Stable.N {
				n = int64(len(l.Runs))
			}
		}
		return exact(float64(*d.Stable.N)), n, false
	case "valid-per-hour":
		v, ok := number(d.PerHour.Value)
		low, lok := number(d.PerHour.Low)
		high, hok := number(d.PerHour.High)
		if !ok || !lok || !hok {
			return bench.Estimate{Reason: d.PerHour.Reason}, d.PerHour.Windows, false
		}
		return bench.Estimate{Value: &v, Interval: &bench.Interval{Low: low, High: high}}, d.PerHour.Windows, d.PerHour.Short
	case "contamination":
		i := d.Isolation
		hours, ok := number(i.Hours)
		if i.Events == nil || i.Upper == nil || !ok || hours <= 0 {
			return bench.Estimate{Reason: "positive control " + i.Control + ": " + i.Reason}, i.Runs, false
		}
		v, low := float64(*i.Events)/hours, 0.0
		if *i.Events > 0 { // one that was seen is no chance
			low = v
		}
		return bench.Estimate{Value: &v, Interval: &bench.Interval{Low: low, High: *i.Upper, Confidence: 0.95}}, i.Runs, false
	}
	for _, c := range d.Costs {
		if metric != "usd-per-valid-"+c.Price {
			continue
		}
		if v, ok := number(c.Usd); ok {
			return exact(v), c.Valid, d.PerHour.Short
		}
		return bench.Estimate{Reason: c.Reason}, c.Valid, false
	}
	return bench.Estimate{Reason: "no cost: " + d.NoCosts}, 0, false
}

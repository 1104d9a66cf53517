package register

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/compare"
	"github.com/drumsbench/drumsbench/engine/compile"
	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Verdicts of bars.
const (
	Pass      bench.BarVerdict = "pass"
	Fail      bench.BarVerdict = "fail"
	NotEnough bench.BarVerdict = "not_enough_data"
	Unknown   bench.BarVerdict = "unknown"
)

// Rule by which a bar is judged, as judgements and registrations state it.
//
// Why the interval and not the number: where the truth lies on the bar itself,
// the measured median is on the good side of it in half of all runs, so a rule by
// the number alone passes by luck, the oftener the fewer the rollouts. An interval
// that holds the truth with 95% lies wholly on the wrong side of it in at most 5%
// of all experiments, however few the rollouts; and so a pass and a fail are wrong
// as rarely as that, and everything between them is said to be undecided, not
// rounded to the side that somebody hopes for. The same rule both ways: a fail
// needs as much as a pass does.
const Rule = "a bar passes where the whole 95% interval of the median, 95th percentile, share or ratio of medians is within it, the bound itself included; " +
	"it fails where the whole interval is outside of one bound; an interval that straddles a bound, fewer rollouts than the bar's n, and fewer runs than registered are not enough data; " +
	"runs that did not pass, more runs than registered, a run that was started and is not there or has no record, runs out of the registered order, and a side or ratio whose comparison is refused are unknown; the 95th percentile has the exact interval of its order statistics; " +
	"of many slots at once: the slope has its bootstrap interval, a rate is between its slowest and its fastest window, a stable number and a cost are exact, events have the upper bound of a Poisson rate; " +
	"a window below ten minutes is not enough data, and a missing number is not either"

// sideRuns are the runs of a bar's side, or why they cannot be counted.
type sideRuns struct {
	runs    []compare.Run
	verdict bench.BarVerdict
	reason  string
	few     *bench.TooFew
}

// bar judges one bar by all runs of the experiment.
func (j *judge) bar(b bench.Bar) bench.BarResult {
	out := bench.BarResult{Bar: b, Verdict: Unknown}
	unit, known := unitOf(b.Metric)
	if !known {
		out.Reason = "this program has no metric " + b.Metric
		return out
	}
	if many(b.Metric) {
		return j.manyBar(b, unit)
	}
	out.Unit = unit
	of := j.side(b.Of)
	sides := []sideRuns{of}
	if b.Over != nil {
		out.Unit = "ratio"
		sides = append(sides, j.side(*b.Over))
	}
	for i, s := range sides {
		out.Emulated = out.Emulated || slices.ContainsFunc(s.runs, func(r compare.Run) bool { return engine.Emulated(r.Record.Facts) })
		if s.reason != "" {
			out.Verdict, out.Reason, out.Few = s.verdict, s.reason, s.few
			return out
		}
		n := int64(len(compare.Values(s.runs, b.Metric)))
		if i == 0 || n < out.N {
			out.N = n
		}
	}
	if out.N < b.N {
		out.Verdict, out.Few = NotEnough, &bench.TooFew{Have: out.N, Need: b.N}
		out.Reason = fmt.Sprintf("%d values of %s from valid measured rollouts, the bar asks for %d", out.N, b.Metric, b.N)
		return out
	}
	if b.Over == nil {
		values := compare.Values(of.runs, b.Metric)
		if b.P50 != nil {
			e := stats.Median(values)
			if b.Metric == compare.Score {
				e = share(values)
			}
			out.P50 = &e
		}
		if b.P95 != nil {
			e := percentile95(values)
			out.P95 = &e
		}
	} else {
		e, refused, err := j.ratio(sides[1].runs, of.runs, b.Metric)
		if err != nil {
			out.Reason = err.Error()
			return out
		}
		if refused != "" {
			out.Reason = "the two sides may not be compared: " + refused
			return out
		}
		out.P50 = &e
	}
	out.Verdict = Pass
	for _, q := range []struct {
		name  string
		e     *bench.Estimate
		bound *bench.Bound
	}{{"p50", out.P50, b.P50}, {"p95", out.P95, b.P95}} {
		if q.bound == nil {
			continue
		}
		v, reason, few := Within(*q.e, *q.bound, out.N)
		if rank(v) > rank(out.Verdict) {
			out.Verdict, out.Reason, out.Few = v, q.name+" "+reason, few
		}
	}
	return out
}

// rank orders verdicts: what one of several says of all.
func rank(v bench.BarVerdict) int {
	return map[bench.BarVerdict]int{Pass: 0, NotEnough: 1, Unknown: 2, Fail: 3}[v]
}

func share(values []float64) bench.Estimate {
	k := 0
	for _, v := range values {
		if v == 1 {
			k++
		}
	}
	return stats.Share(k, len(values))
}

// Within judges an estimate of n values by a bound; see Rule. The reason is empty
// for a pass. Too few says how many values it may take: where an interval
// straddles a bound, as many as make one of its width, which falls with the square
// root of their number, narrow enough, if the number itself stays.
func Within(e bench.Estimate, b bench.Bound, n int64) (v bench.BarVerdict, reason string, few *bench.TooFew) {
	if e.Interval == nil {
		if e.Few != nil {
			return NotEnough, fmt.Sprintf("has no interval: %d values, it takes %d", e.Few.Have, e.Few.Need), e.Few
		}
		return Unknown, "has no interval: " + e.Reason, nil
	}
	low, high, err := limits(b)
	if err != nil {
		return Unknown, err.Error(), nil
	}
	i := *e.Interval
	if math.IsNaN(i.Low) || math.IsNaN(i.High) || i.Low > i.High || e.Value == nil {
		return Unknown, "has an interval that is none", nil
	}
	switch {
	case i.High < low:
		return Fail, "is below min " + string(b.Min) + " with its whole interval", nil
	case i.Low > high:
		return Fail, "is above max " + string(b.Max) + " with its whole interval", nil
	case i.Low >= low && i.High <= high:
		return Pass, "", nil
	}
	var straddled []string
	need := int64(0)
	for _, side := range []struct {
		name  string
		text  bench.Amount
		bound float64
	}{{"min", b.Min, low}, {"max", b.Max, high}} {
		if side.bound < i.Low || side.bound > i.High || side.text == "" {
			continue
		}
		straddled = append(straddled, side.name+" "+string(side.text))
		need = max(need, enough(*e.Value, i, side.bound, n))
	}
	reason = "has an interval that straddles " + strings.Join(straddled, " and ")
	if need > n {
		few = &bench.TooFew{Have: n, Need: need}
		reason += fmt.Sprintf(": %d values, it may take %d", n, need)
	}
	return NotEnough, reason, few
}

// mostNeeded is where a number of rollouts stops to say anything.
const mostNeeded = 1_000_000

// enough values to bring the bound out of the interval; 0 where none are.
func enough(value float64, i bench.Interval, bound float64, n int64) int64 {
	half, distance := i.High-value, bound-value
	if bound < value {
		half, distance = value-i.Low, value-bound
	}
	if distance <= 0 {
		return 0
	}
	need := math.Ceil(float64(n) * (half / distance) * (half / distance))
	if !(need < mostNeeded) {
		return 0
	}
	return max(int64(need), n+1)
}

// limits of a bound, in its unit; infinite where it has none.
func limits(b bench.Bound) (low, high float64, err error) {
	low, high = math.Inf(-1), math.Inf(1)
	if b.Min != "" {
		if low, _, err = compile.Amount(b.Min); err != nil {
			return low, high, err
		}
	}
	if b.Max != "" {
		high, _, err = compile.Amount(b.Max)
	}
	return low, high, err
}

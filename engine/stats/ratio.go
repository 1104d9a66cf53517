package stats

import (
	"math"
	"slices"

	"github.com/aclements/go-moremath/mathx"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// ratioTail is what each end of each of the two medians' intervals may miss: half
// of what an end of one interval may, so that both hold together with Confidence
// (Bonferroni), however the two sides hang together.
const ratioTail = (1 - Confidence) / 4

// needRatio values a side have an interval of their median at that level: all of n
// are above it with probability 1/2^n.
var needRatio = int(math.Ceil(-math.Log2(ratioTail)))

// Ratio is the median of b over that of a, of values that are not negative, with
// the interval from the lowest median of b over the highest of a to the highest
// over the lowest. Each side's is the exact interval of its order statistics at
// 97.5% (David and Nagaraja, Order Statistics, 2003, section 7.1), so that the
// ratio's holds at 95% or more for every n that has one: seven a side. It is wider
// than it has to be, and never narrower: a bootstrap's holds less than it says
// where values are few.
//
// Assumed is that the values of a side are independent draws of one distribution:
// rollouts that do not depend on each other, pooled over the runs of a side.
//
// Ratio(b, a) is the reciprocal of Ratio(a, b), its interval included.
func Ratio(a, b []float64) bench.Estimate {
	if len(a) == 0 || len(b) == 0 {
		return few(min(len(a), len(b)), 1)
	}
	if *Median(a).Value == 0 || *Median(b).Value == 0 {
		return bench.Estimate{Reason: "a median is 0"}
	}
	v := *Median(b).Value / *Median(a).Value
	e := bench.Estimate{Value: &v}
	if n := min(len(a), len(b)); n < needRatio {
		e.Few = &bench.TooFew{Have: int64(n), Need: int64(needRatio)}
		return e
	}
	below, above := medianInterval(a), medianInterval(b)
	if !(below.Low > 0 && above.Low > 0) {
		e.Reason = "the interval of a median holds 0"
		return e
	}
	e.Interval = &bench.Interval{Low: above.Low / below.High, High: above.High / below.Low, Confidence: below.Confidence + above.Confidence - 1}
	return e
}

// medianInterval is the narrowest symmetric pair of order statistics of at least
// needRatio values that misses the median with at most ratioTail at each end.
func medianInterval(sample []float64) bench.Interval {
	sorted := slices.Sorted(slices.Values(sample))
	n := len(sorted)
	// fewer than k of n values lie below the median with this probability.
	fewer := func(k int) float64 { return 1 - mathx.BetaInc(0.5, float64(k), float64(n-k+1)) }
	low := 1
	for low < n/2 && fewer(low+1) <= ratioTail {
		low++
	}
	return bench.Interval{Low: sorted[low-1], High: sorted[n-low], Confidence: 1 - 2*fewer(low)}
}

package register

import (
	"math"
	"slices"

	"github.com/aclements/go-moremath/mathx"

	"github.com/drumsbench/drumsbench/engine/stats"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// tail is what each end of an interval may miss.
const tail = (1 - stats.Confidence) / 2

// needP95 values have an interval of their 95th percentile: of fewer all lie below it too often.
var needP95 = int(math.Ceil(math.Log(tail) / math.Log(p95)))

const p95 = 0.95

// percentile95 is the 95th percentile with the exact interval of its order
// statistics (David and Nagaraja, Order Statistics, 2003, section 7.1): how many of
// n values lie below the true percentile is binomial, whatever the distribution.
// For p50 package stats has the same; it gives p95 without one, so it is here.
func percentile95(sample []float64) bench.Estimate {
	e := stats.Percentile(sample, p95)
	n := len(sample)
	if n < needP95 {
		e.Few = &bench.TooFew{Have: int64(n), Need: int64(needP95)}
		return e
	}
	sorted := slices.Sorted(slices.Values(sample))
	// atLeast k of n lie below the percentile with this probability.
	atLeast := func(k int) float64 {
		switch {
		case k <= 0:
			return 1
		case k > n:
			return 0
		}
		return mathx.BetaInc(p95, float64(k), float64(n-k+1))
	}
	low := 1
	for low < n && 1-atLeast(low+1) <= tail {
		low++
	}
	high := n
	for high > low && atLeast(high-1) <= tail {
		high--
	}
	// The percentile is in [low, high) of the order statistics where at least low and less than high lie below it.
	e.Interval = &bench.Interval{Low: sorted[low-1], High: sorted[high-1], Confidence: atLeast(low) - atLeast(high)}
	return e
}

// Package stats turns samples into the numbers that are shown: medians with
// distribution-free intervals, percentiles, shares, and the ratio of two medians.
//
// Always holds: nothing is assumed of a distribution; a sample that is too small
// for a number gives bench.TooFew in its place, never a number that looks like
// one; equal samples give equal numbers, whenever and wherever they are counted;
// no argument is changed.
package stats

import (
	"math"
	"slices"

	"github.com/aclements/go-moremath/mathx"
	moremath "github.com/aclements/go-moremath/stats"
	"golang.org/x/perf/benchmath"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Confidence that every interval has at least.
const Confidence = 0.95

// needMedian is the smallest sample with an interval of its median: of n values
// all are on the same side of the true median with probability 2/2^n.
var needMedian = func() int {
	n := 1
	for r := moremath.QuantileCI(n, 0.5, Confidence); r.LoOrder < 1 || r.HiOrder > n; r = moremath.QuantileCI(n, 0.5, Confidence) {
		n++
	}
	return n
}()

// Summarize a sample: n, smallest and largest value, median with its interval,
// 95th percentile.
func Summarize(sample []float64) bench.Summary {
	s := bench.Summary{N: int64(len(sample))}
	if len(sample) == 0 {
		return s
	}
	low, high := moremath.Bounds(sample)
	median, p95 := Median(sample), Percentile(sample, 0.95)
	s.Min, s.Max, s.P50, s.P95 = &low, &high, &median, &p95
	return s
}

// Median with its interval, which the order statistics give (benchmath,
// AssumeNothing). Below six values there is no such interval.
func Median(sample []float64) bench.Estimate {
	if len(sample) == 0 {
		return few(0, 1)
	}
	r := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(sample), &benchmath.DefaultThresholds), Confidence)
	e := bench.Estimate{Value: &r.Center}
	if math.IsInf(r.Lo, 0) || math.IsInf(r.Hi, 0) {
		e.Few = &bench.TooFew{Have: int64(len(sample)), Need: int64(needMedian)}
		return e
	}
	e.Interval = &bench.Interval{Low: r.Lo, High: r.Hi, Confidence: r.Confidence}
	return e
}

// Percentile q, 0 < q < 1, by Hyndman and Fan's eighth definition. It takes as
// many values as leave at least one beyond it: twenty for the 95th.
func Percentile(sample []float64, q float64) bench.Estimate {
	need := int(math.Ceil(1/min(q, 1-q) - 1e-9)) // 1-0.95 is a little more than 0.05
	if len(sample) < need {
		return few(len(sample), need)
	}
	v := moremath.Sample{Xs: sample}.Quantile(q)
	return bench.Estimate{Value: &v}
}

// Share is how many of n were k, with the exact interval of Clopper and Pearson
// (Biometrika 26, 1934).
func Share(k, n int) bench.Estimate {
	if n == 0 {
		return few(0, 1)
	}
	v := float64(k) / float64(n)
	i := bench.Interval{Low: 0, High: 1, Confidence: Confidence}
	const tail = (1 - Confidence) / 2
	if k > 0 {
		i.Low = moremath.InvCDF(beta{float64(k), float64(n - k + 1)})(tail)
	}
	if k < n {
		i.High = moremath.InvCDF(beta{float64(k + 1), float64(n - k)})(1 - tail)
	}
	return bench.Estimate{Value: &v, Interval: &i}
}

// beta is the beta distribution, as far as its quantiles need it.
type beta struct{ a, b float64 }

func (d beta) CDF(x float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	}
	return mathx.BetaInc(x, d.a, d.b)
}

func (beta) Bounds() (low, high float64) { return 0, 1 }

func few(have, need int) bench.Estimate {
	return bench.Estimate{Few: &bench.TooFew{Have: int64(have), Need: int64(need)}}
}

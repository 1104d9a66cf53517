package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// NeedLevels is how many different x a slope takes: two are always on a line, and
// say nothing of whether there is one.
const NeedLevels = 3

// Point is a reading y at x.
type Point struct{ X, Y float64 }

// Slope is the mean of the trials' least-squares slopes, with the interval of a
// bootstrap over trials: the studentized one (Hall, Annals of Statistics 16, 1988;
// Efron and Tibshirani, An Introduction to the Bootstrap, chapter 12.5), since the
// plain percentiles of few trials hold much less than they say. Where every
// resample can be counted it is exact; above that it is drawn with a fixed seed.
//
// Every trial has to have the same x. A trial is one draw: what drifts within it
// does not make it two.
func Slope(trials [][]Point) bench.Slope {
	out := bench.Slope{Trials: []float64{}}
	for i, t := range trials {
		x, y := []float64{}, []float64{}
		for _, p := range t {
			x, y = append(x, p.X), append(y, p.Y)
		}
		levels := slices.Compact(slices.Sorted(slices.Values(x)))
		switch {
		case i == 0:
			out.Levels = int64(len(levels))
		case int64(len(levels)) != out.Levels:
			return bench.Slope{Trials: []float64{}, Levels: min(out.Levels, int64(len(levels))), Reason: "the trials do not have the same levels"}
		}
		if len(levels) < NeedLevels {
			return bench.Slope{Trials: []float64{}, Levels: int64(len(levels)), Few: &bench.TooFew{Have: int64(len(levels)), Need: NeedLevels},
				Reason: fmt.Sprintf("too few levels to say: %d, it takes %d", len(levels), NeedLevels)}
		}
		_, slope := stat.LinearRegression(x, y, nil, false)
		out.Trials = append(out.Trials, slope)
	}
	n := len(out.Trials)
	if n == 0 {
		out.Few, out.Reason = &bench.TooFew{Have: 0, Need: needTrials}, fmt.Sprintf("too few trials to say: 0, it takes %d", needTrials)
		return out
	}
	mean := stat.Mean(out.Trials, nil)
	out.Value = &mean
	if n < needTrials {
		out.Few, out.Reason = &bench.TooFew{Have: int64(n), Need: needTrials}, fmt.Sprintf("too few trials for an interval: %d, it takes %d", n, needTrials)
		return out
	}
	low, high := meanInterval(out.Trials)
	confidence := Confidence
	out.Low, out.High, out.Confidence = &low, &high, &confidence
	return out
}

// needTrials is the smallest number with an interval: of n trials a resample is n
// times the same one in n of n^n cases, which says nothing of the spread. Of three
// that is every ninth, more than an interval may miss; of four every 64th.
const needTrials = 4

const (
	// exactTrials^exactTrials resamples are all counted.
	exactTrials = 6
	resamples   = 20000
)

// meanInterval of the mean of at least needTrials values, by the studentized bootstrap.
func meanInterval(values []float64) (low, high float64) {
	n := len(values)
	mean, se := stat.Mean(values, nil), stat.StdErr(stat.StdDev(values, nil), float64(n))
	if se == 0 {
		return mean, mean
	}
	var ts []float64
	sample := make([]float64, n)
	add := func() {
		m := stat.Mean(sample, nil)
		s := stat.StdErr(stat.StdDev(sample, nil), float64(n))
		t := (m - mean) / s
		if s <= se*1e-9 { // the same value again and again: it tells no spread, and so bounds nothing
			t = math.Copysign(math.Inf(1), m-mean)
		}
		ts = append(ts, t)
	}
	if n <= exactTrials {
		index := make([]int, n)
		for {
			for i, k := range index {
				sample[i] = values[k]
			}
			add()
			i := 0
			for ; i < n; i++ {
				if index[i]++; index[i] < n {
					break
				}
				index[i] = 0
			}
			if i == n {
				break
			}
		}
	} else {
		random := rand.New(rand.NewPCG(1, 2)) // equal samples give equal numbers
		for range resamples {
			for i := range sample {
				sample[i] = values[random.IntN(n)]
			}
			add()
		}
	}
	slices.Sort(ts)
	const tail = (1 - Confidence) / 2
	// The outermost of a tail's share: never narrower than it says.
	k := int(math.Floor(tail * float64(len(ts))))
	return mean - ts[len(ts)-1-k]*se, mean - ts[k]*se
}

// PoissonUpper is the largest mean of a Poisson count that gives k events or fewer
// with a probability of 5% (Garwood, Biometrika 28, 1936): 3 where there was none.
func PoissonUpper(k int64) float64 {
	return distuv.ChiSquared{K: float64(2 * (k + 1))}.Quantile(Confidence) / 2
}

package stats

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// resamples of each side for the interval of a ratio.
const resamples = 9999

// Ratio is the median of b over that of a, with the percentile interval of the
// bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
// chapter 13): each side is drawn anew from itself, with replacement, resamples
// times. It takes as many values on each side as an interval of its median takes.
//
// The draws are decided by the values, so that a ratio can be counted again, and
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
	if n := min(len(a), len(b)); n < needMedian {
		e.Few = &bench.TooFew{Have: int64(n), Need: int64(needMedian)}
		return e
	}
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	order := cmp.Or(cmp.Compare(seed(a), seed(b)), slices.Compare(a, b))
	swapped := order > 0
	if swapped {
		a, b = b, a
	}
	below := medians(a, rand.New(rand.NewPCG(seed(a), 1)))
	above := medians(b, rand.New(rand.NewPCG(seed(b), 2)))
	ratios := make([]float64, 0, 2*resamples)
	for i := range below {
		ratios = append(ratios, above[i]/below[i])
		if order == 0 { // neither is the first
			ratios = append(ratios, below[i]/above[i])
		}
	}
	if swapped {
		for i, r := range ratios {
			ratios[i] = 1 / r
		}
	}
	slices.Sort(ratios)
	// As many are left out below as above: order statistics of a reciprocal are those from the other end.
	out := int(math.Floor((1 - Confidence) / 2 * float64(len(ratios)+1)))
	low, high := ratios[out-1], ratios[len(ratios)-out]
	if math.IsNaN(low) || math.IsInf(high, 0) {
		e.Reason = "a median of the bootstrap is 0"
		return e
	}
	e.Interval = &bench.Interval{Low: low, High: high, Confidence: Confidence}
	return e
}

// medians of resamples of a sorted sample.
func medians(sorted []float64, random *rand.Rand) []float64 {
	n := len(sorted)
	times := make([]int, n) // how often each value was drawn
	at := func(rank int) float64 {
		for i, k := range times {
			if rank -= k; rank < 0 {
				return sorted[i]
			}
		}
		return sorted[n-1]
	}
	out := make([]float64, resamples)
	for r := range out {
		clear(times)
		for range n {
			times[random.IntN(n)]++
		}
		out[r] = (at((n-1)/2) + at(n/2)) / 2
	}
	return out
}

// seed of a sorted sample.
func seed(sorted []float64) uint64 {
	h := fnv.New64a()
	var word [8]byte
	for _, v := range sorted {
		binary.LittleEndian.PutUint64(word[:], math.Float64bits(v))
		h.Write(word[:])
	}
	return h.Sum64()
}

package stats

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// NeedTrend is how many points a trend takes: below ten the normal approximation of
// Kendall's statistic, which its interval stands on, does not hold.
const NeedTrend = 10

// Trend of one series: the median of the slopes between all pairs of points, with the
// interval of Kendall's rank statistic (Sen, Journal of the American Statistical
// Association 63, 1968). No distribution is assumed, and a few wild points move it
// little. The points have to be independent of each other: a series that swings slowly
// has a wider interval than this one. Trials are none, levels are the different x.
func Trend(points []Point) bench.Slope {
	n := len(points)
	out := bench.Slope{Trials: []float64{}}
	var slopes []float64
	seen := map[float64]bool{}
	for i, a := range points {
		seen[a.X] = true
		for _, b := range points[:i] {
			if a.X != b.X {
				slopes = append(slopes, (a.Y-b.Y)/(a.X-b.X))
			}
		}
	}
	out.Levels = int64(len(seen))
	if n < NeedTrend || len(seen) < n {
		out.Few = &bench.TooFew{Have: out.Levels, Need: NeedTrend}
		out.Reason = fmt.Sprintf("too few points to say: %d with an x of their own, it takes %d, and no two at one x", len(seen), NeedTrend)
		return out
	}
	slices.Sort(slopes)
	count := len(slopes)
	value := (slopes[(count-1)/2] + slopes[count/2]) / 2
	z := distuv.UnitNormal.Quantile(1 - (1-Confidence)/2)
	c := z * math.Sqrt(float64(n)*float64(n-1)*float64(2*n+5)/18)
	// Outwards, so that the interval is never narrower than it says.
	first := max(0, int(math.Floor((float64(count)-c)/2))-1)
	last := min(count-1, int(math.Ceil((float64(count)+c)/2)))
	low, high, confidence := slopes[first], slopes[last], Confidence
	out.Value, out.Low, out.High, out.Confidence = &value, &low, &high, &confidence
	return out
}

package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The line through (1, 12), (2, 21), (4, 39.5): x mean 7/3, y mean 72.5/3,
// sum (x-xm)(y-ym) = 42.833333, sum (x-xm)^2 = 4.666667, slope 9.178571 (by hand, and
// by testdata/slope.py, a second implementation, which also gave the intervals).
func TestSlope(t *testing.T) {
	line := func(a, b, c float64) []Point { return []Point{{1, a}, {2, b}, {4, c}} }
	s := Slope([][]Point{line(12, 21, 39.5)})
	if s.Value == nil || math.Abs(*s.Value-9.178571428571429) > 1e-12 || s.Low != nil || s.Few == nil || s.Few.Need != 4 || s.Levels != 3 {
		t.Errorf("one trial: %+v", s)
	}
	// Slopes 10, 11, 12 and 14: mean 11.75.
	s = Slope([][]Point{line(10, 20, 40), line(11, 22, 44), line(12, 24, 48), line(14, 28, 56)})
	if s.Value == nil || math.Abs(*s.Value-11.75) > 1e-9 || s.Low == nil || *s.Low >= 11.75 || *s.High <= 11.75 || s.Few != nil {
		t.Errorf("four trials: %+v", s)
	}
	for _, c := range []struct {
		values    []float64
		low, high float64
	}{
		{[]float64{10, 11, 12, 14}, 9.90122506778137, 15.44754986443726},
		{[]float64{281, 279.9, 282.2, 280.4}, 279.83774946523266, 283.36440128344157},
		{[]float64{3.1, 2.7, 3.3, 2.9, 3.6}, 2.7011058123755696, 3.663359917550052},
	} {
		if low, high := meanInterval(c.values); math.Abs(low-c.low) > 1e-9 || math.Abs(high-c.high) > 1e-9 {
			t.Errorf("%v: %v to %v, want %v to %v", c.values, low, high, c.low, c.high)
		}
	}
	same := line(5, 9, 17)
	if s = Slope([][]Point{same, same, same, same}); s.Low == nil || math.Abs(*s.Low-4) > 1e-9 || math.Abs(*s.High-4) > 1e-9 {
		t.Errorf("trials that are all alike: %+v", s)
	}
	for name, c := range map[string]struct {
		trials [][]Point
		want   bench.TooFew
	}{"none": {nil, bench.TooFew{Have: 0, Need: 4}}, "two levels": {[][]Point{{{1, 1}, {2, 2}, {2, 3}}}, bench.TooFew{Have: 2, Need: 3}}} {
		if s := Slope(c.trials); s.Few == nil || *s.Few != c.want || s.Value != nil || s.Reason == "" {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := Slope([][]Point{line(1, 2, 3), {{1, 1}, {2, 2}}}); s.Value != nil || s.Reason == "" {
		t.Errorf("trials of other levels: %+v", s)
	}
}

// Garwood's limits as tables have them: 2.9957, 4.7439, 6.2958 for 0, 1 and 2; 18.2075 for 11 (Ulm, American Journal of Epidemiology 131, 1990, one-sided).
func TestPoissonUpper(t *testing.T) {
	for k, want := range map[int64]float64{0: 2.9957, 1: 4.7439, 2: 6.2958, 11: 18.2075} {
		if have := PoissonUpper(k); math.Abs(have-want) > 1e-4 {
			t.Errorf("%d: %v, want %v", k, have, want)
		}
	}
}

// The interval of the mean holds the true mean about as often as it says, on
// distributions whose mean is known, with as few trials as it is given for.
func TestSlopeCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for name, d := range map[string]struct {
		draw func() float64
		mean float64
	}{
		"normal":  {func() float64 { return 10 + random.NormFloat64() }, 10},
		"uniform": {random.Float64, 0.5},
	} {
		for _, n := range []int{4, 5} {
			const trials = 500
			held, finite := 0, 0
			for range trials {
				v := make([]float64, n)
				for i := range v {
					v[i] = d.draw()
				}
				low, high := meanInterval(v)
				if low <= d.mean && d.mean <= high {
					held++
				}
				if !math.IsInf(high-low, 0) {
					finite++
				}
			}
			// The plain percentiles of so few hold three quarters; this one is within three standard errors of what it says.
			if share := float64(held) / trials; share < Confidence-0.05 {
				t.Errorf("%s of %d: the interval held the mean in %.3f of %d", name, n, share, trials)
			}
			if finite < trials*98/100 {
				t.Errorf("%s of %d: %d of %d intervals are no bound", name, n, trials-finite, trials)
			}
		}
	}
}

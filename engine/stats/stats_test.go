package stats

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/drumsbench/drumsbench/schemas/bench"
)

// golden was worked out by testdata/golden.py, a second implementation in another language.
type golden struct {
	Samples map[string]struct {
		Values   []float64
		Median   float64
		Interval []float64 // low, high, confidence
		P95      *float64
	}
	Ratios []struct {
		A, B  string
		Ratio []float64 // value, low, high, confidence
	}
	Shares []struct {
		K, N  int
		Share []float64 // value, low, high
	}
}

func readGolden(t *testing.T) (g golden) {
	t.Helper()
	data, err := os.ReadFile("testdata/golden.json")
	if err == nil {
		err = json.Unmarshal(data, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func near(a, b, relative float64) bool { return math.Abs(a-b) <= relative*math.Max(1e-12, math.Abs(b)) }

func TestAgainstASecondImplementation(t *testing.T) {
	g := readGolden(t)
	if len(g.Samples) == 0 || len(g.Ratios) == 0 || len(g.Shares) == 0 {
		t.Fatal("golden data is empty")
	}
	for name, s := range g.Samples {
		before := slices.Clone(s.Values)
		have := Summarize(s.Values)
		if !slices.Equal(before, s.Values) {
			t.Errorf("%s: the sample was changed", name)
		}
		if have.N != int64(len(s.Values)) || *have.Min != slices.Min(s.Values) || *have.Max != slices.Max(s.Values) {
			t.Errorf("%s: %+v", name, have)
		}
		if !near(*have.P50.Value, s.Median, 1e-12) {
			t.Errorf("%s: median %v, want %v", name, *have.P50.Value, s.Median)
		}
		switch i := have.P50.Interval; {
		case (i == nil) != (s.Interval == nil):
			t.Errorf("%s: interval %+v, want %v", name, i, s.Interval)
		case i == nil:
			if f := have.P50.Few; f == nil || f.Have != int64(len(s.Values)) || f.Need != 6 {
				t.Errorf("%s: too few: %+v", name, f)
			}
		default:
			// Above thirty values benchmath counts the confidence by a normal approximation.
			if i.Confidence < Confidence || i.Low != s.Interval[0] || i.High != s.Interval[1] || !near(i.Confidence, s.Interval[2], 0.003) {
				t.Errorf("%s: interval %+v, want %v", name, i, s.Interval)
			}
		}
		switch {
		case (have.P95.Value == nil) != (s.P95 == nil):
			t.Errorf("%s: p95 %+v, want %v", name, have.P95, s.P95)
		case s.P95 == nil:
			if have.P95.Few == nil || have.P95.Few.Need != 20 {
				t.Errorf("%s: p95 %+v", name, have.P95)
			}
		case !near(*have.P95.Value, *s.P95, 1e-12):
			t.Errorf("%s: p95 %v, want %v", name, *have.P95.Value, *s.P95)
		}
	}
	for _, r := range g.Ratios {
		have := Ratio(g.Samples[r.A].Values, g.Samples[r.B].Values)
		if !near(*have.Value, r.Ratio[0], 1e-12) {
			t.Errorf("%s over %s: %v, want %v", r.B, r.A, *have.Value, r.Ratio[0])
		}
		if i := have.Interval; i == nil || !near(i.Low, r.Ratio[1], 1e-12) || !near(i.High, r.Ratio[2], 1e-12) || !near(i.Confidence, r.Ratio[3], 1e-9) || i.Confidence < Confidence {
			t.Errorf("%s over %s: %+v, want %v", r.B, r.A, have.Interval, r.Ratio[1:])
		}
	}
	for _, s := range g.Shares {
		have := Share(s.K, s.N)
		if !near(*have.Value, s.Share[0], 1e-12) || math.Abs(have.Interval.Low-s.Share[1]) > 1e-6 || math.Abs(have.Interval.High-s.Share[2]) > 1e-6 {
			t.Errorf("%d of %d: %v %+v, want %v", s.K, s.N, *have.Value, have.Interval, s.Share)
		}
	}
}

// The intervals hold the true value as often as they say, on distributions whose median is known.
func TestCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, d := range map[string]struct {
		draw   func() float64
		median float64
	}{
		"exponential": {random.ExpFloat64, math.Ln2},
		"normal":      {func() float64 { return 10 + random.NormFloat64() }, 10},
		"uniform":     {random.Float64, 0.5},
	} {
		const trials = 2000
		for _, size := range []struct{ a, b int }{{7, 7}, {7, 30}, {12, 12}, {15, 15}, {40, 40}} {
			held, ratios := 0, 0
			for range trials {
				a, b := make([]float64, size.a), make([]float64, size.b)
				for k := range a {
					a[k] = d.draw()
				}
				for k := range b {
					b[k] = 3 * d.draw()
				}
				if in := Median(a).Interval; in.Low <= d.median && d.median <= in.High {
					held++
				}
				if in := Ratio(a, b).Interval; in.Low <= 3 && 3 <= in.High {
					ratios++
				}
			}
			if share := float64(held) / trials; share < Confidence-0.015 {
				t.Errorf("%s: the median's interval held it in %.3f of %d trials", name, share, trials)
			}
			if share := float64(ratios) / trials; share < Confidence {
				t.Errorf("%s of %d and %d: the ratio's interval held it in %.3f of %d trials", name, size.a, size.b, share, trials)
			}
		}
	}
}

func TestTooFew(t *testing.T) {
	for _, c := range []struct {
		name string
		have bench.Estimate
		want *bench.TooFew
	}{
		{"median of none", Median(nil), &bench.TooFew{Have: 0, Need: 1}},
		{"interval of five", Median([]float64{1, 2, 3, 4, 5}), &bench.TooFew{Have: 5, Need: 6}},
		{"interval of six", Median([]float64{1, 2, 3, 4, 5, 6}), nil},
		{"p95 of nineteen", Percentile(make([]float64, 19), 0.95), &bench.TooFew{Have: 19, Need: 20}},
		{"p95 of twenty", Percentile(make([]float64, 20), 0.95), nil},
		{"p5 of nineteen", Percentile(make([]float64, 19), 0.05), &bench.TooFew{Have: 19, Need: 20}},
		{"ratio with none", Ratio(nil, []float64{1}), &bench.TooFew{Have: 0, Need: 1}},
		{"ratio with six", Ratio([]float64{1, 2, 3, 4, 5, 6}, []float64{1, 2, 3, 4, 5, 6, 7}), &bench.TooFew{Have: 6, Need: 7}},
		{"ratio with seven", Ratio([]float64{1, 2, 3, 4, 5, 6, 7}, []float64{1, 2, 3, 4, 5, 6, 7}), nil},
		{"share of none", Share(0, 0), &bench.TooFew{Have: 0, Need: 1}},
	} {
		if diff := cmp.Diff(c.want, c.have.Few); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	for name, e := range map[string]bench.Estimate{
		"zero below": Ratio(make([]float64, 10), []float64{1, 2, 3, 4, 5, 6}), "zero above": Ratio([]float64{1}, []float64{0}),
		// The median is no 0, but its interval has it.
		"zero in an interval":           Ratio([]float64{0, 0, 0, 1, 1, 1, 1}, []float64{1, 2, 3, 4, 5, 6, 7}),
		"zero in an interval, reversed": Ratio([]float64{1, 2, 3, 4, 5, 6, 7}, []float64{0, 0, 0, 1, 1, 1, 1}),
	} {
		if e.Reason == "" || e.Interval != nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// The ratio the other way round is the reciprocal, and a sample against itself is around 1.
func TestRatioIsSymmetric(t *testing.T) {
	sample := rapid.SliceOfN(rapid.Float64Range(1, 1e9), 1, 30)
	rapid.Check(t, func(t *rapid.T) {
		a, b := sample.Draw(t, "a"), sample.Draw(t, "b")
		if rapid.Bool().Draw(t, "same") {
			b = slices.Clone(a)
		}
		x, y := Ratio(a, b), Ratio(b, a)
		if !near(*x.Value, 1 / *y.Value, 1e-12) || (x.Interval == nil) != (y.Interval == nil) {
			t.Fatalf("%+v and %+v", x, y)
		}
		if x.Interval == nil {
			return
		}
		if !near(x.Interval.Low, 1/y.Interval.High, 1e-9) || !near(x.Interval.High, 1/y.Interval.Low, 1e-9) {
			t.Fatalf("%+v and %+v", x.Interval, y.Interval)
		}
		if x.Interval.Low > x.Interval.High {
			t.Fatalf("%+v", x.Interval)
		}
		if slices.Equal(a, b) && (x.Interval.Low > 1 || x.Interval.High < 1) {
			t.Fatalf("a sample against itself: %+v", x.Interval)
		}
	})
}

// The same sample in another order has the same numbers.
func TestOrderMeansNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.Float64Range(1, 1e9), 1, 30).Draw(t, "a")
		b := rapid.Permutation(a).Draw(t, "b")
		if diff := cmp.Diff(Summarize(a), Summarize(b)); diff != "" {
			t.Fatal(diff)
		}
		c := []float64{1, 5, 2, 8, 3, 9, 4}
		if diff := cmp.Diff(Ratio(a, c), Ratio(b, c)); diff != "" {
			t.Fatal(diff)
		}
	})
}

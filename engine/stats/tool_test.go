package stats

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"
)

// tool is what SciPy and NumPy gave for the same samples: testdata/tool.py.
type tool struct {
	Tool    string
	Samples map[string]struct {
		Median   float64
		Interval []float64 // low, high, confidence
		P95      *float64
	}
	Ratios []struct {
		A, B  string
		Ratio []float64 // value, low, high
	}
	Shares []struct {
		K, N  int
		Share []float64 // value, low, high
	}
	Poisson map[string]float64
	Slopes  []struct {
		X, Y  []float64
		Slope float64
	}
	Trials []struct {
		Values   []float64
		Interval []float64
	}
}

// Every statistic against an independent tool's answers.
func TestAgainstATool(t *testing.T) {
	var want tool
	data, err := os.ReadFile("testdata/tool.json")
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	samples := readGolden(t).Samples
	if len(want.Samples) != len(samples) || len(want.Ratios) == 0 || len(want.Shares) == 0 || len(want.Poisson) == 0 || len(want.Slopes) == 0 || len(want.Trials) == 0 {
		t.Fatalf("the answers of %s are not whole", want.Tool)
	}
	for name, w := range want.Samples {
		have := Summarize(samples[name].Values)
		if !near(*have.P50.Value, w.Median, 1e-12) {
			t.Errorf("%s: median %v, want %v", name, *have.P50.Value, w.Median)
		}
		if i := have.P50.Interval; (i == nil) != (w.Interval == nil) || i != nil && (i.Low != w.Interval[0] || i.High != w.Interval[1]) {
			t.Errorf("%s: interval %+v, want %v", name, i, w.Interval)
		}
		if p := have.P95.Value; (p == nil) != (w.P95 == nil) || p != nil && !near(*p, *w.P95, 1e-12) {
			t.Errorf("%s: p95 %+v, want %v", name, have.P95, w.P95)
		}
	}
	for _, w := range want.Ratios {
		have := Ratio(samples[w.A].Values, samples[w.B].Values)
		if i := have.Interval; !near(*have.Value, w.Ratio[0], 1e-12) || i == nil || !near(i.Low, w.Ratio[1], 1e-12) || !near(i.High, w.Ratio[2], 1e-12) {
			t.Errorf("%s over %s: %+v, want %v", w.B, w.A, have, w.Ratio)
		}
	}
	for _, w := range want.Shares {
		have := Share(w.K, w.N)
		if !near(*have.Value, w.Share[0], 1e-12) || math.Abs(have.Interval.Low-w.Share[1]) > 1e-6 || math.Abs(have.Interval.High-w.Share[2]) > 1e-6 {
			t.Errorf("%d of %d: %v %+v, want %v", w.K, w.N, *have.Value, have.Interval, w.Share)
		}
	}
	for k, w := range want.Poisson {
		n, err := strconv.ParseInt(k, 10, 64)
		if have := PoissonUpper(n); err != nil || !near(have, w, 1e-9) {
			t.Errorf("%s events: %v, want %v", k, have, w)
		}
	}
	for _, w := range want.Slopes {
		var line []Point
		for i, x := range w.X {
			line = append(line, Point{x, w.Y[i]})
		}
		if have := Slope([][]Point{line}); have.Value == nil || !near(*have.Value, w.Slope, 1e-12) {
			t.Errorf("%v: slope %+v, want %v", w.Y, have, w.Slope)
		}
	}
	for _, w := range want.Trials {
		if low, high := meanInterval(w.Values); !near(low, w.Interval[0], 1e-9) || !near(high, w.Interval[1], 1e-9) {
			t.Errorf("%v: %v to %v, want %v", w.Values, low, high, w.Interval)
		}
	}
}

package stats

import (
	"math/rand/v2"
	"testing"
)

func TestTrend(t *testing.T) {
	line := func(n int, slope, noise float64, seed uint64) []Point {
		random := rand.New(rand.NewPCG(seed, 1))
		points := make([]Point, n)
		for i := range points {
			points[i] = Point{float64(i), 5 + slope*float64(i) + noise*random.NormFloat64()}
		}
		return points
	}
	s := Trend(line(40, 0.25, 0, 1))
	if s.Value == nil || *s.Value != 0.25 || *s.Low != 0.25 || *s.High != 0.25 || s.Levels != 40 {
		t.Errorf("a straight line: %+v", s)
	}
	wild := line(40, 0.25, 0, 1)
	wild[3].Y, wild[30].Y = 900, -900
	if s := Trend(wild); *s.Value < 0.24 || *s.Value > 0.26 {
		t.Errorf("two wild points move it to %v", *s.Value)
	}
	// The interval holds the true slope about as often as it says; the seeds are fixed.
	held := 0
	for seed := range uint64(400) {
		if s := Trend(line(30, 0.1, 1, seed)); *s.Low <= 0.1 && 0.1 <= *s.High {
			held++
		}
	}
	if held < 376 {
		t.Errorf("the interval held %d of 400 times", held)
	}
	for _, few := range [][]Point{nil, line(9, 1, 0, 1), append(line(9, 1, 0, 1), Point{8, 3})} {
		if s := Trend(few); s.Value != nil || s.Few == nil || s.Reason == "" {
			t.Errorf("%d points: %+v", len(few), s)
		}
	}
}

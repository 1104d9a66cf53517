package gate

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A restored screen that differs outside of what moves fails; one that differs only
// there passes, or waits for the person that the manifest asks. What cannot be seen
// or compared is unknown.
func TestJudgeScreen(t *testing.T) {
	picture := func(width int, lit ...image.Rectangle) engine.Reading[[]byte] {
		img := image.NewRGBA(image.Rect(0, 0, width, 100))
		for y := range 100 {
			for x := range width {
				img.Set(x, y, color.RGBA{uint8(x), uint8(y), 50, 255})
			}
		}
		for _, r := range lit {
			for y := r.Min.Y; y < r.Max.Y; y++ {
				for x := r.Min.X; x < r.Max.X; x++ {
					img.Set(x, y, color.White)
				}
			}
		}
		var out bytes.Buffer
		if err := png.Encode(&out, img); err != nil {
			t.Fatal(err)
		}
		return engine.Known(out.Bytes(), "screenshot", engine.ViewGuest)
	}
	clock := image.Rect(50, 0, 70, 10)
	policy := bench.ScreenPolicy{Differ: 0.001, Moving: []bench.Region{{X: 50, Y: 0, Width: 20, Height: 10, Why: "a clock"}}}
	whole := bench.ScreenPolicy{Moving: []bench.Region{{X: 0, Y: 0, Width: 100, Height: 60, Why: "all that matters"}}}
	ask := &bench.ReviewPolicy{Question: "Is it as it was?", Screens: "first"}
	none := engine.Unknown[[]byte]("the guest has no picture of its screen", engine.ViewGuest)
	for _, c := range []struct {
		name          string
		policy        bench.ScreenPolicy
		ask           *bench.ReviewPolicy
		before, after engine.Reading[[]byte]
		want          bench.Verdict
		evidence      int
	}{
		{"equal", policy, nil, picture(100), picture(100), engine.Pass, 2},
		{"the clock moves", policy, nil, picture(100), picture(100, clock), engine.Pass, 2},
		{"a person is asked", policy, ask, picture(100), picture(100, clock), engine.Review, 2},
		{"a window is gone", policy, ask, picture(100, image.Rect(10, 20, 60, 70)), picture(100), engine.Fail, 2},
		{"as much as may", policy, nil, picture(100), picture(100, image.Rect(0, 50, 9, 51)), engine.Pass, 2},
		{"a little more", policy, nil, picture(100), picture(100, image.Rect(0, 50, 10, 51)), engine.Fail, 2},
		{"another size", policy, nil, picture(100), picture(120), engine.Fail, 2},
		{"nothing is left to compare", whole, nil, picture(100), picture(100), engine.VerdictUnknown, 2},
		{"no picture now", policy, ask, picture(100), none, engine.VerdictUnknown, 0},
		{"no picture then", policy, nil, none, picture(100), engine.VerdictUnknown, 0},
		{"no picture at all", policy, nil, picture(100), engine.Known([]byte("black"), "screenshot", engine.ViewGuest), engine.VerdictUnknown, 2},
	} {
		j := JudgeScreen(c.policy, c.ask, c.before, c.after)
		if j.Verdict() != c.want || len(j.Evidence) != c.evidence {
			t.Errorf("%s: %s with %d pictures, want %s with %d: %+v", c.name, j.Verdict(), len(j.Evidence), c.want, c.evidence, j.Findings)
		}
	}
}

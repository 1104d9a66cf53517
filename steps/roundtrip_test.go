package steps

import (
	"image"
	"image/color"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

var (
	termRect = image.Rect(10, 10, 310, 160)
	menuRect = image.Rect(20, 20, 60, 60)
)

// lively is a desk with a window that shows something; more is drawn over it.
func lively(t *testing.T, more func(x, y int) color.Color) []byte {
	return encoded(t, func(x, y int) color.Color {
		if c := more(x, y); c != nil {
			return c
		}
		return color.RGBA{uint8(x * 5), uint8(y * 7), 100, 255}
	})
}

func nothing(int, int) color.Color { return nil }

func filled(r image.Rectangle, c color.Color) func(x, y int) color.Color {
	return func(x, y int) color.Color {
		if (image.Point{X: x, Y: y}).In(r) {
			return c
		}
		return nil
	}
}

func roundTrip() *bench.RoundTrip {
	word := func(w string) []bench.Command { return []bench.Command{{Exec: []string{w}, Timeout: "5s"}} }
	return &bench.RoundTrip{Act: word("press"), Undo: word("release"), Least: 0.5, Elsewhere: 0.001, Region: bench.Region{X: 20, Y: 20, Width: 40, Height: 40, Why: "a menu"}}
}

func termFacts() *guest.Screen {
	return &guest.Screen{Width: 320, Height: 200, Manager: "m", Work: proto.Rect{Width: 320, Height: 200}, Windows: []guest.Window{{
		Instance: "xterm", Class: "XTerm", Rect: proto.Rect{X: termRect.Min.X, Y: termRect.Min.Y, Width: termRect.Dx(), Height: termRect.Dy()}}}}
}

// None of these passes readiness: each of them passed some weaker rule.
func TestNegativeControls(t *testing.T) {
	desk := lively(t, nothing)
	cursor := encoded(t, func(x, y int) color.Color { // 70 colours, in the soft edge of a cursor
		if i := x - 160 + 14*(y-100); x >= 160 && x < 174 && y >= 100 && i < 133 {
			v := uint8(min(17+3*i, 17+3*68))
			return color.RGBA{v, v, v, 255}
		}
		return color.Black
	})
	for _, c := range []struct {
		name    string
		picture []byte
		want    string
	}{
		{"black", encoded(t, func(x, y int) color.Color { return color.Black }), "lit: the document region is dark"},
		{"black with a cursor of 70 colours", cursor, "lit: the document region is dark"},
		{"uniform wallpaper", encoded(t, func(x, y int) color.Color { return color.RGBA{40, 90, 160, 255} }), "dominant: one colour is nearly all of the screen"},
		{"window without content", lively(t, filled(termRect, color.White)), "content XTerm: is a window without content"},
		{"frozen frame", desk, "the screen did not change as predicted: deadline exceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rule := bench.Readiness{Screen: true, Windows: []bench.Window{{Class: "XTerm"}}, Input: roundTrip()}
			_, receipt, _ := awaitAnswer(t, rule, nil, moment{termFacts(), c.picture})
			if receipt.Verdict == engine.Pass || receipt.Error == nil || !strings.Contains(receipt.Error.Text, c.want) {
				t.Errorf("%s: %+v, want %q", receipt.Verdict, receipt.Error, c.want)
			}
		})
	}
}

func TestRoundTrip(t *testing.T) {
	desk := lively(t, nothing)
	menu := lively(t, filled(menuRect, color.White))
	all := lively(t, filled(image.Rect(0, 0, 320, 200), color.RGBA{9, 9, 9, 255}))
	for _, c := range []struct {
		name    string
		answers map[string][]byte
		want    string
		kept    evidence
	}{
		{"changes and is undone", map[string][]byte{"press": menu, "release": desk}, "", evidence{"screen.png": desk, "screen-input.png": menu}},
		{"stays", map[string][]byte{"press": menu}, "the screen is not as it was before the input", evidence{"screen.png": desk, "screen-input.png": menu}},
		{"changes elsewhere", map[string][]byte{"press": all, "release": desk}, "the screen did not change as predicted", evidence{"screen.png": desk, "screen-input.png": all}},
		{"no picture any more", map[string][]byte{"press": nil}, "the guest has no picture of its screen", evidence{"screen.png": desk, "screen-input.png": desk}},
		{"the input cannot be sent", map[string][]byte{"press": menu, "fail": nil}, "exited with 1, not 0", evidence{"screen.png": desk, "screen-input.png": desk}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rule := bench.Readiness{Screen: true, Windows: []bench.Window{{Class: "XTerm"}}, Input: roundTrip()}
			_, receipt, kept := awaitAnswer(t, rule, c.answers, moment{termFacts(), desk})
			have := ""
			if receipt.Error != nil {
				have = receipt.Error.Text
			}
			if (have == "") != (c.want == "") || !strings.Contains(have, c.want) {
				t.Errorf("%q, want %q", have, c.want)
			}
			if diff := cmp.Diff(c.kept, kept); diff != "" {
				t.Error(diff)
			}
			said := map[string]string{}
			for _, f := range receipt.Facts {
				said[f.Name] = f.Value
			}
			if c.want == "" && (said["input-changed"] != "1.0000" || said["input-undone"] != "true") {
				t.Errorf("facts %v", said)
			}
		})
	}
}

// A window that goes on loading between an input and what takes it back: the round trip is done again from the
// screen that came to rest. Where what was to be taken back stays, it is not, whatever else moved.
func TestRoundTripOfAScreenThatGoesOn(t *testing.T) {
	loaded := image.Rect(100, 30, 250, 130)
	desk, done := lively(t, nothing), lively(t, filled(loaded, color.Black))
	menu := filled(menuRect, color.White)
	menuLoaded := lively(t, func(x, y int) color.Color {
		if c := menu(x, y); c != nil {
			return c
		}
		return filled(loaded, color.Black)(x, y)
	})
	rule := bench.Readiness{Screen: true, Deadline: "4s", Windows: []bench.Window{{Class: "XTerm"}}, Input: roundTrip()}
	rule.Input.Elsewhere = 0.5
	for _, c := range []struct {
		name           string
		answers, later map[string][]byte
		want, rounds   string
	}{
		{"loads after the input", map[string][]byte{"press": lively(t, menu), "release": done}, map[string][]byte{"press": menuLoaded}, "", "2"},
		{"loads before the input", map[string][]byte{"press": menuLoaded, "release": done}, nil, "", "2"},
		{"loads, and the menu stays", map[string][]byte{"press": lively(t, menu), "release": menuLoaded}, map[string][]byte{"press": done}, "the screen is not as it was before the input", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, receipt, _ := (&scripted{moments: []moment{{termFacts(), desk}}, answers: c.answers, later: c.later, called: map[string]int{}}).await(t, rule)
			have, rounds := "", ""
			if receipt.Error != nil {
				have = receipt.Error.Text
			}
			for _, f := range receipt.Facts {
				if f.Name == "input-rounds" {
					rounds = f.Value
				}
			}
			if (have == "") != (c.want == "") || !strings.Contains(have, c.want) || rounds != c.rounds {
				t.Errorf("%q in %q rounds, want %q in %q", have, rounds, c.want, c.rounds)
			}
		})
	}
}

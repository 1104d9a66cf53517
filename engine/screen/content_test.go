package screen

import (
	"errors"
	"image"
	"image/color"
	"slices"
	"testing"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A window that is mapped on a lively desktop and shows nothing of its own: the rule for the whole screen passes it.
func TestJudgeContents(t *testing.T) {
	window := image.Rect(100, 80, 900, 680)
	caret := image.Rect(104, 84, 113, 101)
	pointer := image.Pt(640, 400)
	arrow := func(img *image.RGBA) {
		for i := range 24 {
			fill(img, image.Rect(pointer.X, pointer.Y+i, pointer.X+1+i*2/3, pointer.Y+i+1), color.RGBA{uint8(9 * i), 0, 0, 255})
		}
	}
	empty := func() *image.RGBA {
		img := desktop()
		fill(img, window, color.White)
		return img
	}
	for _, c := range []struct {
		name string
		draw func(*image.RGBA)
		want []string
	}{
		{"one colour", func(*image.RGBA) {}, []string{"content soffice"}},
		{"a text cursor", func(img *image.RGBA) { fill(img, caret, color.Black) }, []string{"content soffice"}},
		{"the pointer over it", arrow, []string{"content soffice"}},
		{"a text cursor and the pointer", func(img *image.RGBA) { fill(img, caret, color.Black); arrow(img) }, []string{"content soffice"}},
		{"black", func(img *image.RGBA) { fill(img, window, color.Black) }, []string{"content soffice"}},
		{"a prompt", func(img *image.RGBA) { fill(img, image.Rect(104, 90, 150, 92), color.Black) }, nil},
		{"text", func(img *image.RGBA) { fill(img, image.Rect(110, 90, 880, 92), color.Black) }, nil},
		{"a column of text", func(img *image.RGBA) { fill(img, image.Rect(110, 90, 114, 300), color.Black) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			img := empty()
			c.draw(img)
			if got := JudgeContents(img, living(), wanted("soffice").Windows, pointer); !slices.Equal(subjects(got), c.want) {
				t.Errorf("%s\nwant %q", Text(got), c.want)
			}
		})
	}
	away := living()
	away.Windows[0].X = width
	if got := JudgeContents(desktop(), away, wanted("soffice").Windows, pointer); !slices.Equal(subjects(got), []string{"content soffice"}) {
		t.Errorf("a window off the screen: %s", Text(got))
	}
	// Of two windows of a class one is enough; one of another class is nobody's.
	two := living()
	two.Windows = append(two.Windows, guest.Window{Instance: "soffice", Rect: proto.Rect{X: 950, Y: 0, Width: 300, Height: 300}}, guest.Window{Instance: "xterm"})
	if got := JudgeContents(empty(), two, wanted("soffice", "gedit").Windows, pointer); len(got) > 0 {
		t.Error(Text(got))
	}
}

func TestJudgeWindowsOfAService(t *testing.T) {
	want := wanted("soffice")
	want.Windows[0].Service = "writer"
	want.Pids = map[string]int{"writer": 731, "other": 9}
	if got := JudgeFacts(living(), want); len(got) > 0 {
		t.Error(Text(got))
	}
	for name, change := range map[string]func(*guest.Screen){
		"another process": func(s *guest.Screen) { s.Windows[0].Pid = 9 },
		"says nothing":    func(s *guest.Screen) { s.Windows[0].Pid = 0 },
	} {
		facts := living()
		change(&facts)
		if got := JudgeFacts(facts, want); !slices.Equal(subjects(got), []string{"window soffice"}) {
			t.Errorf("%s: %s", name, Text(got))
		}
	}
	want.Pids = nil // the service has no process
	facts := living()
	facts.Windows[0].Pid = 0
	if got := JudgeFacts(facts, want); !slices.Equal(subjects(got), []string{"window soffice"}) {
		t.Error(Text(got))
	}
}

func TestAnswered(t *testing.T) {
	clock := []bench.Region{{X: 1000, Y: 0, Width: 280, Height: 30, Why: "a clock"}}
	menu := bench.RoundTrip{Region: bench.Region{X: 200, Y: 100, Width: 100, Height: 100, Why: "a menu"}, Least: 0.5, Elsewhere: 0.001}
	for _, c := range []struct {
		name string
		draw func(*image.RGBA)
		want bool
	}{
		{"nothing", func(*image.RGBA) {}, false},
		{"the menu", func(img *image.RGBA) { fill(img, image.Rect(200, 100, 300, 190), color.RGBA{1, 2, 3, 255}) }, true},
		{"too little of it", func(img *image.RGBA) { fill(img, image.Rect(200, 100, 300, 140), color.RGBA{1, 2, 3, 255}) }, false},
		{"the clock only", func(img *image.RGBA) { fill(img, image.Rect(1000, 0, 1200, 30), color.Black) }, false},
		{"the menu and the clock", func(img *image.RGBA) {
			fill(img, image.Rect(200, 100, 300, 190), color.RGBA{1, 2, 3, 255})
			fill(img, image.Rect(1000, 0, 1200, 30), color.Black)
		}, true},
		{"all of the screen", func(img *image.RGBA) { fill(img, img.Rect, color.RGBA{1, 2, 3, 255}) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			after := desktop()
			c.draw(after)
			if a, ok, err := Answered(desktop(), after, menu, clock); ok != c.want || err != nil {
				t.Errorf("%+v %v %v", a, ok, err)
			}
		})
	}
	menu.Region.X = width
	if _, _, err := Answered(desktop(), desktop(), menu, clock); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("a region that is not on the screen: %v", err)
	}
	if _, _, err := Answered(desktop(), image.NewRGBA(image.Rect(0, 0, 5, 5)), menu, nil); err == nil {
		t.Error("two sizes")
	}
}

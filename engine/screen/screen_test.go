package screen

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

const width, height = 1280, 800

var whole = proto.Rect{Width: width, Height: height}

func wanted(classes ...string) Want {
	w := Want{Width: width, Height: height}
	for _, c := range classes {
		w.Windows = append(w.Windows, bench.Window{Class: c})
	}
	return w
}

// living are the facts of a desktop on which all is well but, perhaps, what it shows.
func living() guest.Screen {
	return guest.Screen{Width: width, Height: height, Manager: "Openbox", Work: whole, Windows: []guest.Window{
		{Instance: "soffice", Class: "LibreOffice", Title: "Untitled", Pid: 731, Rect: proto.Rect{X: 100, Y: 80, Width: 800, Height: 600}}}}
}

func plain(c color.Color) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	draw.Draw(img, img.Rect, image.NewUniform(c), image.Point{}, draw.Src)
	return img
}

func fill(img *image.RGBA, r image.Rectangle, c color.Color) {
	draw.Draw(img, r, image.NewUniform(c), image.Point{}, draw.Src)
}

// blackWithCursor is the picture of the false pass, drawn after its description:
// black, and a cursor whose soft edge has 70 colours with the black, with 133 pixels
// brighter than 16.
func blackWithCursor() *image.RGBA {
	img := plain(color.Black)
	at := func(i int) image.Point { return image.Pt(640+i%14, 400+i/14) }
	for i := range 133 { // 69 greys that are bright, the last one again and again
		v := uint8(min(17+3*i, 17+3*68))
		img.SetRGBA(at(i).X, at(i).Y, color.RGBA{v, v, v, 255})
	}
	return img
}

// desktop is a picture that passes: a wallpaper that is not flat, a window full of lines.
func desktop() *image.RGBA {
	img := plain(color.Black)
	for y := range height {
		for x := range width {
			img.SetRGBA(x, y, color.RGBA{uint8(x / 8), uint8(y / 4), 120, 255})
		}
	}
	fill(img, image.Rect(100, 80, 900, 680), color.White)
	for y := 90; y < 670; y += 12 {
		fill(img, image.Rect(110, y, 880, y+2), color.Black)
	}
	return img
}

func subjects(findings []bench.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, f.Subject)
	}
	return out
}

func TestJudgePictures(t *testing.T) {
	wallpaperWithPanel := plain(color.RGBA{40, 90, 160, 255})
	for x := range width { // a panel of many colours
		fill(wallpaperWithPanel, image.Rect(x, 0, x+1, 30), color.RGBA{uint8(x), uint8(x / 5), 200, 255})
	}
	blackWithPanel := plain(color.Black)
	draw.Draw(blackWithPanel, image.Rect(0, 0, width, 60), desktop(), image.Pt(100, 80), draw.Src)
	emptyWindow := plain(color.RGBA{0, 0, 64, 255})
	fill(emptyWindow, image.Rect(100, 80, 900, 680), color.White)
	noise := plain(color.Black)
	for i := range width * height { // each pixel nearly black, each of another colour
		noise.SetRGBA(i%width, i/width, color.RGBA{uint8(i % 16), uint8(i / 16 % 16), uint8(i / 256 % 16), 255})
	}
	changed := desktop()
	changed.SetRGBA(1279, 799, color.RGBA{1, 2, 3, 255})
	smaller := image.NewRGBA(image.Rect(0, 0, 1024, 768))
	draw.Draw(smaller, smaller.Rect, desktop(), image.Point{}, draw.Src)
	panel := living()
	panel.Work = proto.Rect{Y: 60, Width: width, Height: height - 60}
	lying := living()
	lying.Work = proto.Rect{X: 640, Y: 400, Width: 14, Height: 10}

	for _, c := range []struct {
		name          string
		first, second image.Image
		facts         guest.Screen
		want          []string
	}{
		{"ready", desktop(), desktop(), living(), nil},
		{"black, frozen", plain(color.Black), plain(color.Black), living(), []string{"colours", "lit", "dominant", "texture"}},
		{"the false pass", blackWithCursor(), blackWithCursor(), living(), []string{"lit", "dominant", "texture"}},
		{"the false pass, and a work area that is the cursor", blackWithCursor(), blackWithCursor(), lying, []string{"lit", "dominant", "texture"}},
		{"uniform", plain(color.White), plain(color.White), living(), []string{"colours", "dominant", "texture"}},
		{"uniform wallpaper with a panel", wallpaperWithPanel, wallpaperWithPanel, living(), []string{"dominant", "texture"}},
		{"black with a bright panel", blackWithPanel, blackWithPanel, panel, []string{"lit", "dominant", "texture"}},
		{"window without content", emptyWindow, emptyWindow, living(), []string{"colours", "texture"}},
		{"dark noise", noise, noise, living(), []string{"lit", "texture"}},
		{"changes in one pixel", desktop(), changed, living(), []string{"frames"}},
		{"appears", plain(color.Black), desktop(), living(), []string{"frames"}},
		{"disappears", desktop(), plain(color.Black), living(), []string{"frames", "colours", "lit", "dominant", "texture"}},
		{"one picture", nil, desktop(), living(), []string{"frames"}},
		{"no picture", nil, nil, living(), []string{"frames"}},
		{"another size", smaller, smaller, living(), []string{"size"}},
		{"two sizes", smaller, desktop(), living(), []string{"frames"}},
		{"nothing in it", image.NewRGBA(image.Rectangle{}), image.NewRGBA(image.Rectangle{}), living(), []string{"size", "colours", "lit", "texture"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "two sizes" {
				c.second = desktop()
			}
			got := Judge(c.first, c.second, c.facts, wanted("soffice"))
			if !slices.Equal(subjects(got), c.want) {
				t.Errorf("%s\nwant %q", Text(got), c.want)
			}
			for _, f := range got {
				if f.Verdict == engine.Pass || f.Text == "" {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// The picture has the numbers that are on record for it.
func TestTheFalsePass(t *testing.T) {
	img := blackWithCursor()
	m := Measure(img, whole)
	if m.Colours != 70 || math.Round(m.Lit*width*height) != 133 || m.Colours < MinColours {
		t.Errorf("%+v", m)
	}
}

func TestJudgeFacts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*guest.Screen)
		want   []string
	}{
		{"well", func(*guest.Screen) {}, nil},
		{"by instance", func(s *guest.Screen) { s.Windows[0].Class = "x" }, nil},
		{"by class", func(s *guest.Screen) { s.Windows[0].Instance, s.Windows[0].Class = "x", "soffice" }, nil},
		{"unknown", func(s *guest.Screen) { *s = guest.Screen{Unknown: "connect: no such file"} }, []string{"screen"}},
		{"no manager", func(s *guest.Screen) { s.Manager = "" }, []string{"manager"}},
		{"no window", func(s *guest.Screen) { s.Windows = nil }, []string{"window", "window soffice"}},
		{"another window", func(s *guest.Screen) { s.Windows[0].Instance, s.Windows[0].Class = "Soffice", "soffice.bin" }, []string{"window soffice"}},
		{"small window", func(s *guest.Screen) { s.Windows[0].Width = 199 }, []string{"window"}},
		{"flat window", func(s *guest.Screen) { s.Windows[0].Height = 99 }, []string{"window"}},
		{"outside", func(s *guest.Screen) { s.Windows[0].X = width - 199 }, []string{"window"}},
		{"far outside", func(s *guest.Screen) { s.Windows[0].Y = -800 }, []string{"window"}},
		{"just inside", func(s *guest.Screen) { s.Windows[0].X, s.Windows[0].Y = width-200, height-100 }, nil},
		{"size", func(s *guest.Screen) { s.Width = 1024 }, []string{"size"}},
		{"nonsense", func(s *guest.Screen) { s.Windows[0].Width = -1 }, []string{"window"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			facts := living()
			c.change(&facts)
			if got := JudgeFacts(facts, wanted("soffice")); !slices.Equal(subjects(got), c.want) {
				t.Errorf("%s\nwant %q", Text(got), c.want)
			}
		})
	}
	if got := JudgeWindows(living(), wanted("XTerm", "LibreOffice")); Text(got) != `window XTerm: no mapped window has this class (want XTerm, have "soffice"."LibreOffice" 800x600)` {
		t.Error(Text(got))
	}
	if got := JudgeWindows(guest.Screen{Unknown: "x"}, Want{}); len(got) != 1 || got[0].Verdict != engine.VerdictUnknown {
		t.Error(Text(got))
	}
}

func TestMeasure(t *testing.T) {
	img := plain(color.Black)
	fill(img, image.Rect(0, 0, 320, 400), color.RGBA{17, 17, 17, 255}) // an eighth, just lit
	fill(img, image.Rect(0, 400, 320, 800), color.RGBA{16, 16, 16, 255})
	if diff := cmp.Diff(Measures{Width: width, Height: height, Colours: 3, Lit: 0.125, Dominant: 0.75, Textured: 0}, Measure(img, proto.Rect{})); diff != "" {
		t.Error(diff)
	}
	// The right half is not the document's.
	if m := Measure(img, proto.Rect{Width: 640, Height: 800}); m.Lit != 0.25 {
		t.Errorf("%+v", m)
	}
	fill(img, image.Rect(100, 100, 101, 101), color.White) // one cell
	if m := Measure(img, whole); m.Textured != 1./160 {
		t.Errorf("%+v", m)
	}
	// Half and half: neither dominates.
	fill(img, img.Rect, color.White)
	fill(img, image.Rect(0, 0, 640, 800), color.Black)
	if m := Measure(img, whole); m.Dominant != 0 || m.Colours != 2 {
		t.Errorf("%+v", m)
	}
	// Another model, another origin.
	gray := image.NewGray(image.Rect(50, 60, 50+width, 60+height))
	draw.Draw(gray, gray.Rect, desktop(), image.Point{}, draw.Src)
	if m := Measure(gray, whole); m.Width != width || m.Colours < 2 || m.Textured < MinTextured {
		t.Errorf("%+v", m)
	}
}

// A frame as guestd sent it from Xvfb with openbox and xterm, and what it said of
// the screen; cmd/guestd's test of the same desk writes them with -update.
func TestRealDesk(t *testing.T) {
	data, err := os.ReadFile("testdata/desk.png")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/desk.json")
	if err != nil {
		t.Fatal(err)
	}
	var facts guest.Screen
	if err := json.Unmarshal(text, &facts); err != nil {
		t.Fatal(err)
	}
	img, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := Judge(img, img, facts, wanted("XTerm")); len(got) > 0 {
		t.Error(Text(got))
	}
	t.Logf("%+v", Measure(img, facts.Work))
	if got := Judge(img, img, facts, wanted("XTerm", "soffice")); !slices.Equal(subjects(got), []string{"window soffice"}) {
		t.Error(Text(got))
	}
}

func TestDecode(t *testing.T) {
	var good bytes.Buffer
	if err := png.Encode(&good, desktop()); err != nil {
		t.Fatal(err)
	}
	img, err := Decode(good.Bytes())
	if err != nil || differing(img.(*image.RGBA), desktop()) != 0 {
		t.Error(err)
	}
	// A header that claims a size, with a right sum.
	claim := func(w, h uint32) []byte {
		out := bytes.Clone(good.Bytes())
		binary.BigEndian.PutUint32(out[16:], w)
		binary.BigEndian.PutUint32(out[20:], h)
		binary.BigEndian.PutUint32(out[29:], crc32.ChecksumIEEE(out[12:29]))
		return out
	}
	for name, c := range map[string]struct {
		data []byte
		is   error
	}{
		"nothing":         {nil, nil},
		"no picture":      {[]byte("<html>"), nil},
		"truncated":       {good.Bytes()[:good.Len()/2], nil},
		"huge":            {claim(1<<31-1, 1<<31-1), nil},
		"large":           {claim(65535, 65535), guest.ErrTooLarge},
		"one row too far": {claim(4096, 4097), guest.ErrTooLarge},
		"zero":            {claim(0, 800), nil},
		"more than sent":  {claim(4096, 4096), nil},
	} {
		t.Run(name, func(t *testing.T) {
			img, err := Decode(c.data)
			if err == nil || img != nil || (c.is != nil && !errors.Is(err, c.is)) {
				t.Errorf("%v", err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewRGBA(image.Rect(0, 0, 3, 2))); err != nil {
		f.Fatal(err)
	}
	f.Add(small.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if img, err := Decode(data); err == nil {
			Measure(img, proto.Rect{X: -5, Y: 1, Width: 1 << 30, Height: 2})
		}
	})
}

func BenchmarkJudge(b *testing.B) {
	img := desktop()
	for b.Loop() {
		Judge(img, img, living(), wanted("soffice"))
	}
}

func BenchmarkDecode(b *testing.B) {
	data, err := os.ReadFile("testdata/desk.png")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}

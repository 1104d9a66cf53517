// Package screen judges whether a guest's screen shows a desktop that somebody
// could use. A guest server that answers and processes that live are no such proof:
// a black screen with a cursor on it once passed a check that only counted colours
// (70 of them, all in the soft edge of the cursor) and saw that nothing moved.
//
// What always holds: the functions are pure; what is not known is a finding; no
// picture from a guest is decoded before its size is bounded.
//
// # The rule
//
// All of it must hold. The numbers are those that were settled on after that false
// pass, and its picture is among the tests; where they left a word open, this
// package says what it means.
//
//	subject   holds when
//	size      the screen and both pictures have the manifest's size
//	frames    two pictures, taken one after the other, are equal in each pixel
//	colours   at least 50 different colours
//	lit       at least 5% of the document region is brighter than 16 of 255;
//	          the region is the window manager's work area: the screen without panels
//	dominant  no colour has more than 90% of the screen
//	texture   at least 25% of the cells of a 16x10 grid hold a difference in
//	          brightness of more than 16: as much as counts as lit
//	manager   a window manager lives on the root window (EWMH 1.5, _NET_SUPPORTING_WM_CHECK)
//	window    at least one mapped window shows at least 200x100 pixels on the screen
//	window C  a mapped window has C as one of the two parts of its WM_CLASS, and
//	          says that it is the process of the service that the manifest names
//	content C that window shows something: JudgeContents, which has to know where
//	          the pointer is, and so is asked last
//
// A round trip (Answered) is asked of a screen that passes all of it.
//
// Brightness is luma: 0.299 red, 0.587 green, 0.114 blue.
package screen

import (
	"bytes"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// The numbers of the rule; see the package's comment.
const (
	MinColours      = 50
	MinLit          = 0.05
	MaxDominant     = 0.90
	MinTextured     = 0.25
	Brightness      = 16 // of 255, which is dark
	Columns         = 16
	Rows            = 10
	MinWindowWidth  = 200
	MinWindowHeight = 100
)

// Want is what a manifest asks of a screen.
type Want struct {
	Width, Height int
	// Windows must be mapped, each by its class.
	Windows []bench.Window
	// Pids are the services' processes, by name.
	Pids map[string]int
}

// Judge applies the rule, but for what windows hold, to two pictures, the second taken after the first,
// and to what the guest's X server says. No finding is ready. A picture that is nil
// was not taken yet.
func Judge(first, second image.Image, facts guest.Screen, want Want) []bench.Finding {
	frames, _ := JudgeFrames(first, second, facts, want)
	return slices.Concat(JudgeFacts(facts, want), frames)
}

// JudgeFacts applies the part of the rule that needs no pictures: size, manager
// and windows.
func JudgeFacts(facts guest.Screen, want Want) []bench.Finding {
	if f := unknown(facts); f != nil {
		return f
	}
	var j engine.Judgement
	if facts.Width != want.Width || facts.Height != want.Height {
		refuse(&j, "size", "the screen has another size than the manifest says", size(want.Width, want.Height), size(facts.Width, facts.Height))
	}
	if facts.Manager == "" {
		refuse(&j, "manager", "no window manager lives on the root window", "one", "none")
	}
	if !slices.ContainsFunc(facts.Windows, func(w guest.Window) bool { return shown(w, facts) }) {
		refuse(&j, "window", "no mapped window of that size is on the screen", "at least "+size(MinWindowWidth, MinWindowHeight), list(facts.Windows))
	}
	return append(j.Findings, JudgeWindows(facts, want)...)
}

// JudgeWindows requires that each window is mapped, and is its service's.
func JudgeWindows(facts guest.Screen, want Want) []bench.Finding {
	if f := unknown(facts); f != nil {
		return f
	}
	var j engine.Judgement
	for _, w := range want.Windows {
		var pids []string
		mine := false
		for _, have := range facts.Windows {
			if named(have, w) {
				pids = append(pids, strconv.Itoa(have.Pid))
				mine = mine || w.Service == "" || have.Pid != 0 && have.Pid == want.Pids[string(w.Service)]
			}
		}
		switch {
		case len(pids) == 0:
			refuse(&j, "window "+w.Class, "no mapped window has this class", w.Class, list(facts.Windows))
		case !mine:
			refuse(&j, "window "+w.Class, "is not of the service "+string(w.Service), fmt.Sprintf("process %d", want.Pids[string(w.Service)]), "process "+strings.Join(pids, ", "))
		}
	}
	return j.Findings
}

// JudgeFrames applies the part of the rule that is about pictures, and says what it
// measured in the second. Of facts it uses the work area only.
func JudgeFrames(first, second image.Image, facts guest.Screen, want Want) ([]bench.Finding, Measures) {
	var j engine.Judgement
	if second == nil {
		j.Add(engine.VerdictUnknown, "frames", "there is no picture of the screen yet")
		return j.Findings, Measures{}
	}
	a, b := (*image.RGBA)(nil), opaque(second)
	if first != nil {
		a = opaque(first)
	}
	if have := b.Rect.Size(); have != image.Pt(want.Width, want.Height) {
		refuse(&j, "size", "the picture has another size than the manifest says", size(want.Width, want.Height), size(have.X, have.Y))
	}
	switch {
	case a == nil:
		j.Add(engine.VerdictUnknown, "frames", "there is only one picture of the screen yet")
	case a.Rect.Size() != b.Rect.Size():
		refuse(&j, "frames", "the second picture has another size", size(a.Rect.Dx(), a.Rect.Dy()), size(b.Rect.Dx(), b.Rect.Dy()))
	default:
		if n := differing(a, b); n > 0 {
			refuse(&j, "frames", "the screen is still changing", "no pixel", fmt.Sprintf("%d pixels changed", n))
		}
	}
	m := Measure(b, facts.Work)
	return append(j.Findings, m.judge()...), m
}

func unknown(facts guest.Screen) []bench.Finding {
	if facts.Unknown == "" {
		return nil
	}
	var j engine.Judgement
	j.Add(engine.VerdictUnknown, "screen", "it is not known: "+facts.Unknown)
	return j.Findings
}

func refuse(j *engine.Judgement, subject, text, want, have string) {
	f := j.Add(engine.Fail, subject, text)
	f.Want, f.Have = want, have
}

func size(width, height int) string { return fmt.Sprintf("%dx%d", width, height) }

// shown says whether enough of a window lies on the screen.
func shown(w guest.Window, facts guest.Screen) bool {
	part := rectangle(w.Rect).Intersect(image.Rect(0, 0, facts.Width, facts.Height))
	return part.Dx() >= MinWindowWidth && part.Dy() >= MinWindowHeight
}

func rectangle(r proto.Rect) image.Rectangle {
	return image.Rect(r.X, r.Y, r.X+max(0, r.Width), r.Y+max(0, r.Height))
}

// list names windows for a person.
func list(windows []guest.Window) string {
	const most = 5
	if len(windows) == 0 {
		return "no window"
	}
	var names []string
	for i, w := range windows {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(windows)-most))
			break
		}
		names = append(names, fmt.Sprintf("%q.%q %s", w.Instance, w.Class, size(w.Width, w.Height)))
	}
	return strings.Join(names, ", ")
}

// Text is findings as one line.
func Text(findings []bench.Finding) string {
	var out []string
	for _, f := range findings {
		line := f.Subject + ": " + f.Text
		if f.Want != "" || f.Have != "" {
			line += fmt.Sprintf(" (want %s, have %s)", f.Want, f.Have)
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

// Measures of one picture.
type Measures struct {
	Width, Height int
	// Colours is the number of different colours.
	Colours int
	// Lit is the part of the document region that is bright.
	Lit float64
	// Dominant is the part of the screen that has the most frequent colour, where
	// that is more than half of it; 0 where no colour has so much.
	Dominant float64
	// Textured is the part of the grid's cells that hold a difference.
	Textured float64
}

func (m Measures) judge() []bench.Finding {
	var j engine.Judgement
	percent := func(f float64) string { return fmt.Sprintf("%.2f%%", 100*f) }
	if m.Colours < MinColours {
		refuse(&j, "colours", "the screen has too few colours", fmt.Sprintf("at least %d", MinColours), fmt.Sprint(m.Colours))
	}
	if m.Lit < MinLit {
		refuse(&j, "lit", "the document region is dark", "at least "+percent(MinLit), percent(m.Lit))
	}
	if m.Dominant > MaxDominant {
		refuse(&j, "dominant", "one colour is nearly all of the screen", "at most "+percent(MaxDominant), percent(m.Dominant))
	}
	if m.Textured < MinTextured {
		refuse(&j, "texture", "too few parts of the screen show anything", "at least "+percent(MinTextured), percent(m.Textured))
	}
	return j.Findings
}

// Measure looks at each pixel once. work is the screen without its panels; one
// that is less than half of the screen, or that is not known, is taken for the
// whole: a document region of nothing would be lit by anything.
func Measure(img image.Image, work proto.Rect) Measures {
	p := opaque(img)
	width, height := p.Rect.Dx(), p.Rect.Dy()
	m := Measures{Width: width, Height: height}
	if width == 0 || height == 0 {
		return m
	}
	region := rectangle(work).Intersect(image.Rect(0, 0, width, height))
	if 2*region.Dx()*region.Dy() < width*height {
		region = image.Rect(0, 0, width, height)
	}
	var cells [Rows][Columns]struct{ low, high uint8 }
	for y := range cells {
		for x := range cells[y] {
			cells[y][x].low = 255
		}
	}
	column := make([]uint8, width)
	for x := range column {
		column[x] = uint8(x * Columns / width)
	}
	seen := make([]uint64, 1<<24/64)
	lit := 0
	// Boyer and Moore's majority vote: if one colour has more than half, it is the one that stays.
	var most uint32
	votes := 0
	for y := range height {
		row := p.Pix[y*p.Stride:][:4*width]
		in := y >= region.Min.Y && y < region.Max.Y
		grid := &cells[y*Rows/height]
		last, luma := uint32(1<<24), uint8(0) // no colour; most pixels have that of the one before
		for x := range width {
			colour := uint32(row[4*x])<<16 | uint32(row[4*x+1])<<8 | uint32(row[4*x+2])
			if colour != last {
				last = colour
				seen[colour/64] |= 1 << (colour % 64)
				luma = uint8((299*(colour>>16) + 587*(colour>>8&0xff) + 114*(colour&0xff)) / 1000)
			}
			switch {
			case colour == most:
				votes++
			case votes == 0:
				most, votes = colour, 1
			default:
				votes--
			}
			if in && luma > Brightness && x >= region.Min.X && x < region.Max.X {
				lit++
			}
			c := &grid[column[x]]
			c.low, c.high = min(c.low, luma), max(c.high, luma)
		}
	}
	for _, word := range seen {
		m.Colours += bits.OnesCount64(word)
	}
	m.Lit = float64(lit) / float64(region.Dx()*region.Dy())
	count := 0
	for y := range height {
		row := p.Pix[y*p.Stride:][:4*width]
		for x := range width {
			if uint32(row[4*x])<<16|uint32(row[4*x+1])<<8|uint32(row[4*x+2]) == most {
				count++
			}
		}
	}
	if 2*count > width*height {
		m.Dominant = float64(count) / float64(width*height)
	}
	textured := 0
	for y := range cells {
		for _, c := range cells[y] {
			if int(c.high)-int(c.low) > Brightness {
				textured++
			}
		}
	}
	m.Textured = float64(textured) / (Rows * Columns)
	return m
}

// Differ is the part of the pixels outside of the moving regions in which two
// pictures differ. Pictures of two sizes differ in all of them. Where the regions
// leave less than half of the screen there is nothing to compare by: an error.
func Differ(a, b image.Image, moving []bench.Region) (float64, error) {
	p, q := opaque(a), opaque(b)
	if p.Rect.Size() != q.Rect.Size() {
		return 1, nil
	}
	width, height := p.Rect.Dx(), p.Rect.Dy()
	masked := mask(p, moving)
	left := 0
	for _, m := range masked {
		if !m {
			left++
		}
	}
	if left == 0 || 2*left < width*height {
		return 0, &engine.Error{Op: "compare pictures of the screen", Err: fmt.Errorf("%w: the moving regions leave %d of %d pixels", engine.ErrUnknown, left, width*height)}
	}
	n := 0
	for y := range height {
		for x := range width {
			if !masked[y*width+x] && !bytes.Equal(p.Pix[y*p.Stride+4*x:][:3], q.Pix[y*q.Stride+4*x:][:3]) {
				n++
			}
		}
	}
	return float64(n) / float64(left), nil
}

// differing is the number of pixels in which two pictures of one size differ.
func differing(a, b *image.RGBA) int {
	n, width := 0, 4*a.Rect.Dx()
	for y := range a.Rect.Dy() {
		p, q := a.Pix[y*a.Stride:][:width], b.Pix[y*b.Stride:][:width]
		if bytes.Equal(p, q) {
			continue
		}
		for x := 0; x < width; x += 4 {
			if !bytes.Equal(p[x:x+4], q[x:x+4]) {
				n++
			}
		}
	}
	return n
}

// opaque is a picture in the form that Measure reads, on black where it is transparent.
func opaque(img image.Image) *image.RGBA {
	if p, ok := img.(*image.RGBA); ok && p.Rect.Min == (image.Point{}) {
		return p
	}
	out := image.NewRGBA(image.Rectangle{Max: img.Bounds().Size()})
	draw.Draw(out, out.Rect, image.Black, image.Point{}, draw.Src)
	draw.Draw(out, out.Rect, img, img.Bounds().Min, draw.Over)
	return out
}

// Decode decodes a picture that a guest sent. Its size is read and bounded first:
// a few bytes can claim to be a picture of any size.
func Decode(data []byte) (image.Image, error) {
	c, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, fail(err)
	}
	if c.Width <= 0 || c.Height <= 0 || c.Width > proto.MaxPixels/c.Height {
		return nil, fail(fmt.Errorf("%w: %d by %d pixels, the limit is %d in all", guest.ErrTooLarge, c.Width, c.Height, proto.MaxPixels))
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fail(err)
	}
	return opaque(img), nil
}

func fail(err error) error { return &engine.Error{Op: "decode picture of the screen", Err: err} }

package screen

import (
	"fmt"
	"image"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// PointerSize is the side of a square that the picture of a pointer, or a text
// cursor, fits into, in pixels. X servers say 32 to who asks for the largest
// cursor (QueryBestSize), and themes are drawn in it.
const PointerSize = 32

// JudgeContents requires that each window that the manifest names shows something
// of its own: pixels of more than one colour, more of them than fit into a text
// cursor's square, and none of them near the pointer, whose picture lies over
// whatever is there. A window that its program has mapped and not painted has one
// colour. Of several windows of a class one is enough.
func JudgeContents(picture image.Image, facts guest.Screen, windows []bench.Window, pointer image.Point) []bench.Finding {
	var j engine.Judgement
	p := opaque(picture)
	for _, want := range windows {
		var seen []guest.Window
		for _, w := range facts.Windows {
			if named(w, want) {
				seen = append(seen, w)
			}
		}
		if len(seen) > 0 && !slices.ContainsFunc(seen, func(w guest.Window) bool { return painted(p, rectangle(w.Rect), pointer) }) {
			refuse(&j, "content "+want.Class, "is a window without content", fmt.Sprintf("more than one colour, and more than a cursor of %[1]dx%[1]d", PointerSize), list(seen))
		}
	}
	return j.Findings
}

func named(w guest.Window, want bench.Window) bool {
	return w.Instance == want.Class || w.Class == want.Class
}

// painted says whether a part of a picture shows more than one colour and cursors.
func painted(p *image.RGBA, part image.Rectangle, pointer image.Point) bool {
	part = part.Intersect(p.Rect)
	if part.Empty() {
		return false
	}
	// Wherever in its picture the pointer's tip is.
	hidden := image.Rectangle{Min: pointer, Max: pointer}.Inset(-PointerSize)
	ground := background(p, part)
	other := image.Rectangle{}
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			if colourAt(p, x, y) == ground || (image.Point{X: x, Y: y}).In(hidden) {
				continue
			}
			other = other.Union(image.Rect(x, y, x+1, y+1))
			if other.Dx() > PointerSize || other.Dy() > PointerSize {
				return true
			}
		}
	}
	return false
}

// background is the colour that most pixels have, where one has more than half; else any.
func background(p *image.RGBA, part image.Rectangle) uint32 {
	most, votes := uint32(0), 0
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			switch colour := colourAt(p, x, y); {
			case votes == 0:
				most, votes = colour, 1
			case colour == most:
				votes++
			default:
				votes--
			}
		}
	}
	return most
}

func colourAt(p *image.RGBA, x, y int) uint32 {
	at := p.Pix[y*p.Stride+4*x:]
	return uint32(at[0])<<16 | uint32(at[1])<<8 | uint32(at[2])
}

package screen

import (
	"bytes"
	"fmt"
	"image"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/guest/proto"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Answer is what an input changed.
type Answer struct {
	// Region and Elsewhere are the parts of the pixels that differ: of those of the region, and of all others.
	Region, Elsewhere float64
}

// Answered compares a picture with the one before an input, outside of what moves
// by itself, and says whether it changed as the manifest predicts. Pictures of two
// sizes, and a region that leaves nothing to look at, are errors.
func Answered(before, after image.Image, want bench.RoundTrip, moving []bench.Region) (a Answer, ok bool, err error) {
	p, q, err := pair(before, after)
	if err != nil {
		return a, false, err
	}
	masked := mask(p, moving)
	inside := rectangle(proto.Rect{X: int(want.Region.X), Y: int(want.Region.Y), Width: int(want.Region.Width), Height: int(want.Region.Height)}).Intersect(p.Rect)
	var changed, all [2]int // in the region, elsewhere
	for y := range p.Rect.Dy() {
		for x := range p.Rect.Dx() {
			if masked[y*p.Rect.Dx()+x] {
				continue
			}
			where := 1
			if (image.Point{X: x, Y: y}).In(inside) {
				where = 0
			}
			all[where]++
			if !bytes.Equal(p.Pix[y*p.Stride+4*x:][:3], q.Pix[y*q.Stride+4*x:][:3]) {
				changed[where]++
			}
		}
	}
	if all[0] == 0 {
		return a, false, &engine.Error{Op: "compare pictures of the screen", Err: fmt.Errorf("%w: the region of the input is not on the screen, or moves by itself", engine.ErrUnknown)}
	}
	a.Region = float64(changed[0]) / float64(all[0])
	if all[1] > 0 {
		a.Elsewhere = float64(changed[1]) / float64(all[1])
	}
	return a, a.Region >= want.Least && a.Elsewhere <= want.Elsewhere, nil
}

func pair(a, b image.Image) (p, q *image.RGBA, err error) {
	p, q = opaque(a), opaque(b)
	if p.Rect.Size() != q.Rect.Size() {
		return nil, nil, &engine.Error{Op: "compare pictures of the screen", Err: fmt.Errorf("one has %s pixels, the other %s", size(p.Rect.Dx(), p.Rect.Dy()), size(q.Rect.Dx(), q.Rect.Dy()))}
	}
	return p, q, nil
}

// mask are the pixels of what moves by itself, row by row.
func mask(p *image.RGBA, moving []bench.Region) []bool {
	width := p.Rect.Dx()
	out := make([]bool, width*p.Rect.Dy())
	for _, r := range moving {
		part := rectangle(proto.Rect{X: int(r.X), Y: int(r.Y), Width: int(r.Width), Height: int(r.Height)}).Intersect(p.Rect)
		for y := part.Min.Y; y < part.Max.Y; y++ {
			for x := part.Min.X; x < part.Max.X; x++ {
				out[y*width+x] = true
			}
		}
	}
	return out
}

package pages

import (
	"slices"
	"sort"

	"github.com/drumsbench/drumsbench/arms/criu"
)

// piece is a run of pages that a task lacks, with where their content lies.
type piece struct {
	criu.Range
	file *pageFile
	off  int64
}

// part of a piece; r lies in it.
func (p piece) part(r criu.Range) piece {
	return piece{Range: r, file: p.file, off: p.off + int64(r.Start-p.Start)}
}

func (p piece) content() []byte { return p.file.data[p.off:][:p.End-p.Start] }

// missing are the pages that a task lacks: pieces by address that do not overlap.
type missing []piece

func overlap(a, b criu.Range) criu.Range {
	return criu.Range{Start: max(a.Start, b.Start), End: min(a.End, b.End)}
}

// from is the index of the first piece that ends behind an address.
func (m missing) from(at uint64) int {
	return sort.Search(len(m), func(i int) bool { return m[i].End > at })
}

// within are the parts of pieces that lie in r.
func (m missing) within(r criu.Range) (parts []piece) {
	for i := m.from(r.Start); i < len(m) && m[i].Start < r.End; i++ {
		parts = append(parts, m[i].part(overlap(m[i].Range, r)))
	}
	return parts
}

// cut takes r out and returns what was in it.
func (m *missing) cut(r criu.Range) []piece {
	first := m.from(r.Start)
	last := first
	var out, rest []piece
	for ; last < len(*m) && (*m)[last].Start < r.End; last++ {
		p := (*m)[last]
		in := overlap(p.Range, r)
		out = append(out, p.part(in))
		if p.Start < in.Start {
			rest = append(rest, p.part(criu.Range{Start: p.Start, End: in.Start}))
		}
		if in.End < p.End {
			rest = append(rest, p.part(criu.Range{Start: in.End, End: p.End}))
		}
	}
	if len(out) > 0 {
		*m = slices.Replace(*m, first, last, rest...)
	}
	return out
}

// move takes what is in from to the place that begins at to; what was there before is gone.
func (m *missing) move(from criu.Range, to uint64) {
	moved := m.cut(from)
	m.cut(criu.Range{Start: to, End: to + from.End - from.Start})
	for i := range moved {
		moved[i].Start += to - from.Start
		moved[i].End += to - from.Start
	}
	if len(moved) > 0 {
		*m = slices.Insert(*m, m.from(moved[0].Start), moved...)
	}
}

// pages that are missing.
func (m missing) pages() (n uint64) {
	for _, p := range m {
		n += (p.End - p.Start) / criu.PageSize
	}
	return n
}

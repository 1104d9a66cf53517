package pages

import (
	"math/rand/v2"
	"testing"

	"github.com/drumsbench/drumsbench/arms/criu"
)

// Whatever is cut and moved, the pieces are by address, do not overlap, and hold what a page-wise model holds.
func TestMissing(t *testing.T) {
	const pages = 200
	page := criu.PageSize
	span := func(first, n int) criu.Range {
		return criu.Range{Start: uint64(first) * page, End: uint64(first+n) * page}
	}
	f := &pageFile{name: "pages-1.img", data: make([]byte, pages*page)}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		m, model := missing{}, map[int]int64{}
		for at := 0; at < pages; at += 10 {
			m = append(m, piece{Range: span(at, 7), file: f, off: int64(at) * int64(page)})
			for i := range 7 {
				model[at+i] = int64(at+i) * int64(page)
			}
		}
		for range 60 {
			first, n, to := r.IntN(pages), 1+r.IntN(15), r.IntN(pages)
			if r.IntN(2) == 0 {
				m.cut(span(first, n))
				for i := range n {
					delete(model, first+i)
				}
			} else {
				m.move(span(first, n), uint64(to)*page)
				held := map[int]int64{}
				for i := range n {
					if off, ok := model[first+i]; ok {
						held[to+i] = off
						delete(model, first+i)
					}
				}
				for i := range n {
					delete(model, to+i)
				}
				for at, off := range held {
					model[at] = off
				}
			}
			last := uint64(0)
			for _, p := range m {
				if p.Start < last || p.End <= p.Start {
					t.Fatalf("seed %d: pieces %+v", seed, m)
				}
				last = p.End
			}
			if m.pages() != uint64(len(model)) {
				t.Fatalf("seed %d: %d pages, the model has %d", seed, m.pages(), len(model))
			}
			for at, off := range model {
				if got := m.within(span(at, 1)); len(got) != 1 || got[0].off != off {
					t.Fatalf("seed %d: page %d: %+v, want offset %d", seed, at, got, off)
				}
			}
		}
	}
}

// A set comes back as it was written; one that is none is refused.
func TestWorkingSetFile(t *testing.T) {
	dir := t.TempDir()
	f := &pageFile{name: "pages-3.img", data: make([]byte, 64*criu.PageSize)}
	s := workingSet{}
	for _, n := range []uint64{1, 2, 3, 9, 40} {
		s.add(piece{Range: criu.Range{Start: 0, End: criu.PageSize}, file: f, off: int64(n * criu.PageSize)})
	}
	if err := s.write(dir + "/set.json"); err != nil {
		t.Fatal(err)
	}
	back, err := readSet(dir + "/set.json")
	if err != nil || back.pages() != 5 {
		t.Fatalf("%v, %v", back, err)
	}
	all := piece{Range: criu.Range{Start: 0x10000, End: 0x10000 + 64*criu.PageSize}, file: f}
	if parts := back.of(all); len(parts) != 3 || parts[0].Start != 0x10000+criu.PageSize || parts[0].End != 0x10000+4*criu.PageSize || parts[2].off != int64(40*criu.PageSize) {
		t.Errorf("%+v", parts)
	}
	if _, err := readSet(dir); err == nil {
		t.Error("a folder is a set")
	}
}

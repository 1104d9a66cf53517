package criu

import (
	"os"
	"path/filepath"
	"testing"
)

// Pages of zeros leave the images, and a tree that is restored from the rest has every page that was dumped, those among them.
func TestDropZeros(t *testing.T) {
	s := startSlot(t, "shared")
	o, err := s.dump(DumpOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dumped := filepath.Join(t.TempDir(), "dumped")
	if err := os.CopyFS(dumped, os.DirFS(o.ImagesDir)); err != nil {
		t.Fatal(err)
	}
	count := func(dir string) (pages int) {
		all, err := OpenImages(dir).Memory()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			for _, r := range m.Runs {
				pages += int((r.End - r.Start) / PageSize)
			}
		}
		return pages
	}
	dropped, err := DropZeros(o.ImagesDir)
	if err != nil || dropped == 0 {
		t.Fatalf("%d pages were dropped, %v", dropped, err)
	}
	if have, want := count(o.ImagesDir), count(dumped)-dropped; have != want {
		t.Errorf("the images hold %d pages, not %d", have, want)
	}
	if again, err := DropZeros(o.ImagesDir); err != nil || again != 0 {
		t.Errorf("%d pages the second time, %v", again, err)
	}
	r, err := s.restore(t.Context(), "without-zeros", RestoreOptions{Sibling: true, LeaveStopped: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.end()
	if n := samePages(t, dumped, r.pid); n != count(dumped) {
		t.Errorf("%d pages were compared, not %d", n, count(dumped))
	}
}

// A page that is zero where the kernel would give something else stays.
func TestDropZerosOnlyWhereTheKernelGivesThem(t *testing.T) {
	m := Memory{Lazy: []Range{{0x10000, 0x20000}}}
	one := make([]byte, PageSize)
	one[PageSize-1] = 1
	for _, c := range []struct {
		at   uint64
		page []byte
		want bool
	}{{0x10000, zeros, true}, {0x1f000, zeros, true}, {0x20000, zeros, false}, {0xf000, zeros, false}, {0x10000, one, false}} {
		if have := m.droppable(c.at, c.page); have != c.want {
			t.Errorf("%#x: %t", c.at, have)
		}
	}
}

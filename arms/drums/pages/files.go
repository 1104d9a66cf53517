package pages

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/engine/record"
	"github.com/drumsbench/drumsbench/engine/wholefile"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// pageFile is one file of pages, mapped. Nothing writes it: a checkpoint is sealed.
type pageFile struct {
	name string
	data []byte
}

// images are a checkpoint's pages; slots of one checkpoint share them.
type images struct {
	dir    string
	memory []criu.Memory
	files  map[string]*pageFile
	users  int
}

func openImages(dir string) (*images, error) {
	im := &images{dir: dir, files: map[string]*pageFile{}}
	var err error
	if im.memory, err = criu.OpenImages(dir).Memory(); err != nil {
		return nil, err
	}
	for _, path := range criu.PageFiles(dir, im.memory) {
		f, err := mapFile(path)
		if err != nil {
			im.close()
			return nil, err
		}
		im.files[f.name] = f
	}
	for _, m := range im.memory {
		for _, r := range m.Runs {
			if end := r.Offset + int64(r.End-r.Start); end > int64(len(im.files[m.File].data)) {
				im.close()
				return nil, fmt.Errorf("map pages: %s ends before the pages at %#x of task %d", m.File, r.Start, m.Pid)
			}
		}
	}
	return im, nil
}

func mapFile(path string) (*pageFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	file := &pageFile{name: filepath.Base(path)}
	if info.Size() == 0 {
		return file, nil // nothing can be mapped of it, and no run lies in it
	}
	if file.data, err = unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return file, nil
}

func (im *images) close() {
	for _, f := range im.files {
		if f.data != nil {
			_ = unix.Munmap(f.data)
		}
	}
}

// lacks are the pages that a task lacks once CRIU made its mappings: those of the images in mappings that are filled lazily.
func (im *images) lacks(m criu.Memory) (list missing) {
	for _, run := range m.Runs {
		whole := piece{Range: run.Range, file: im.files[m.File], off: run.Offset}
		for _, v := range m.Lazy {
			// A copy stays within one mapping.
			if in := overlap(run.Range, v); in.Start < in.End {
				list = append(list, whole.part(in))
			}
		}
	}
	slices.SortFunc(list, func(a, b piece) int { return cmp.Compare(a.Start, b.Start) })
	return list
}

// hole is the shortest range without content that the kernel is told to fill by itself: each one splits a mapping, of which a task may have 65530.
const hole = 16 << 10

// holes of the lazy mappings of a task.
func holes(m criu.Memory, lacks missing) (found []criu.Range) {
	for _, v := range m.Lazy {
		at := v.Start
		for _, p := range append(lacks.within(v), piece{Range: criu.Range{Start: v.End, End: v.End}}) {
			if p.Start-at >= hole {
				found = append(found, criu.Range{Start: at, End: p.Start})
			}
			at = p.End
		}
	}
	return found
}

// workingSet are pages of the images, by file and number of the page in it.
type workingSet map[string]map[int64]bool

func (s workingSet) add(p piece) {
	in := s[p.file.name]
	if in == nil {
		in = map[int64]bool{}
		s[p.file.name] = in
	}
	for at := uint64(0); at < p.End-p.Start; at += criu.PageSize {
		in[(p.off+int64(at))/int64(criu.PageSize)] = true
	}
}

// of a piece are the parts that belong to the set.
func (s workingSet) of(p piece) (parts []piece) {
	in := s[p.file.name]
	for at := p.Start; at < p.End; at += criu.PageSize {
		if !in[(p.off+int64(at-p.Start))/int64(criu.PageSize)] {
			continue
		}
		if n := len(parts); n > 0 && parts[n-1].End == at {
			parts[n-1].End += criu.PageSize
		} else {
			parts = append(parts, p.part(criu.Range{Start: at, End: at + criu.PageSize}))
		}
	}
	return parts
}

func (s workingSet) pages() (n int) {
	for _, in := range s {
		n += len(in)
	}
	return n
}

// write keeps the set where the next restore finds it, whole or not at all.
func (s workingSet) write(path string) error {
	out := bench.WorkingSet{Files: []bench.WorkingSetFile{}}
	for name, in := range s {
		f := bench.WorkingSetFile{File: name, Runs: []bench.PageRun{}}
		numbers := make([]int64, 0, len(in))
		for n := range in {
			numbers = append(numbers, n)
		}
		slices.Sort(numbers)
		for _, n := range numbers {
			if last := len(f.Runs) - 1; last >= 0 && f.Runs[last].First+f.Runs[last].Count == n {
				f.Runs[last].Count++
			} else {
				f.Runs = append(f.Runs, bench.PageRun{First: n, Count: 1})
			}
		}
		out.Files = append(out.Files, f)
	}
	slices.SortFunc(out.Files, func(a, b bench.WorkingSetFile) int { return strings.Compare(a.File, b.File) })
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return wholefile.Write(path, append(b, '\n'), 0o600)
}

// readSet reads a set. Pages that no image has are no harm: a set is a hint, and decides nothing but when a page comes.
func readSet(path string) (workingSet, error) {
	b, err := record.ReadRegular(path)
	if err != nil {
		return nil, err
	}
	var in bench.WorkingSet
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, fmt.Errorf("read working set %s: %w", path, err)
	}
	s := workingSet{}
	total := int64(0)
	for _, f := range in.Files {
		s[f.File] = map[int64]bool{}
		for _, r := range f.Runs {
			if total += r.Count; r.First < 0 || r.Count < 1 || total > maxSet {
				return nil, fmt.Errorf("read working set %s: a run of %d pages at %d", path, r.Count, r.First)
			}
			for n := r.First; n < r.First+r.Count; n++ {
				s[f.File][n] = true
			}
		}
	}
	return s, nil
}

// maxSet bounds what a file can make us hold: 64 GiB of pages.
const maxSet = 16 << 20

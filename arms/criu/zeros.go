package criu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/pagemap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// DropZeros takes the pages out of the images of a dump in dir that hold nothing but zeros, where the kernel gives zeros
// for what is not there: private anonymous memory, neither locked nor of huge pages. It returns how many. A restore
// then leaves them to the kernel, which maps none before somebody writes; CRIU gives back those that a child would
// have had from its parent (restore_priv_vma_content in criu/mem.c). What a task reads stays the same.
//
// It comes before the images are sealed, and reads back what it wrote. A file of pages that several tasks have parts of
// is left as it is.
func DropZeros(dir string) (dropped int, err error) {
	const op = "drop pages of zeros"
	im := OpenImages(dir)
	all, err := im.Memory()
	if err != nil {
		return 0, err
	}
	users := map[string]int{}
	for _, m := range all {
		users[m.File]++
	}
	for _, m := range all {
		if users[m.File] > 1 {
			continue
		}
		n, err := im.dropZeros(dir, m)
		if err != nil {
			return dropped, &engine.Error{Op: op, Err: err}
		}
		dropped += n
	}
	return dropped, nil
}

func (im Images) dropZeros(dir string, m Memory) (dropped int, err error) {
	name := fmt.Sprintf("pagemap-%d.img", m.Pid)
	all, err := im.messages("pagemap", name)
	if err != nil {
		return 0, err
	}
	pages, err := os.Open(filepath.Join(dir, m.File))
	if err != nil {
		return 0, err
	}
	defer pages.Close()
	info, err := pages.Stat()
	if err != nil {
		return 0, err
	}
	temporary := filepath.Join(dir, m.File+".new")
	out, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, out.Close())
		if rerr := os.Remove(temporary); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}()

	head := all[0]
	var kept []*pagemap.PagemapEntry
	var want []PageRun
	next := 0 // of m.Runs, which are the entries that have content, in their order
	offset := int64(0)
	for _, data := range all[1:] {
		e := new(pagemap.PagemapEntry)
		if err := proto.Unmarshal(data, e); err != nil {
			return 0, err
		}
		if e.GetFlags()&pagePresent == 0 {
			kept = append(kept, e)
			continue
		}
		run := m.Runs[next]
		next++
		content := make([]byte, run.End-run.Start)
		if _, err := pages.ReadAt(content, run.Offset); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for at := run.Start; at < run.End; {
			end := at
			for end < run.End && !m.droppable(end, content[end-run.Start:][:PageSize]) {
				end += PageSize
			}
			if end > at {
				kept = append(kept, part(e, at, (end-at)/PageSize))
				want = append(want, PageRun{Range: Range{at, end}, Offset: offset, Lazy: run.Lazy})
				if _, err := out.Write(content[at-run.Start : end-run.Start]); err != nil {
					return 0, err
				}
				offset += int64(end - at)
			}
			for at = end; at < run.End && m.droppable(at, content[at-run.Start:][:PageSize]); at += PageSize {
				dropped++
			}
		}
	}
	if dropped == 0 {
		return 0, nil
	}
	if err := im.writePagemap(dir, name, head, kept); err != nil {
		return 0, err
	}
	if err := os.Rename(temporary, filepath.Join(dir, m.File)); err != nil {
		return 0, err
	}
	back, err := im.memoryOf(m.Pid)
	if err != nil {
		return 0, err
	}
	now, err := os.Stat(filepath.Join(dir, m.File))
	if err != nil {
		return 0, err
	}
	if !equalRuns(back.Runs, want) || back.File != m.File || now.Size() != offset {
		return 0, fmt.Errorf("%w: %s reads back as something else than what was written", engine.ErrUnknown, name)
	}
	return dropped, nil
}

var zeros = make([]byte, PageSize)

// droppable says whether the kernel gives this page by itself.
func (m Memory) droppable(at uint64, page []byte) bool {
	if !bytes.Equal(page, zeros) {
		return false
	}
	for _, r := range m.Lazy {
		if at >= r.Start && at < r.End {
			return true
		}
	}
	return false
}

// part is an entry of a page map for some of its pages.
func part(e *pagemap.PagemapEntry, at, pages uint64) *pagemap.PagemapEntry {
	p := proto.Clone(e).(*pagemap.PagemapEntry)
	p.Vaddr = proto.Uint64(at)
	if e.NrPages != nil {
		p.NrPages = proto.Uint32(uint32(pages))
	}
	if _, wide := wideCount(e); wide {
		var unknown []byte
		unknown = protowire.AppendTag(unknown, 5, protowire.VarintType)
		p.ProtoReflect().SetUnknown(protowire.AppendVarint(unknown, pages))
	}
	return p
}

// writePagemap writes a task's page map anew.
func (im Images) writePagemap(dir, name string, head []byte, entries []*pagemap.PagemapEntry) error {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	data := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, magics["common"]), magics["pagemap"])
	data = append(binary.LittleEndian.AppendUint32(data, uint32(len(head))), head...)
	for _, e := range entries {
		body, err := proto.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(body))), body...)
	}
	return os.WriteFile(path, data, info.Mode().Perm())
}

func equalRuns(a, b []PageRun) bool {
	// Runs that touch each other may have been written as several entries.
	join := func(list []PageRun) (out []PageRun) {
		for _, r := range list {
			if n := len(out); n > 0 && out[n-1].End == r.Start && out[n-1].Lazy == r.Lazy && out[n-1].Offset+int64(out[n-1].End-out[n-1].Start) == r.Offset {
				out[n-1].End = r.End
				continue
			}
			out = append(out, r)
		}
		return out
	}
	a, b = join(a), join(b)
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

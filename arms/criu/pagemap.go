package criu

import (
	"fmt"
	"path/filepath"
	"slices"

	criu_core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// PageSize of the machines that CRIU's images are made and restored on: a checkpoint is of its host's kernel and CPU.
var PageSize = uint64(unix.Getpagesize())

// Flags of an entry of a page map (criu/include/pagemap.h).
const (
	pageInParent = 1 << 0
	pageLazy     = 1 << 1
	pagePresent  = 1 << 2
)

// Range of addresses, [Start, End).
type Range struct{ Start, End uint64 }

// PageRun is a run of pages whose content lies in one piece in the task's file of pages.
type PageRun struct {
	Range
	// Offset of the first page in the file, in bytes.
	Offset int64
	// Lazy: CRIU leaves these pages out where a restore is asked for it.
	Lazy bool
}

// Memory is a task's memory as the images hold it.
type Memory struct {
	Pid int
	// File is the name of the file of pages; several tasks may have parts of one.
	File string
	// Runs by address. What no run holds is zero, or comes from the file that is mapped there.
	Runs []PageRun
	// Lazy are the mappings that a restore with lazy pages registers with userfaultfd: private anonymous memory
	// that is neither locked nor of huge pages (vma_entry_can_be_lazy in criu/include/vma.h).
	Lazy []Range
	// First are ranges that have to be there before anything looks at a restored task from outside: what the kernel
	// reads of another task's memory it does not wait for, so a missing page is an empty command line, and one that
	// ptrace cannot write. They are the main stack, where arguments and environment lie, and what each thread's stack
	// pointer points to.
	First []Range
}

// stackReach is how far below a stack pointer, in bytes, a lock's repair may write: past the red zone of 128 (arms/locks).
const stackReach = 512

// Memory of each living task, in the order of the tree: parents before their children.
func (im Images) Memory() ([]Memory, error) {
	tasks, err := im.tasks()
	if err != nil {
		return nil, err
	}
	var all []Memory
	for _, t := range tasks {
		if t.dead() {
			continue
		}
		m, err := im.memoryOf(t.pid())
		if err != nil {
			return nil, err
		}
		for _, tid := range t.entry.GetThreads() {
			core := t.core
			if int(tid) != t.pid() {
				if core, err = one[criu_core.CoreEntry](im, "core", fmt.Sprintf("core-%d.img", tid)); err != nil {
					return nil, err
				}
			}
			if at := stackPointer(core); at > stackReach {
				m.First = append(m.First, Range{(at - stackReach) &^ (PageSize - 1), at&^(PageSize-1) + PageSize})
			}
		}
		all = append(all, m)
	}
	return all, nil
}

func (im Images) memoryOf(pid int) (Memory, error) {
	m := Memory{Pid: pid}
	maps, err := one[mm.MmEntry](im, "mm", fmt.Sprintf("mm-%d.img", pid))
	if err != nil {
		return m, err
	}
	for _, v := range maps.GetVmas() {
		if canBeLazy(v) {
			m.Lazy = append(m.Lazy, Range{v.GetStart(), v.GetEnd()})
		}
		if v.GetFlags()&unix.MAP_GROWSDOWN != 0 {
			m.First = append(m.First, Range{v.GetStart(), v.GetEnd()})
		}
	}
	name := fmt.Sprintf("pagemap-%d.img", pid)
	all, err := im.messages("pagemap", name)
	if err != nil {
		return m, err
	}
	if len(all) == 0 {
		return m, unknownImage(fmt.Errorf("%s names no file of pages", name))
	}
	var head pagemap.PagemapHead
	if err := proto.Unmarshal(all[0], &head); err != nil {
		return m, unknownImage(fmt.Errorf("decode %s: %w", name, err))
	}
	m.File = fmt.Sprintf("pages-%d.img", head.GetPagesId())
	offset, last := int64(0), uint64(0)
	for _, data := range all[1:] {
		var e pagemap.PagemapEntry
		if err := proto.Unmarshal(data, &e); err != nil {
			return m, unknownImage(fmt.Errorf("decode %s: %w", name, err))
		}
		pages := uint64(e.GetNrPages())
		if many, ok := wideCount(&e); ok {
			pages = many
		}
		run := PageRun{Range: Range{e.GetVaddr(), e.GetVaddr() + pages*PageSize}, Offset: offset, Lazy: e.GetFlags()&pageLazy != 0}
		switch {
		case e.GetInParent() || e.GetFlags()&pageInParent != 0:
			return m, unknownImage(fmt.Errorf("%s: pages at %#x lie in another dump", name, run.Start))
		case run.Start%PageSize != 0 || run.End <= run.Start || run.Start < last:
			return m, unknownImage(fmt.Errorf("%s: a run of %d pages at %#x", name, pages, run.Start))
		}
		last = run.End
		if e.GetFlags()&pagePresent == 0 {
			continue // pages that are zero
		}
		m.Runs = append(m.Runs, run)
		offset += int64(pages * PageSize)
	}
	return m, nil
}

// wideCount is the number of pages as later CRIUs write it, in a field that go-criu does not know: field 5 of
// pagemap_entry (images/pagemap.proto), where the old one is 32 bits wide.
func wideCount(e *pagemap.PagemapEntry) (uint64, bool) {
	rest := e.ProtoReflect().GetUnknown()
	for len(rest) > 0 {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return 0, false
		}
		rest = rest[n:]
		if number == 5 && kind == protowire.VarintType {
			v, n := protowire.ConsumeVarint(rest)
			return v, n > 0
		}
		if n = protowire.ConsumeFieldValue(number, kind, rest); n < 0 {
			return 0, false
		}
		rest = rest[n:]
	}
	return 0, false
}

func canBeLazy(v *vma.VmaEntry) bool {
	const must, mustNot = unix.MAP_ANONYMOUS | unix.MAP_PRIVATE, unix.MAP_LOCKED | unix.MAP_HUGETLB
	return v.GetFlags()&must == must && v.GetFlags()&mustNot == 0 && v.GetStatus()&(vmaVsyscall|vmaVDSO|vmaVVAR) == 0
}

// stackPointer of a thread, 0 where the image does not tell.
func stackPointer(core *criu_core.CoreEntry) uint64 {
	if regs := core.GetThreadInfo().GetGpregs(); regs != nil {
		return regs.GetSp()
	}
	return core.GetTiAarch64().GetGpregs().GetSp()
}

// PageFiles are the absolute paths of the files of pages of a dump in dir, sorted.
func PageFiles(dir string, all []Memory) []string {
	var files []string
	for _, m := range all {
		files = append(files, filepath.Join(dir, m.File))
	}
	slices.Sort(files)
	return slices.Compact(files)
}

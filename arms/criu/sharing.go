package criu

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/vma"
	"google.golang.org/protobuf/proto"

	"github.com/drumsbench/drumsbench/engine"
)

// Sharing is what [KeepSharing] changed in images.
type Sharing struct {
	// Renamed mappings of children now name their file by the parent's number for it; Unmarked ones lost CRIU
	// 4.3's mark of not accountable, without which they are matched with the parent's. Cut ones, of either, are now
	// several that lie against each other.
	Renamed, Unmarked, Cut int
	// Bytes are the sizes of the mappings that were changed, whole, once for each change: how many of their pages are written is not looked at.
	Bytes uint64
}

// KeepSharing corrects the images of a dump in dir, so that a restore finds each private file mapping that a child
// has in common with its parent: the two then share the pages that are equal, copy on write, as they did. CRIU
// compares addresses, flags and the number of the file (check_cow_vmas in criu/mem.c). An inode may have several
// numbers; and a mapping whose protection one of the two changed for a part since the fork is several mappings there
// and one in the other, so that it is cut alike in both: the kernel joins what is alike again. Only mappings of files that are private are touched, never anonymous ones: their mark is what keeps huge
// reservations out of the kernel's accounts. What pages hold is not touched either: CRIU still compares each page and
// copies those that differ.
//
// It comes before the images are sealed, and reads back what it wrote.
func KeepSharing(dir string) (Sharing, error) {
	const op = "keep sharing"
	f, err := OpenImages(dir).files()
	if err != nil {
		return Sharing{}, err
	}
	var done Sharing
	corrected := map[int]bool{}
	change := func(pid int, v *vma.VmaEntry, count *int) {
		corrected[pid] = true
		*count++
		done.Bytes += v.GetEnd() - v.GetStart()
	}
	for pid, maps := range f.maps {
		for _, v := range privateFiles(maps) {
			if v.GetStatus()&vmaNotAccountable != 0 {
				v.Status = proto.Uint32(v.GetStatus() &^ vmaNotAccountable)
				change(pid, v, &done.Unmarked)
			}
		}
	}
	f.cutAlike(func(pid int, v *vma.VmaEntry) { change(pid, v, &done.Cut) })
	for _, t := range f.tasks { // CRIU writes parents before their children
		parents := privateFiles(f.maps[int(t.entry.GetPpid())])
		for _, v := range privateFiles(f.maps[t.pid()]) {
			theirs := parents[v.GetStart()]
			if theirs != nil && theirs.GetEnd() == v.GetEnd() && theirs.GetShmid() != v.GetShmid() && f.same(theirs.GetShmid(), v.GetShmid()) {
				v.Shmid = proto.Uint64(theirs.GetShmid())
				change(t.pid(), v, &done.Renamed)
			}
		}
	}
	for pid := range corrected {
		if err := writeMaps(dir, pid, f.maps[pid]); err != nil {
			return Sharing{}, &engine.Error{Op: op, Err: err}
		}
	}
	return done, nil
}

// privateFiles are a task's private file mappings by where they begin.
func privateFiles(maps *mm.MmEntry) map[uint64]*vma.VmaEntry {
	at := map[uint64]*vma.VmaEntry{}
	for _, v := range maps.GetVmas() {
		if v.GetStatus()&vmaFilePrivate != 0 {
			at[v.GetStart()] = v
		}
	}
	return at
}

// cutAlike cuts private file mappings of parents and children where either has a border in what both map alike.
func (f *files) cutAlike(cut func(pid int, v *vma.VmaEntry)) {
	// A cut is a border that the task's own children and parent are cut at in turn.
	for again := true; again; {
		again = false
		for _, t := range f.tasks {
			parent := int(t.entry.GetPpid())
			for _, side := range [2][2]int{{t.pid(), parent}, {parent, t.pid()}} {
				of, by := f.maps[side[0]], f.maps[side[1]]
				if of == nil || by == nil {
					continue
				}
				var vmas []*vma.VmaEntry
				for _, v := range of.GetVmas() {
					parts := cutAt(v, f.borders(v, by.GetVmas()))
					if len(parts) > 1 {
						cut(side[0], v)
						again = true
					}
					vmas = append(vmas, parts...)
				}
				of.Vmas = vmas
			}
		}
	}
}

// borders are where mappings that are alike begin or end within v, by address.
func (f *files) borders(v *vma.VmaEntry, all []*vma.VmaEntry) (at []uint64) {
	if v.GetStatus()&vmaFilePrivate == 0 {
		return nil
	}
	for _, w := range all {
		if w.GetStatus()&vmaFilePrivate == 0 || w.GetEnd() <= v.GetStart() || w.GetStart() >= v.GetEnd() || w.GetFlags() != v.GetFlags() ||
			w.GetPgoff()-w.GetStart() != v.GetPgoff()-v.GetStart() || w.GetShmid() != v.GetShmid() && !f.same(w.GetShmid(), v.GetShmid()) {
			continue
		}
		for _, x := range []uint64{w.GetStart(), w.GetEnd()} {
			if x > v.GetStart() && x < v.GetEnd() {
				at = append(at, x)
			}
		}
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// cutAt is a file mapping in parts that end at these addresses within it.
func cutAt(v *vma.VmaEntry, at []uint64) []*vma.VmaEntry {
	start, pgoff := v.GetStart(), v.GetPgoff()
	var parts []*vma.VmaEntry
	for _, end := range append(at, v.GetEnd()) {
		part := proto.Clone(v).(*vma.VmaEntry)
		part.Start, part.End, part.Pgoff = proto.Uint64(start), proto.Uint64(end), proto.Uint64(pgoff)
		parts = append(parts, part)
		start, pgoff = end, pgoff+end-start
	}
	return parts
}

// same says whether two numbers of files.img name one regular file that has its name still. Position, owner and
// flags of a descriptor do not matter: a mapping is opened anew, with flags of its own.
func (f *files) same(a, b uint64) bool {
	x, y := f.byID[uint32(a)].GetReg(), f.byID[uint32(b)].GetReg()
	if x == nil || y == nil || f.unlinked[uint32(a)] || f.unlinked[uint32(b)] || x.GetExt() || y.GetExt() || !regular(x) || !regular(y) {
		return false
	}
	return x.GetName() == y.GetName() && x.GetMntId() == y.GetMntId() && x.GetSize() == y.GetSize() && x.GetMode() == y.GetMode()
}

// writeMaps writes mm-PID.img anew and reads it back.
func writeMaps(dir string, pid int, maps *mm.MmEntry) error {
	name := fmt.Sprintf("mm-%d.img", pid)
	body, err := proto.Marshal(maps)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	data := make([]byte, 0, 12+len(body))
	for _, word := range []uint32{magics["common"], magics["mm"], uint32(len(body))} {
		data = binary.LittleEndian.AppendUint32(data, word)
	}
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name), append(data, body...), info.Mode().Perm()); err != nil {
		return err
	}
	back, err := one[mm.MmEntry](OpenImages(dir), "mm", name)
	if err != nil {
		return err
	}
	if !proto.Equal(back, maps) {
		return fmt.Errorf("%w: %s reads back as something else than what was written", engine.ErrUnknown, name)
	}
	return nil
}

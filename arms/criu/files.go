package criu

import (
	"fmt"
	"path"
	"slices"
	"strings"

	criu_core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/memfd"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mnt"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/regfile"
	remap "github.com/checkpoint-restore/go-criu/v7/crit/images/remap-file-path"
	"golang.org/x/sys/unix"
)

// Bits of a mapping's status (criu/include/image.h).
const (
	vmaVsyscall    = 1 << 2
	vmaVDSO        = 1 << 3
	vmaFilePrivate = 1 << 6
	vmaFileShared  = 1 << 7
	vmaVVAR        = 1 << 12
	// vmaNotAccountable: set by CRIU 4.3 on mappings that are not accounted; its restore then matches none with the parent's.
	vmaNotAccountable = 1 << 18
)

// files is what the images say of open files, joined.
type files struct {
	tasks []task
	// byID is files.img: open file descriptions and mapped files, by CRIU's number.
	byID map[uint32]*fdinfo.FileEntry
	// unlinked are the numbers of regular files that had no name any more.
	unlinked map[uint32]bool
	// table is the descriptor table of each living task, by pid; tasks may share one.
	table map[int]map[uint32]*fdinfo.FdinfoEntry
	// maps are the mappings of each living task, by pid.
	maps map[int]*mm.MmEntry
	// mounts of all mount namespaces by id, and the mount that is the root task's root.
	mounts map[uint32]*mnt.MntEntry
	root   *mnt.MntEntry
}

func (im Images) files() (*files, error) {
	f := &files{
		byID: map[uint32]*fdinfo.FileEntry{}, unlinked: map[uint32]bool{},
		table: map[int]map[uint32]*fdinfo.FdinfoEntry{}, maps: map[int]*mm.MmEntry{}, mounts: map[uint32]*mnt.MntEntry{},
	}
	var err error
	if f.tasks, err = im.tasks(); err != nil {
		return nil, err
	}
	all, err := entries[fdinfo.FileEntry](im, "files", "files.img")
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		f.byID[e.GetId()] = e
	}
	remaps, err := optional(entries[remap.RemapFilePathEntry](im, "remap-fpath", "remap-fpath.img"))
	if err != nil {
		return nil, err
	}
	for _, r := range remaps {
		f.unlinked[r.GetOrigId()] = true
	}
	mounts := map[uint32]bool{} // namespaces that were read
	tables := map[uint32]map[uint32]*fdinfo.FdinfoEntry{}
	for _, t := range f.tasks {
		if t.dead() {
			continue
		}
		ids := t.core.GetIds()
		if ids == nil {
			if ids, err = one[criu_core.TaskKobjIdsEntry](im, "ids", fmt.Sprintf("ids-%d.img", t.pid())); err != nil {
				return nil, err
			}
		}
		if tables[ids.GetFilesId()] == nil {
			fds, err := entries[fdinfo.FdinfoEntry](im, "fdinfo", fmt.Sprintf("fdinfo-%d.img", ids.GetFilesId()))
			if err != nil {
				return nil, err
			}
			table := map[uint32]*fdinfo.FdinfoEntry{}
			for _, e := range fds {
				table[e.GetFd()] = e
			}
			tables[ids.GetFilesId()] = table
		}
		f.table[t.pid()] = tables[ids.GetFilesId()]
		if f.maps[t.pid()], err = one[mm.MmEntry](im, "mm", fmt.Sprintf("mm-%d.img", t.pid())); err != nil {
			return nil, err
		}
		if ns := ids.GetMntNsId(); !mounts[ns] {
			mounts[ns] = true
			table, err := entries[mnt.MntEntry](im, "mountpoints", fmt.Sprintf("mountpoints-%d.img", ns))
			if err != nil {
				return nil, err
			}
			for _, m := range table {
				f.mounts[m.GetMntId()] = m
			}
			if f.root == nil {
				f.root = rootMount(table)
			}
		}
	}
	if f.root == nil {
		return nil, unknownImage(fmt.Errorf("no mount table names a root mount"))
	}
	return f, nil
}

// rootMount is the mount that no other of the table is the parent of.
func rootMount(table []*mnt.MntEntry) *mnt.MntEntry {
	ids := map[uint32]bool{}
	for _, m := range table {
		ids[m.GetMntId()] = true
	}
	for _, m := range table {
		if mountPoint(m) == "/" && (!ids[m.GetParentMntId()] || m.GetParentMntId() == m.GetMntId()) {
			return m
		}
	}
	return nil
}

// mountPoint as the slot sees it; CRIU writes it relative to the root.
func mountPoint(m *mnt.MntEntry) string {
	return path.Clean("/" + strings.TrimPrefix(m.GetMountpoint(), "."))
}

// mountOf is the mount that a regular file was opened on: by its id, and without one by its path.
func (f *files) mountOf(reg *regfile.RegFileEntry) (*mnt.MntEntry, error) {
	if id := reg.GetMntId(); id >= 0 {
		if m := f.mounts[uint32(id)]; m != nil {
			return m, nil
		}
		return nil, unknownImage(fmt.Errorf("file %s lies on mount %d, which no table names", reg.GetName(), id))
	}
	name, found := path.Clean("/"+reg.GetName()), f.root
	for _, m := range f.mounts {
		if p := mountPoint(m); within(name, p) && len(p) > len(mountPoint(found)) {
			found = m
		}
	}
	return found, nil
}

func within(name, dir string) bool {
	return dir == "/" || name == dir || strings.HasPrefix(name, dir+"/")
}

// onRoot translates a file to its path on the root file system, also where it was
// opened through a bind mount of it. ok is false for a file of another file system.
func (f *files) onRoot(reg *regfile.RegFileEntry) (name string, ok bool, err error) {
	m, err := f.mountOf(reg)
	if err != nil {
		return "", false, err
	}
	if m.GetRootDev() != f.root.GetRootDev() || m.GetFstype() != f.root.GetFstype() {
		return "", false, nil
	}
	name = path.Clean("/" + reg.GetName())
	if !within(name, mountPoint(m)) {
		return "", false, unknownImage(fmt.Errorf("file %s does not lie on its mount %s", name, mountPoint(m)))
	}
	rest := strings.TrimPrefix(name, mountPoint(m))
	if f.root.GetRoot() != "/" {
		// The root is itself a part of its file system: a bind mount of another part is not below it.
		part, below := strings.CutPrefix(m.GetRoot(), f.root.GetRoot())
		if !below {
			return "", false, nil
		}
		return path.Join("/", part, rest), true, nil
	}
	return path.Join("/", m.GetRoot(), rest), true, nil
}

// CopyUp lists the files of the slot's root file system that must be in its
// upper layer before a restore, as sorted slot paths: each regular file that is
// open for writing, and each one that is mapped shared, read-only or not. Else
// one task may hold the lower inode and another the one that was copied up.
//
// Left out: other file systems (tmpfs, /dev, /proc), files without a name (CRIU
// carries them in its images), memfds.
func (im Images) CopyUp() ([]string, error) {
	f, err := im.files()
	if err != nil {
		return nil, err
	}
	ids := map[uint32]bool{}
	for id, e := range f.byID {
		if flags := e.GetReg().GetFlags() & unix.O_ACCMODE; e.GetReg() != nil && flags != unix.O_RDONLY {
			ids[id] = true
		}
	}
	for pid, maps := range f.maps {
		for _, vma := range maps.GetVmas() {
			if vma.GetStatus()&vmaFileShared == 0 {
				continue
			}
			id := uint32(vma.GetShmid())
			if f.byID[id] == nil {
				return nil, unknownImage(fmt.Errorf("mm-%d.img maps file %#x, which files.img does not name", pid, id))
			}
			ids[id] = true
		}
	}
	var found []string
	for id := range ids {
		reg := f.byID[id].GetReg()
		if reg == nil || f.unlinked[id] || reg.GetExt() || !regular(reg) {
			continue
		}
		name, ok, err := f.onRoot(reg)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// regular says whether a "regular file" of CRIU, which may be a device or a directory, is one. An image without a mode is taken for one.
func regular(reg *regfile.RegFileEntry) bool {
	return reg.Mode == nil || reg.GetMode()&unix.S_IFMT == unix.S_IFREG
}

// memfdName is the name of a memfd as /proc/PID/fd shows it.
func (im Images) memfdName(e *memfd.MemfdFileEntry) (string, error) {
	all, err := entries[memfd.MemfdInodeEntry](im, "memfd", "memfd.img")
	if err != nil {
		return "", err
	}
	for _, inode := range all {
		if inode.GetInodeId() == uint64(e.GetInodeId()) {
			return "/memfd:" + inode.GetName(), nil
		}
	}
	return "", unknownImage(fmt.Errorf("memfd.img does not name inode %d", e.GetInodeId()))
}

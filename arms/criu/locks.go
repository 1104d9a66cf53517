package criu

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"

	filelock "github.com/checkpoint-restore/go-criu/v7/crit/images/file-lock"

	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Kinds and types of a lock in CRIU's image (criu/include/file-lock.h).
const (
	flPosix, flFlock, flOFD, flLease = 1, 2, 4, 8
	typeRead, typeWrite              = 0, 1
)

// HeldLock is one lock of the images, with where to find it.
type HeldLock struct {
	bench.Lock
	// FD is a descriptor of the owner that the lock was found on. Others of the owner may show the same lock.
	FD int
	// Holders are the pids that share an open-file-description lock or a flock, or the owner alone, sorted.
	Holders []int
}

// Locks is the set of locks that was held at the dump, sorted by path, pid,
// type and range: what the restored slot must hold. It is complete only if the
// dump carried file locks; without them CRIU refuses to dump where there is one.
func (im Images) Locks() ([]bench.Lock, error) {
	held, err := im.HeldLocks()
	if err != nil {
		return nil, err
	}
	locks := make([]bench.Lock, len(held))
	for i, h := range held {
		locks[i] = h.Lock
	}
	return locks, nil
}

// HeldLocks is [Images.Locks] with the descriptors.
func (im Images) HeldLocks() ([]HeldLock, error) {
	all, err := optional(entries[filelock.FileLockEntry](im, "filelocks", "filelocks.img"))
	if err != nil {
		return nil, err
	}
	f, err := im.files()
	if err != nil {
		return nil, err
	}
	var held []HeldLock
	for _, e := range all {
		l, err := im.heldLock(f, e)
		if err != nil {
			return nil, err
		}
		held = append(held, l)
	}
	slices.SortFunc(held, compareLocks)
	return slices.CompactFunc(held, func(a, b HeldLock) bool { return a.Lock == b.Lock }), nil
}

func compareLocks(a, b HeldLock) int {
	return cmp.Or(
		cmp.Compare(a.Path, b.Path), cmp.Compare(a.Pid, b.Pid), cmp.Compare(a.Type, b.Type),
		compareNumbers(a.Start, b.Start), compareNumbers(a.End, b.End), cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.FD, b.FD),
	)
}

func compareNumbers(a, b bench.Int64) int {
	x, _ := strconv.ParseInt(string(a), 10, 64) // formatted by heldLock
	y, _ := strconv.ParseInt(string(b), 10, 64)
	return cmp.Compare(x, y)
}

func (im Images) heldLock(f *files, e *filelock.FileLockEntry) (HeldLock, error) {
	pid, fd := int(e.GetPid()), e.GetFd()
	table, ok := f.table[pid]
	if !ok {
		return HeldLock{}, unknownImage(fmt.Errorf("filelocks.img has a lock of task %d, which is not in the tree", pid))
	}
	open := table[uint32(fd)]
	if open == nil {
		return HeldLock{}, unknownImage(fmt.Errorf("filelocks.img has a lock on descriptor %d of task %d, which fdinfo does not name", fd, pid))
	}
	file := f.byID[open.GetId()]
	l := HeldLock{FD: int(fd), Holders: []int{pid}}
	switch {
	case file.GetReg() != nil:
		l.Path = pathtext.Quote(path.Clean("/" + file.GetReg().GetName()))
	case file.GetMemfd() != nil:
		name, err := im.memfdName(file.GetMemfd())
		if err != nil {
			return HeldLock{}, err
		}
		l.Path = pathtext.Quote(name)
	default:
		return HeldLock{}, unknownImage(fmt.Errorf("filelocks.img has a lock of task %d on descriptor %d, which is no file but %s", pid, fd, open.GetType()))
	}
	switch e.GetFlag() {
	case flPosix:
		l.Type = "POSIX"
	case flOFD:
		l.Type = "OFDLCK"
	case flFlock:
		l.Type = "FLOCK"
	case flLease:
		l.Type = "LEASE"
	default:
		return HeldLock{}, unknownImage(fmt.Errorf("filelocks.img has a lock of the unknown kind %d on %s", e.GetFlag(), l.Path))
	}
	switch e.GetType() {
	case typeRead:
		l.Mode = "READ"
	case typeWrite:
		l.Mode = "WRITE"
	default: // a lease that is being broken
		return HeldLock{}, unknownImage(fmt.Errorf("filelocks.img has a lock of the unknown type %d on %s", e.GetType(), l.Path))
	}
	if l.Type == "OFDLCK" || l.Type == "FLOCK" {
		l.Holders = f.holders(open.GetId())
	}
	l.Pid = int64(l.Holders[0])
	end := int64(-1)
	if e.GetLen() > 0 {
		end = e.GetStart() + e.GetLen() - 1
	}
	l.Start, l.End = number(e.GetStart()), number(end)
	l.Mapped = f.mapped(pid, open.GetId())
	return l, nil
}

func number(n int64) bench.Int64 { return bench.Int64(strconv.FormatInt(n, 10)) }

// holders of an open file description, sorted; never empty for one of a table.
func (f *files) holders(id uint32) []int {
	var pids []int
	for pid, table := range f.table {
		for _, e := range table {
			if e.GetId() == id {
				pids = append(pids, pid)
				break
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// mapped says whether a task maps the file, private or shared: CRIU's restorer
// closes a descriptor of each mapped file, and with it drops the task's POSIX
// locks on it (mechanisms, EXP-009). The same file may be there under another
// number, so mount and path are compared.
func (f *files) mapped(pid int, id uint32) bool {
	locked := f.byID[id].GetReg()
	for _, vma := range f.maps[pid].GetVmas() {
		if vma.GetStatus()&(vmaFilePrivate|vmaFileShared) == 0 {
			continue
		}
		if uint32(vma.GetShmid()) == id {
			return true
		}
		reg := f.byID[uint32(vma.GetShmid())].GetReg()
		if locked != nil && reg != nil && reg.GetName() == locked.GetName() && reg.GetMntId() == locked.GetMntId() {
			return true
		}
	}
	return false
}

// Package locks reads the file locks of a slot and puts back those that a
// restore has lost. It exists because of EXP-009: CRIU sets POSIX locks before
// it opens and closes the files behind memory mappings, and closing any
// descriptor of a file drops all of the process's POSIX locks on it: every such
// lock on a mapped file is gone after a restore that returned 0.
//
// What always holds: nothing counts as restored before a census has shown it; a
// task that was touched is left as it was found, stopped, with its registers,
// signal mask and memory, or it is killed; no task runs an instruction of its
// own meanwhile.
package locks

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/engine/pathtext"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Holder is a descriptor that a lock shows on.
type Holder struct {
	// Pid is the host's number of the process, Inner the slot's.
	Pid, Inner, FD int
}

// Census lists the locks of the slot whose pid 1 is initPid on the host, sorted,
// and for each the descriptors that hold it, lowest inner pid first. It changes
// nothing. Of a running tree it is true for no instant; the truth is had while
// the tree is stopped.
//
// Whose a lock is:
//
//	POSIX            the process that took it; one lock, however many duplicates of the descriptor show it
//	OFDLCK, FLOCK,   an open file description; the lowest inner pid that holds it stands for all. Equal locks
//	LEASE            of two descriptions (two shared flocks) are two entries
func Census(initPid int) ([]bench.Lock, [][]Holder, error) {
	fail := func(err error) ([]bench.Lock, [][]Holder, error) {
		return nil, nil, fmt.Errorf("read locks of slot: %w", err)
	}
	tasks, err := procfs.Tasks(initPid)
	if err != nil {
		return fail(err)
	}
	locks, holders, err := census(initPid, tasks, func(procfs.Task) bool { return true }, nil)
	if err != nil {
		return fail(err)
	}
	return locks, holders, nil
}

// missing are the wanted locks that a slot's stopped tree lacks. It looks at the
// processes that are to hold them, at their descriptors of the locks' files, and at
// no others: what else is held it does not say.
func missing(initPid int, tasks []procfs.Task, wanted []bench.Lock) ([]bench.Lock, error) {
	owners := map[int64]bool{}
	for _, l := range wanted {
		owners[l.Pid] = true
	}
	have, _, err := census(initPid, tasks, func(t procfs.Task) bool { return owners[int64(t.Inner)] }, paths(wanted))
	if err != nil {
		return nil, fmt.Errorf("read locks of slot: %w", err)
	}
	lacking, _ := Diff(wanted, have)
	return lacking, nil
}

// paths are those of locks, as Describe and records have them.
func paths(list []bench.Lock) map[string]bool {
	of := map[string]bool{}
	for _, l := range list {
		of[l.Path] = true
	}
	return of
}

// census reads the locks of those of the slot's processes that are meant, on files of these paths alone; nil is on
// all, and only then it says which are of mapped files.
func census(initPid int, tasks []procfs.Task, meant func(procfs.Task) bool, paths map[string]bool) ([]bench.Lock, [][]Holder, error) {
	inner := map[int]int{}
	for _, t := range tasks {
		inner[t.Pid] = t.Inner
	}
	// Each process is looked at by itself: the kernel's files of one say nothing of another.
	each := make([][]held, len(tasks))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, t := range tasks {
		if !meant(t) {
			continue
		}
		group.Go(func() (err error) {
			each[i], err = ofTask(t, inner, paths)
			if errors.Is(err, engine.ErrDead) && t.Pid != initPid {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	var found []held
	var err error
	for _, own := range each {
		for _, h := range own {
			if found, err = merge(found, h); err != nil {
				return nil, nil, err
			}
		}
	}
	slices.SortStableFunc(found, func(a, b held) int { return compare(a.lock(), b.lock()) })
	locks, holders := []bench.Lock{}, [][]Holder{}
	for _, h := range found {
		locks = append(locks, h.lock())
		holders = append(holders, h.holders)
	}
	return locks, holders, nil
}

// ofTask are the locks that one process holds, of census.
func ofTask(t procfs.Task, inner map[int]int, paths map[string]bool) (own []held, err error) {
	fds, err := procfs.DescriptorsOf(t, func(link string) bool { return paths == nil || paths[pathtext.Quote(link)] })
	if err != nil {
		return nil, err
	}
	for _, d := range fds {
		for _, l := range d.Info.Locks {
			mine, err := belongs(l, t, inner)
			if err != nil {
				return nil, err
			}
			if mine {
				own = append(own, held{line: l, path: d.Link, holders: []Holder{{d.Pid, d.Inner, d.FD}}})
			}
		}
	}
	if paths != nil {
		return own, nil
	}
	return own, markMapped(t, own)
}

// held is a lock line with who holds it.
type held struct {
	line    observe.FileLock
	path    string
	mapped  bool
	holders []Holder
}

func (h held) lock() bench.Lock {
	return bench.Lock{
		Path: pathtext.Quote(h.path), Pid: int64(h.holders[0].Inner), Type: h.line.Type, Mode: h.line.Mode, Mapped: h.mapped,
		Start: bench.Int64(strconv.FormatInt(h.line.Start, 10)), End: bench.Int64(strconv.FormatInt(h.line.End, 10)),
	}
}

// belongs says whether a lock that shows on a task's descriptor is the task's:
// the kernel shows a POSIX lock to its owner alone, whose pid it bears. Another
// pid is that of a process which shares its whole table of descriptors with the
// task: the lock is told of the one that took it, or of the task once that one
// is gone.
func belongs(l observe.FileLock, t procfs.Task, inner map[int]int) (bool, error) {
	if l.Type != observe.LockPOSIX || l.Pid == t.Pid {
		return true, nil
	}
	if _, ok := inner[l.Pid]; ok {
		return false, nil
	}
	if l.Pid <= 0 {
		return false, fmt.Errorf("%w: the owner of a lock that pid %d shows is not visible", engine.ErrUnknown, t.Inner)
	}
	_, err := procfs.Identity(l.Pid)
	if errors.Is(err, engine.ErrDead) {
		return true, nil
	}
	if err == nil {
		err = fmt.Errorf("%w: pid %d shares its descriptors with host pid %d, outside the slot", engine.ErrUnknown, t.Inner, l.Pid)
	}
	return false, err
}

// merge adds a lock to those that were found, or a holder to one of them.
func merge(found []held, h held) ([]held, error) {
	for i := range found {
		f := &found[i]
		a, b := f.line, h.line
		a.ID, b.ID = 0, 0
		if a != b {
			continue
		}
		same := f.holders[0].Pid == h.holders[0].Pid
		if h.line.Type != observe.LockPOSIX {
			var err error
			x, y := f.holders[0], h.holders[0]
			if same, err = procfs.SameFile(x.Pid, x.FD, y.Pid, y.FD); err != nil {
				if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH) {
					continue // closed meanwhile
				}
				return nil, err
			}
		}
		if same {
			f.holders = append(f.holders, h.holders...)
			f.mapped = f.mapped || h.mapped
			return found, nil
		}
	}
	return append(found, h), nil
}

// markMapped sets mapped on the locks of one process.
func markMapped(t procfs.Task, own []held) error {
	if len(own) == 0 {
		return nil
	}
	files, err := procfs.MappedFiles(t.Pid)
	if err != nil {
		return err
	}
	for i, h := range own {
		own[i].mapped = slices.ContainsFunc(files, func(m procfs.MappedFile) bool {
			return m.Dev == h.line.Dev && m.Ino == h.line.Ino || m.Path == h.path
		})
	}
	return nil
}

// key is what makes two locks one: everything but what a restore may change.
func key(l bench.Lock) bench.Lock {
	l.Mapped = false
	return l
}

func compare(a, b bench.Lock) int {
	number := func(n bench.Int64) int64 { v, _ := strconv.ParseInt(string(n), 10, 64); return v }
	return cmp.Or(
		cmp.Compare(a.Pid, b.Pid), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Type, b.Type),
		cmp.Compare(number(a.Start), number(b.Start)), cmp.Compare(number(a.End), number(b.End)), cmp.Compare(a.Mode, b.Mode),
	)
}

// Diff compares two censuses by slot path, inner pid, type, mode and range;
// equal locks are counted. Both results are sorted and never nil. A lock whose
// mode or range differs is both missing and extra.
func Diff(wanted, have []bench.Lock) (missing, extra []bench.Lock) {
	count := map[bench.Lock]int{}
	for _, l := range have {
		count[key(l)]++
	}
	missing, extra = []bench.Lock{}, []bench.Lock{}
	for _, l := range wanted {
		if count[key(l)]--; count[key(l)] < 0 {
			missing = append(missing, l)
		}
	}
	// What is left over after the wanted ones were taken away.
	for _, l := range have {
		if count[key(l)] > 0 {
			count[key(l)]--
			extra = append(extra, l)
		}
	}
	slices.SortFunc(missing, compare)
	slices.SortFunc(extra, compare)
	return missing, extra
}

package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Task is one process (task group) of a slot.
type Task struct {
	// Pid is the host's number, Inner the one in the slot's pid namespace.
	Pid, Inner int
	// Parent, Group and Session are numbers in the slot's pid namespace; 0 is outside it.
	Parent, Group, Session int
	// HostParent is the host's number of the parent.
	HostParent int
	// Nested is true in a pid namespace below the slot's; Inner is still the slot's number.
	Nested bool
	Status observe.Status
}

// Zombie says that the process has ended and holds nothing but its number.
func (t Task) Zombie() bool { return t.Status.State == 'Z' && t.Status.Threads <= 1 }

// Tasks lists the processes in the pid namespace of the slot whose pid 1 is
// initPid on the host, nested namespaces included, sorted by inner pid. It
// finds processes that joined from outside, too. engine.ErrDead if the slot's
// pid 1 is gone or became another process meanwhile; engine.ErrRefused if
// initPid is the pid 1 of no namespace.
func Tasks(initPid int) ([]Task, error) {
	tasks, _, _, err := census(initPid)
	return tasks, err
}

// census splits the processes of the host into those of the slot and the pids of
// the others. hidden is engine.ErrUnknown if there is one that is certainly not in
// the slot but may hold things of it, and the kernel does not let us look.
func census(initPid int) (tasks []Task, others []int, hidden, err error) {
	fail := func(err error) ([]Task, []int, error, error) {
		return nil, nil, nil, fmt.Errorf("list processes of slot: %w", err)
	}
	id, err := Identity(initPid)
	if err != nil {
		return fail(err)
	}
	level, err := levelOf(initPid)
	if err != nil {
		return fail(err)
	}
	slot, err := NamespaceOf(initPid, "pid")
	if err != nil {
		return fail(err)
	}
	pids, err := numbers(root)
	if err != nil {
		return fail(err)
	}
	kernel, err := kernelThreads()
	if err != nil {
		return fail(err)
	}
	known := lineage{slot: true}
	for _, pid := range pids {
		if kernel[pid] {
			others = append(others, pid)
			continue
		}
		in, err := known.holds(pid)
		if errors.Is(err, engine.ErrDead) {
			continue
		}
		if errors.Is(err, fs.ErrPermission) {
			inside, err := guarded(pid, level, id)
			if inside {
				return fail(err)
			}
			hidden = errors.Join(hidden, err)
			continue
		}
		if err != nil {
			return fail(err)
		}
		if !in {
			others = append(others, pid)
			continue
		}
		task, err := taskAt(pid, level)
		if errors.Is(err, engine.ErrDead) {
			continue
		}
		if err != nil {
			return fail(err)
		}
		tasks = append(tasks, task)
	}
	related(tasks)
	if err := still(id); err != nil {
		return fail(err)
	}
	return tasks, others, hidden, nil
}

// Tree lists the slot's first process and all that descend from it, as Tasks does
// but without those that joined from outside, by the kernel's own lists of children
// (CONFIG_PROC_CHILDREN, which CRIU needs too): it looks at no process of another.
// Of a tree that does not stand still it may lack some. Errors as Tasks.
func Tree(initPid int) ([]Task, error) {
	fail := func(err error) ([]Task, error) { return nil, fmt.Errorf("list process tree of slot: %w", err) }
	id, err := Identity(initPid)
	if err != nil {
		return fail(err)
	}
	level, err := levelOf(initPid)
	if err != nil {
		return fail(err)
	}
	var tasks []Task
	seen := map[int]bool{}
	for pids := []int{initPid}; len(pids) > 0; pids = pids[1:] {
		pid := pids[0]
		if seen[pid] { // its parent ended meanwhile, and it is another's child
			continue
		}
		seen[pid] = true
		task, err := taskAt(pid, level)
		var below []int
		if err == nil {
			below, err = children(pid)
		}
		if errors.Is(err, engine.ErrDead) && pid != initPid {
			continue
		}
		if err != nil {
			return fail(err)
		}
		tasks = append(tasks, task)
		pids = append(pids, below...)
	}
	related(tasks)
	if err := still(id); err != nil {
		return fail(err)
	}
	return tasks, nil
}

// First is the slot's first process alone. Errors as Tasks.
func First(initPid int) (Task, error) {
	level, err := levelOf(initPid)
	if err != nil {
		return Task{}, err
	}
	return taskAt(initPid, level)
}

// kthreadd is the parent of the kernel's own threads, number 2 of the first pid
// namespace (init/main.c, rest_init); elsewhere number 2 is anything.
const kthreadd = 2

// isKernelThread is PF_KTHREAD of include/linux/sched.h.
const isKernelThread = 0x00200000

// kernelThreads are the children of kthreadd: the kernel's threads, which are most
// of the processes of a host with many processors, and programs that the kernel
// starts. All of them are born into the first pid namespace (kernel/kthread.c,
// kernel/umh.c), and none leaves it: their namespaces need no look. None where the
// first namespace is not ours.
func kernelThreads() (map[int]bool, error) {
	st, err := stat(kthreadd)
	if errors.Is(err, engine.ErrDead) || err == nil && (st.Flags&isKernelThread == 0 || st.PPID != 0) {
		return nil, nil
	}
	var pids []int
	if err == nil {
		pids, err = children(kthreadd)
	}
	if err != nil {
		return nil, fmt.Errorf("list kernel threads: %w", err)
	}
	threads := make(map[int]bool, len(pids))
	for _, pid := range pids {
		threads[pid] = true
	}
	return threads, nil
}

// children are those of all threads of a process.
func children(pid int) ([]int, error) {
	tids, err := Threads(pid)
	if err != nil {
		return nil, err
	}
	dir, err := unix.Open(filepath.Join(root, strconv.Itoa(pid), "task"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone(pid, err)
	}
	defer unix.Close(dir)
	var pids []int
	buf := make([]byte, 1<<10)
	for _, tid := range tids {
		text, err := readAt(dir, strconv.Itoa(tid)+"/children", &buf)
		if vanished(err) && tid != pid {
			continue
		}
		if err != nil {
			return nil, gone(pid, err)
		}
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				return nil, fmt.Errorf("read children of pid %d: %w", pid, err)
			}
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// levelOf is how deep the pid namespace lies of which the process is number 1, which it must be.
func levelOf(initPid int) (int, error) {
	status, err := observe.ReadStatus(os.DirFS(root), initPid)
	if err != nil {
		return 0, gone(initPid, err)
	}
	level := len(status.NSpid) - 1
	if status.NSpid[level] != 1 {
		return 0, fmt.Errorf("%w: pid %d is pid %d of its namespace, not 1", engine.ErrRefused, initPid, status.NSpid[level])
	}
	return level, nil
}

// taskAt is a process with its numbers at a level of pid namespaces; engine.ErrDead if it is gone.
func taskAt(pid, level int) (Task, error) {
	st, err := observe.ReadStatus(os.DirFS(root), pid)
	if err != nil {
		return Task{}, gone(pid, err)
	}
	if len(st.NSpid) <= level {
		return Task{}, fmt.Errorf("%w: pid %d is in the slot's pid namespace but has no number there", engine.ErrUnknown, pid)
	}
	return Task{
		Pid: pid, Inner: st.NSpid[level], Group: st.NSpgid[level], Session: st.NSsid[level],
		HostParent: st.PPid, Nested: len(st.NSpid) > level+1, Status: st,
	}, nil
}

// related sets the parents of all that are listed, and sorts them.
func related(tasks []Task) {
	inner := make(map[int]int, len(tasks))
	for _, t := range tasks {
		inner[t.Pid] = t.Inner
	}
	for i := range tasks {
		tasks[i].Parent = inner[tasks[i].HostParent]
	}
	slices.SortFunc(tasks, func(a, b Task) int { return a.Inner - b.Inner })
}

// still requires that the slot's first process is the one that it was; engine.ErrDead if not.
func still(id bench.Identity) error {
	alive, err := Alive(id)
	if err == nil && !alive {
		err = fmt.Errorf("pid %d: %w", id.Pid, engine.ErrDead)
	}
	return err
}

// guarded judges a process that the kernel does not let us look into, such as a
// container's own init with more capabilities than ours. Without a number at the
// slot's level it is in no pid namespace of the slot (inside is false); if it is
// older than the slot too, it has inherited nothing from it. Anything else is
// engine.ErrUnknown.
func guarded(pid, level int, slot bench.Identity) (inside bool, err error) {
	id, err := Identity(pid)
	if errors.Is(err, engine.ErrDead) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	st, err := observe.ReadStatus(os.DirFS(root), pid)
	if vanished(err) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	born, err1 := strconv.ParseUint(string(id.StartTicks), 10, 64)
	made, err2 := strconv.ParseUint(string(slot.StartTicks), 10, 64)
	inside = len(st.NSpid) > level
	if err1 != nil || err2 != nil || inside || born >= made {
		err = fmt.Errorf("%w: pid %d (%s) may not be inspected", engine.ErrUnknown, pid, st.Name)
	}
	return inside, err
}

// Processes lists the slot's processes as the record keeps them, sorted by
// inner pid, and the host's pid of each inner one. exe and cwd are the slot's
// own paths: the kernel prints a path of another mount namespace from that
// namespace's root (d_path in fs/d_path.c), whatever a process has chrooted to.
// A zombie has neither argv, exe nor cwd.
func Processes(initPid int) ([]bench.Process, map[int]int, error) {
	tasks, err := Tasks(initPid)
	if err != nil {
		return nil, nil, err
	}
	processes := []bench.Process{}
	hosts := map[int]int{}
	for _, t := range tasks {
		p, err := process(t)
		if errors.Is(err, engine.ErrDead) && t.Pid != initPid {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list processes of slot: %w", err)
		}
		processes = append(processes, p)
		hosts[t.Inner] = t.Pid
	}
	return processes, hosts, nil
}

func process(t Task) (bench.Process, error) {
	p := bench.Process{
		Pid: int64(t.Inner), Parent: int64(t.Parent), Group: int64(t.Group), Session: int64(t.Session),
		Argv: []string{}, Uids: t.Status.Uids[:], Gids: t.Status.Gids[:], Groups: t.Status.Groups,
		Threads: int64(t.Status.Threads),
	}
	if t.Zombie() {
		return p, nil
	}
	proc, err := prom.NewProc(t.Pid)
	if err != nil {
		return p, gone(t.Pid, err)
	}
	argv, err := proc.CmdLine()
	if err != nil {
		return p, gone(t.Pid, err)
	}
	p.Argv = append(p.Argv, argv...)
	for name, to := range map[string]*string{"exe": &p.Exe, "cwd": &p.Cwd} {
		if *to, err = os.Readlink(filepath.Join(root, strconv.Itoa(t.Pid), name)); err != nil {
			return p, gone(t.Pid, err)
		}
	}
	return p, nil
}

// Threads lists the host's thread numbers of a process, sorted. engine.ErrDead if it is gone.
func Threads(pid int) ([]int, error) {
	tids, err := numbers(filepath.Join(root, strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, gone(pid, err)
	}
	return tids, nil
}

// numbers lists the entries of a directory whose names are numbers, sorted.
func numbers(dir string) ([]int, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, err
}

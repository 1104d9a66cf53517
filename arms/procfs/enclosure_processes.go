package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// enclosure is one check of one slot.
type enclosure struct {
	init     int
	options  Options
	tasks    []Task
	others   []int
	proc     fs.FS
	byPid    map[int]Task
	fds      []Descriptor
	outside  *outside
	networks map[Namespace]*os.File
	findings []bench.Finding
}

const (
	hintJoin    = "start every program as a descendant of the slot's pid 1, not by nsenter or setns"
	hintSession = "call setsid in the slot's pid 1 before it starts anything (case 8)"
)

func (e *enclosure) checkProcesses() error {
	for _, t := range e.tasks {
		if from, ok := e.descends(t); !ok {
			e.add(t.subject(), fmt.Sprintf("is no descendant of the slot's pid 1: it came in through %s", e.stranger(from)), hintJoin)
		}
		if t.Session == 0 {
			e.add(t.subject(), "its session leader is outside the slot's pid namespace", hintSession)
		}
		if t.Group == 0 {
			e.add(t.subject(), "its process group leader is outside the slot's pid namespace", hintSession)
		}
		if t.Status.State == 'Z' && !t.Zombie() {
			e.add(t.subject(), "its first thread has exited and other threads live on", "CRIU cannot dump such a process: end it")
		}
		tids, err := Threads(t.Pid)
		if errors.Is(err, engine.ErrDead) && t.Pid != e.init {
			continue
		}
		if err != nil {
			return err
		}
		for _, tid := range tids {
			st, err := observe.ReadStatus(e.proc, tid)
			if vanished(err) {
				continue
			}
			if err != nil {
				return err
			}
			if st.TracerPid == 0 {
				continue
			}
			tracerPid := st.TracerPid // a thread's number
			if ts, err := observe.ReadStatus(e.proc, tracerPid); err == nil {
				tracerPid = ts.Tgid
			}
			if tracerPid == e.options.Tracer {
				continue
			}
			by := e.stranger(tracerPid)
			if tracer, ok := e.byPid[tracerPid]; ok {
				by = "its neighbour " + tracer.subject()
			}
			e.add(t.subject(), fmt.Sprintf("thread %d is traced by %s", st.NSpid[len(st.NSpid)-1], by), "detach the debugger: CRIU must trace it itself")
		}
	}
	return nil
}

// descends says whether a task's parents lead to the slot's pid 1, and if not from where it came in.
func (e *enclosure) descends(t Task) (from int, ok bool) {
	for range len(e.tasks) + 1 {
		if t.Pid == e.init {
			return 0, true
		}
		parent, ok := e.byPid[t.HostParent]
		if !ok {
			return t.HostParent, false
		}
		t = parent
	}
	return t.HostParent, false
}

// isolated are the namespaces that a slot has for its own.
var isolated = []string{"mnt", "net", "ipc", "uts"}

func (e *enclosure) checkNamespaces() error {
	for _, kind := range isolated {
		ours := map[Namespace][]Task{}
		for _, t := range e.tasks {
			if t.Zombie() {
				continue
			}
			ns, err := NamespaceOf(t.Pid, kind)
			if errors.Is(err, engine.ErrDead) && t.Pid != e.init {
				continue
			}
			if err != nil {
				return err
			}
			ours[ns] = append(ours[ns], t)
		}
		home, err := NamespaceOf(e.init, kind)
		if err != nil {
			return err
		}
		self, err := namespace(filepath.Join(root, "thread-self", "ns", kind))
		if err != nil {
			return err
		}
		for ns, tasks := range ours {
			if ns != self {
				continue
			}
			for _, t := range tasks {
				e.add(t.subject(), fmt.Sprintf("is in the host's %s namespace", kind), "give the slot its own "+kind+" namespace and start nothing outside it")
			}
		}
		for _, pid := range e.others {
			ns, err := NamespaceOf(pid, kind)
			if errors.Is(err, engine.ErrDead) {
				continue
			}
			if err != nil {
				return err
			}
			tasks, shared := ours[ns]
			if !shared || ns == self || kind == "net" && slices.Contains(e.options.Holders, pid) {
				continue
			}
			if ns == home {
				e.add(e.stranger(pid), fmt.Sprintf("is outside the slot but in its %s namespace", kind), hintJoin)
				continue
			}
			for _, t := range tasks {
				e.add(t.subject(), fmt.Sprintf("shares its %s namespace with %s", kind, e.stranger(pid)), hintJoin)
			}
		}
	}
	return nil
}

func (e *enclosure) readDescriptors() error {
	for _, t := range e.tasks {
		if t.Status.State == 'Z' {
			continue // a dead leader with live threads has its finding already
		}
		fds, err := Descriptors(t)
		if errors.Is(err, engine.ErrDead) && t.Pid != e.init {
			continue
		}
		if err != nil {
			return err
		}
		e.fds = append(e.fds, fds...)
	}
	var err error
	e.outside, err = scanOutside(e.others)
	return err
}

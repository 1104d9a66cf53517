package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Observe implements engine.Slot.
func (s *slot) Observe(_ context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.observe(engine.ViewHost, aspects)
}

// Observe implements engine.Stopped.
func (s *stopped) Observe(_ context.Context, aspects ...engine.Aspect) engine.Observation {
	return s.observe(engine.ViewStopped, aspects)
}

func (p *place) observe(view bench.View, aspects []engine.Aspect) engine.Observation {
	p.mu.Lock()
	t := p.now
	p.mu.Unlock()
	if t == nil || t.Pid == 0 {
		return engine.Unobserved(view, aspects, "the slot is dead: it has no tree")
	}
	return p.tree(t).Observe(view, aspects)
}

// strays names processes that are in the container's control groups and not in
// its tree, as runc exec leaves them: runc's checkpoint loses them without a word.
func (p *place) strays(t *tenancy) ([]bench.Finding, error) {
	tasks, err := procfs.Tasks(t.Pid)
	if err != nil {
		return nil, err
	}
	ours := map[int]bool{}
	for _, task := range tasks {
		ours[task.Pid] = true
	}
	inside, err := p.holding(t).Pids()
	if err != nil {
		return nil, err
	}
	for _, file := range t.Limits.Dirs() {
		pids, err := members(file)
		if err != nil {
			return nil, err
		}
		inside = append(inside, pids...)
	}
	if err := named(inside); err != nil {
		return nil, err
	}
	slices.Sort(inside)
	found := []bench.Finding{}
	for _, pid := range slices.Compact(inside) {
		if ours[pid] {
			continue
		}
		id, err := procfs.Identity(pid)
		if errors.Is(err, engine.ErrDead) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if alive, err := procfs.Alive(id); err != nil {
			return nil, err
		} else if !alive {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		found = append(found, bench.Finding{Verdict: engine.Fail, Subject: fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name))),
			Text: "is in the container's control group and not in its tree: a checkpoint would lose it", Want: "a descendant of the slot's first process",
			Hint: "start programs through the guest server, not with runc exec, and end this one"})
	}
	return found, nil
}

// named requires that each member of a control group has a number here: the kernel
// shows 0 for a process of a pid namespace that is not below ours.
func named(pids []int) error {
	if slices.Contains(pids, 0) {
		return fmt.Errorf("%w: the container's control groups hold a process that has no pid here", engine.ErrUnknown)
	}
	return nil
}

// members reads a cgroup.procs file.
func members(file string) ([]int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("%s holds %q", file, f)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// memory is the slot's memory, and beside it that of the holder of its network
// namespace and of the program that serves the image's blocks, where there is one.
func (p *place) memory(t *tenancy) engine.Reading[engine.Memory] {
	r := procfs.SlotMemory(t.Pid)
	m, known := r.Get()
	if !known {
		return r
	}
	if p.holder != nil {
		dirty, cpu, err := p.holder.Memory()
		if err == nil {
			m.HarnessCPU = cpu
			m.HarnessLife, err = p.holder.Life()
		}
		if err != nil {
			return engine.Unknown[engine.Memory]("memory and CPU time of the network namespace's holder: "+err.Error(), engine.ViewHost)
		}
		m.Harness += dirty
	}
	return tree.WithServers(engine.Known(m, r.Source(), engine.ViewHost), p.arm.settings.Attach, p.arm.groups.Tools)
}

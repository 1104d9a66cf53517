package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"

	"github.com/drumsbench/drumsbench/engine"
)

// The file that bounds swap, and what is said where there is none.
const (
	v2SwapLimit = "memory.swap.max"
	v2NoSwap    = "the kernel accounts no swap: " + v2SwapLimit + " is missing (boot with swapaccount=1)"
)

// makeV2 makes the limits as a child of the slot's ownership Group, so that
// killing the Group ends them too. The Group then holds no process itself.
func makeV2(ws *engine.Workspace, owner *Owner, slot, name string) (*Limits, error) {
	l := &Limits{kernel: v2{}, places: map[string]place{}}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	g, err := owner.group(slot)
	if err != nil {
		return l, err
	}
	err = owner.delegate([]string{controllerCPU, controllerMemory, controllerPids}, owner.node.path, g.path)
	if err != nil {
		return l, err
	}
	h := owner.at.v2
	dir := filepath.Join(g.path, name)
	rel, err := filepath.Rel(h.dir(), dir)
	if err != nil {
		return l, err
	}
	n, err := makeNode(ws.Ledger, owner.mkdir, dir, "limits of "+slot)
	if err != nil {
		return l, err
	}
	l.nodes = []*node{n}
	l.places[""] = place{dir: dir, mount: h.mount, path: filepath.Join(h.path, rel)}
	if l.dir, err = os.Open(dir); err != nil {
		return l, err
	}
	if _, err := os.Lstat(filepath.Join(dir, v2SwapLimit)); err != nil {
		l.noSwap = v2NoSwap
	}
	return l, nil
}

type v2 struct{}

func (v2) set(l *Limits, b bounds) error {
	p := l.places[""]
	group, err := filepath.Rel(p.mount, p.dir)
	if err != nil {
		return err
	}
	m, err := cgroup2.Load("/"+group, cgroup2.WithMountpoint(p.mount))
	if err != nil {
		return err
	}
	period := uint64(cfsPeriod / time.Microsecond)
	quota := int64(b.vcpus) * int64(period)
	r := &cgroup2.Resources{
		CPU:    &cgroup2.CPU{Max: cgroup2.NewCPUMax(&quota, &period)},
		Memory: &cgroup2.Memory{Max: &b.memory, Swap: &b.swap},
		Pids:   &cgroup2.Pids{Max: b.pids},
	}
	if l.noSwap != "" {
		r.Memory.Swap = nil
	}
	return m.Update(r)
}

func (v2) vcpus(dir string) (float64, error) {
	text, err := read(dir, "cpu.max")
	if err != nil {
		return 0, err
	}
	quota, period, _ := strings.Cut(text, " ")
	if quota == "max" {
		return unlimited, nil
	}
	q, errQ := strconv.ParseFloat(quota, 64)
	p, errP := strconv.ParseFloat(period, 64)
	if errQ != nil || errP != nil || p <= 0 {
		return 0, fmt.Errorf("%w: %s/cpu.max reads %q", engine.ErrUnknown, dir, text)
	}
	return q / p, nil
}

func (v2) memory(dir string) (int64, error) { return readMax(dir, "memory.max") }

func (v2) swap(dir string) (int64, error) { return readMax(dir, "memory.swap.max") }

func (v2) swapWithMemory() bool { return false }

func (v2) pids(dir string) (int64, error) { return readMax(dir, "pids.max") }

func (v2) files() string { return "cpu.max, memory.max, " + v2SwapLimit + ", pids.max" }

func (v2) usage(l *Limits) Usage {
	dir := l.places[""].dir
	return Usage{
		Memory:     counter(dir, "memory.current", parseInt),
		MemoryPeak: counter(dir, "memory.peak", parseInt),
		CPU: counter(dir, "cpu.stat", func(text string) (time.Duration, error) {
			for _, line := range strings.Split(text, "\n") {
				if k, v, _ := strings.Cut(line, " "); k == "usage_usec" {
					n, err := parseInt(v)
					return time.Duration(n) * time.Microsecond, err
				}
			}
			return 0, fmt.Errorf("%w: cpu.stat has no usage_usec", engine.ErrUnknown)
		}),
	}
}

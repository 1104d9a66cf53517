package tree

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/drumsbench/drumsbench/arms/confine"
	"github.com/drumsbench/drumsbench/arms/criu"
	"github.com/drumsbench/drumsbench/arms/locks"
	"github.com/drumsbench/drumsbench/arms/overlay"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/observe"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Observe reads the aspects that were asked for; the others stay unknown.
func (t Tree) Observe(view bench.View, aspects []engine.Aspect) (o engine.Observation) {
	proc := fmt.Sprintf("/proc/%d/", t.Pid)
	for _, a := range aspects {
		switch a {
		case engine.AspectLimits:
			o.Limits = t.limits(view)
		case engine.AspectMounts:
			o.Mounts = reading(view, proc+"mountinfo", t.mounts)
		case engine.AspectNetwork:
			o.Network = reading(view, "netlink in "+proc+"ns/net", func() (bench.Network, error) { return observe.NetworkAt(proc + "ns/net") })
		case engine.AspectLocks:
			o.Locks = reading(view, proc+"fdinfo of the tree", func() ([]bench.Lock, error) {
				list, _, err := locks.Census(t.Pid)
				return list, err
			})
		case engine.AspectProcesses:
			o.Processes = reading(view, proc+" of the tree", func() ([]bench.Process, error) {
				list, _, err := procfs.Processes(t.Pid)
				return list, err
			})
		case engine.AspectEnclosure:
			o.Enclosure = reading(view, "/proc of the tree, sock_diag, /proc/locks", t.enclosure)
		case engine.AspectState:
			o.State = reading(view, "layers and upper of the slot", t.state)
		case engine.AspectToolConfig:
			o.ToolConfig = engine.Known(criu.HostConfig(os.Environ(), os.DirFS("/")), "files and environment of the host", engine.ViewHost)
		case engine.AspectMemory:
			o.Memory = t.Memory()
		case engine.AspectObjects:
			o.Objects = procfs.ReadObjects(t.Pid, view)
		case engine.AspectCPU:
			o.CPU = t.Limits.Usage().CPU
		case engine.AspectStorage:
			o.Storage = reading(view, "blocks of the upper layer", func() (int64, error) { return engine.DiskUse(t.Upper) })
		}
	}
	// What was read of a tree that has ended meanwhile is no reading: parts of it were
	// gone, and the pid of one that is not ours to reap may be another process's by now.
	if ended, err := t.Ended(); err != nil {
		return engine.Unobserved(view, aspects, err.Error())
	} else if ended {
		return engine.Unobserved(view, aspects, "the slot is dead: its first process has ended")
	}
	return o
}

func (t Tree) limits(view bench.View) engine.Reading[engine.Limits] {
	tasks, err := procfs.Tasks(t.Pid)
	if err != nil {
		return engine.Unknown[engine.Limits](err.Error(), view)
	}
	pids := make([]int, len(tasks))
	for i, task := range tasks {
		pids[i] = task.Pid
	}
	r := t.Limits.Read(pids)
	if r.Reason() != "" {
		return engine.Unknown[engine.Limits](r.Reason(), view)
	}
	v, _ := r.Get()
	if v.Confinement, err = t.confinement(pids); err != nil {
		return engine.Unknown[engine.Limits](err.Error(), view)
	}
	return engine.Known(v, r.Source()+"; /proc/PID/task/TID/status; what judges devices", view)
}

// confinement is what the tasks of these processes can reach.
func (t Tree) confinement(pids []int) (c engine.Confinement, err error) {
	sets, err := confine.Read(pids)
	if err != nil {
		return c, fmt.Errorf("read capabilities: %w", err)
	}
	devices, err := t.Limits.Devices()
	if err != nil {
		return c, fmt.Errorf("read device policy: %w", err)
	}
	return engine.Confinement{
		Capabilities: confine.Names(sets.Bounding | sets.Held), Devices: strings.Join(devices, ", "),
		Beyond: append(sets.Beyond, confine.Allowed(devices)...),
	}, nil
}

func (t Tree) mounts() ([]bench.Mount, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", t.Pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return observe.ParseMounts(f)
}

func (t Tree) enclosure() ([]bench.Finding, error) {
	found, err := procfs.Enclosure(t.Pid, procfs.Options{EstablishedTCP: t.Policy.EstablishedTCP, Locks: t.Locks, Holders: t.Holders, Tracer: t.Tracer})
	if err != nil {
		return nil, err
	}
	shared, err := sharedMounts(t.Pid)
	if err != nil || t.Strays == nil {
		return append(found, shared...), err
	}
	strays, err := t.Strays()
	return append(append(found, shared...), strays...), err
}

// sharedMounts names the slot's mounts whose file system the host mounts too: a
// bind of a whole tmpfs has the file system's own root and looks like the slot's.
func sharedMounts(pid int) ([]bench.Finding, error) {
	host, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	type device struct{ major, minor int }
	of := map[device]string{}
	for _, m := range host {
		of[device{m.Major, m.Minor}] = m.Mountpoint
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	slot, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return nil, err
	}
	found := []bench.Finding{}
	for _, m := range slot {
		if at, shared := of[device{m.Major, m.Minor}]; shared {
			found = append(found, bench.Finding{Verdict: engine.Fail, Subject: m.Mountpoint,
				Text: "is the host's " + m.FSType + " that is mounted on " + at, Want: "a file system of the slot's own", Have: m.Source,
				Hint: "mount nothing of the host in a slot; unmount it, or give the slot its own"})
		}
	}
	return found, nil
}

// state is the collapsed difference of the slot's layers and tmpfs against the image.
func (t Tree) state() (bench.StateManifest, error) {
	mounts, err := t.mounts()
	if err != nil {
		return bench.StateManifest{}, err
	}
	tmpfs := map[string]string{}
	for _, m := range mounts {
		if m.Fstype == "tmpfs" {
			tmpfs[m.Point] = fmt.Sprintf("/proc/%d/root/%s", t.Pid, strings.TrimPrefix(m.Point, "/"))
		}
	}
	return overlay.State(overlay.StateOptions{
		Image: t.Image, Layers: t.Layers, Upper: t.Upper, Work: t.Work, Tmpfs: tmpfs, Exclude: t.Exclude, Cache: t.Hashes,
	})
}

func reading[T any](view bench.View, source string, read func() (T, error)) engine.Reading[T] {
	v, err := read()
	if err != nil {
		return engine.Unknown[T](err.Error(), view)
	}
	return engine.Known(v, source, view)
}

package tree

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A slot outlives the program that made it: its tree hangs on nothing of ours,
// its cgroups, folders and the mount of the image stay. What another process
// needs to go on with it is written down in the place's handle and the ledger.

// Handle describes a place: its name, how many tenancies it has had, and the one
// that it has now, or nil.
func (g *Groups) Handle(name string, tenancies int, root *Root, group *cgroup.Group, t *Tenancy) (bench.PlaceHandle, error) {
	h := bench.PlaceHandle{
		Name: bench.Name(name), State: "vacant", Tenancies: int64(tenancies), Image: root.Dir(),
		Ownership: g.Run.Path(), Tools: g.Tools.Path(), Group: group.Path(),
	}
	if t == nil {
		return h, nil
	}
	h.Tenancy = &bench.TenancyHandle{
		Folder: t.Dir, Process: t.Process, Limits: []string{}, Layers: NonNil(t.Layers), Policy: t.Policy, Exclude: NonNil(t.Exclude),
	}
	if t.Limits == nil || t.Process < 0 {
		return h, &engine.Error{Op: "describe " + name, Err: fmt.Errorf("%w: the place was left half-made", engine.ErrUnknown)}
	}
	h.Tenancy.Limits = append(h.Tenancy.Limits, t.Limits.Paths()...)
	for _, k := range t.absent {
		h.Tenancy.Limits = append(h.Tenancy.Limits, k.Path)
	}
	if t.From != nil {
		h.Tenancy.From = t.From.Dir
	}
	switch {
	case t.Pid == 0 && t.died == "":
	case t.Held:
		h.State = "stopped"
	default:
		h.State = "running"
	}
	return h, nil
}

// AdoptTenancy takes over a life of a slot in its group: its folder, its limits
// and, while it lives, its first process, by pid and start time. Of the
// checkpoint that it came from only the folder is known. Nothing is written to
// the ledger. Of a vacant place limits may be absent: runc takes those of a
// container that it dumped away. Where systemd made its limits, they are the group
// that its processes are in.
func AdoptTenancy(owner *cgroup.Owner, group *cgroup.Group, things Owned, h bench.TenancyHandle, state string) (*Tenancy, error) {
	folder, err := things.One("directory", h.Folder)
	if err != nil {
		return nil, err
	}
	if err := things.Present("directory", h.Folder); err != nil {
		return nil, err
	}
	t := &Tenancy{Dir: h.Folder, DirID: folder.Id, Layers: h.Layers, Policy: h.Policy, Exclude: h.Exclude, Process: h.Process, Held: state == "stopped"}
	if h.From != "" {
		t.From = &engine.Checkpoint{Dir: h.From}
	}
	var limits []cgroup.Known
	for _, path := range h.Limits {
		known, err := things.Group(path)
		if err != nil {
			return nil, err
		}
		if state == "vacant" {
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				t.absent = append(t.absent, known)
				continue
			}
		}
		limits = append(limits, known)
	}
	// Those that are left of a vacant place's limits bind nobody: they are only taken
	// away, and need not be on every hierarchy. Each is the ledger's all the same.
	if t.Limits, err = owner.AdoptLimits(limits); err != nil && (t.Limits == nil || len(t.absent) == 0) {
		return nil, err
	}
	if state == "vacant" {
		return t, nil
	}
	if scope := t.Limits.Scope(); scope != nil {
		group = scope
	}
	first, err := things.Process(h.Process)
	if err != nil {
		return nil, err
	}
	t.adopted, err = procfs.Open(first)
	if err == nil {
		var ended bool
		if ended, err = t.adopted.Exited(); err == nil && !ended {
			return t, t.enter(group, first)
		}
		t.adopted.Close()
		t.adopted = nil
	}
	if err != nil && !errors.Is(err, engine.ErrDead) {
		return nil, err
	}
	t.died = fmt.Sprintf(": pid %d, which started at tick %s, is no more", first.Pid, first.StartTicks)
	return t, nil
}

// enter opens what is reached through the first process, and requires that it
// is where the slot is.
func (t *Tenancy) enter(group *cgroup.Group, first bench.Identity) error {
	pids, err := group.Pids()
	if err != nil {
		return err
	}
	if !slices.Contains(pids, int(first.Pid)) {
		return Refused("pid %d is not in the slot's control group %s", first.Pid, group.Path())
	}
	if t.Net, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", first.Pid)); err != nil {
		return err
	}
	if ended, err := t.adopted.Exited(); err != nil || ended {
		t.Net.Close()
		t.Net = nil
		return Refused("pid %d ended while it was taken over", first.Pid)
	}
	t.Pid = int(first.Pid)
	return nil
}

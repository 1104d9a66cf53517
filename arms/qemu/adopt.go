package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A slot outlives the program that made it: its machine hangs on nothing of
// ours, its cgroups and folders stay, and QEMU greets the next one that connects.
// What another process needs to go on with it is written down in the place's
// handle, in the tenancy's folder and in the ledger.

// Handle implements engine.Lasting. The image's "mount point" is its file.
func (p *place) Handle() (bench.PlaceHandle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := bench.PlaceHandle{
		Name: bench.Name(p.name), State: "vacant", Tenancies: int64(p.next), Image: p.root.path,
		Ownership: p.arm.owner.Path(), Tools: p.arm.tools.Path(), Group: p.group.Path(),
	}
	t := p.now
	if t == nil {
		return h, nil
	}
	h.Tenancy = &bench.TenancyHandle{
		Folder: t.dir, Process: t.procID, Limits: []string{}, Layers: []string{}, Policy: t.policy, Exclude: nonNil(t.exclude),
	}
	if t.limits == nil || t.procID < 0 {
		return h, &engine.Error{Op: "describe " + p.name, Err: fmt.Errorf("%w: the place was left half-made", engine.ErrUnknown)}
	}
	h.Tenancy.Limits = append(h.Tenancy.Limits, t.limits.Paths()...)
	for _, k := range t.absent {
		h.Tenancy.Limits = append(h.Tenancy.Limits, k.Path)
	}
	if t.from != nil {
		h.Tenancy.From = t.from.Dir
	}
	switch {
	case t.pid == 0 && t.died == "", t.parked:
	case t.held:
		h.State = "stopped"
	default:
		h.State = "running"
	}
	return h, nil
}

// Adopt implements engine.Adopter.
func (a *Arm) Adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (engine.Root, engine.Place, error) {
	r, pl, err := a.adopt(ctx, ws, p)
	if err != nil {
		var e *engine.Error
		if !errors.As(err, &e) {
			err = &engine.Error{Op: "adopt " + string(p.Place.Name), Err: err}
		}
		return nil, nil, err
	}
	switch p.Place.State {
	case "running":
		return r, &slot{pl}, nil
	case "stopped":
		return r, &stopped{pl}, nil
	}
	return r, pl, nil
}

func (a *Arm) adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (_ *root, _ *place, err error) {
	things := owned(p.Owned)
	if err := a.Usable(); err != nil {
		return nil, nil, err
	}
	if err := things.present("directory", ws.Work); err != nil {
		return nil, nil, err
	}
	if err := a.adoptGroups(ws, things, p.Place); err != nil {
		return nil, nil, err
	}
	r, err := openRoot(ctx, ws, p.Image)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.file.Close())
		}
	}()
	if r.path != p.Place.Image {
		return nil, nil, refused("the image was %s and is %s", p.Place.Image, r.path)
	}
	r.adopted = true
	if r.boot, err = a.takeBoot(ctx, ws, r, p.Image, a.tools); err != nil {
		return nil, nil, err
	}
	pl := &place{arm: a, ws: ws, root: r, name: string(p.Place.Name), next: int(p.Place.Tenancies)}
	known, err := things.group(p.Place.Group)
	if err != nil {
		return nil, nil, err
	}
	if pl.group, err = a.owner.AdoptGroup(pl.name, known); err != nil {
		return nil, nil, err
	}
	if p.Place.Tenancy != nil {
		if pl.now, err = pl.adopt(ctx, things, *p.Place.Tenancy, p.Place.State); err != nil {
			return nil, nil, err
		}
	}
	return r, pl, nil
}

// adoptGroups takes over the run's ownership cgroup and that of the tools.
func (a *Arm) adoptGroups(ws *engine.Workspace, things owned, h bench.PlaceHandle) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owner != nil {
		return errors.New("adopt place: the arm has begun a run of its own")
	}
	owner, err := things.group(h.Ownership)
	if err != nil {
		return err
	}
	tools, err := things.group(h.Tools)
	if err != nil {
		return err
	}
	if a.owner, err = cgroup.AdoptOwner(ws, owner, map[string]int{string(h.Name): int(h.Tenancies)}); err != nil {
		return err
	}
	a.tools, err = a.owner.AdoptGroup("tools", tools)
	return err
}

// adopt takes over a life of the slot: its folder, its limits and, while it
// lives, its machine, by pid and start time.
func (p *place) adopt(ctx context.Context, things owned, h bench.TenancyHandle, state string) (*tenancy, error) {
	folder, err := things.one("directory", h.Folder)
	if err != nil {
		return nil, err
	}
	if err := things.present("directory", h.Folder); err != nil {
		return nil, err
	}
	t := &tenancy{dir: h.Folder, dirID: folder.Id, policy: h.Policy, exclude: h.Exclude, procID: h.Process, held: state == "stopped", self: p.root.boot.self(), tool: p.arm.tool, watch: p.arm.watch}
	if h.From != "" {
		t.from = &engine.Checkpoint{Dir: h.From}
	}
	text, err := os.ReadFile(t.file(shapeFile))
	if err == nil {
		err = json.Unmarshal(text, &t.shape)
	}
	if err != nil {
		return nil, err
	}
	var limits []cgroup.Known
	for _, path := range h.Limits {
		known, err := things.group(path)
		if err != nil {
			return nil, err
		}
		if state == "vacant" {
			// Where limits live on v2 they went with the slot's group, which the dump killed.
			if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
				t.absent = append(t.absent, known)
				continue
			}
		}
		limits = append(limits, known)
	}
	// What is left of a vacant place's limits binds nobody and is only taken away.
	if t.limits, err = p.arm.owner.AdoptLimits(limits); err != nil && (t.limits == nil || len(t.absent) == 0) {
		return nil, err
	}
	if state == "vacant" {
		return t, nil
	}
	machine, err := things.process(h.Process)
	if err != nil {
		return nil, err
	}
	t.adopted, err = procfs.Open(machine)
	if err == nil {
		var ended bool
		if ended, err = t.adopted.Exited(); err == nil && !ended {
			if err = p.enter(ctx, t, machine); err != nil {
				t.adopted.Close()
			}
			return t, err
		}
		t.adopted.Close()
		t.adopted = nil
	}
	if err != nil && !errors.Is(err, engine.ErrDead) {
		return nil, err
	}
	t.died = fmt.Sprintf(": pid %d, which started at tick %s, is no more", machine.Pid, machine.StartTicks)
	return t, nil
}

// enter opens what is reached through QEMU, and requires that it is where the
// slot is and what it was.
func (p *place) enter(ctx context.Context, t *tenancy, machine bench.Identity) (err error) {
	pids, err := p.group.Pids()
	if err != nil {
		return err
	}
	if !slices.Contains(pids, int(machine.Pid)) {
		return refused("pid %d is not in the slot's control group %s", machine.Pid, p.group.Path())
	}
	if err := p.arm.tool.runs(int(machine.Pid)); err != nil {
		return err
	}
	if t.net, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", machine.Pid)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.net.Close()
			t.net = nil
		}
	}()
	if err := t.attach(ctx); err != nil {
		return err
	}
	defer t.detach()
	if ended, err := t.adopted.Exited(); err != nil || ended {
		return refused("pid %d ended while it was taken over", machine.Pid)
	}
	vcpus, memory, err := t.hardware(ctx)
	if err != nil {
		return err
	}
	if vcpus != t.shape.VCPUs || memory != t.shape.Memory {
		return refused("the machine has %d vcpus and %d bytes of memory, it had %d and %d", vcpus, memory, t.shape.VCPUs, t.shape.Memory)
	}
	have, err := accelerator(ctx, t.mon.qmp)
	if err != nil {
		return err
	}
	if have != p.arm.settings.Accel {
		return refused("the machine runs with accelerator %s, asked is %s", have, p.arm.settings.Accel)
	}
	t.pid = int(machine.Pid)
	return nil
}

// OpenCheckpoint implements engine.CheckpointOpener.
func (a *Arm) OpenCheckpoint(ctx context.Context, r engine.Root, dir string) (engine.Checkpoint, error) {
	mounted, ok := r.(*root)
	if !ok {
		return engine.Checkpoint{}, fmt.Errorf("open checkpoint: root of another arm: %T", r)
	}
	cp, err := checkpoint.Open(dir)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	_, err = a.usable(ctx, mounted, cp, nil)
	return cp, err
}

// owned are the things of a ledger that are not gone.
type owned []bench.OwnedThing

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", engine.ErrRefused, fmt.Sprintf(format, args...))
}

// one is the thing of a kind at a path. It is bound to an identity.
func (o owned) one(kind, path string) (bench.OwnedThing, error) {
	var found *bench.OwnedThing
	for i, t := range o {
		if t.Kind != kind || t.Claim.Path != path {
			continue
		}
		if found != nil {
			return *found, refused("the ledger has two of %s %s", kind, path)
		}
		found = &o[i]
	}
	if found == nil || found.Identity == nil {
		return bench.OwnedThing{}, refused("the ledger has no identity for %s %s", kind, path)
	}
	return *found, nil
}

func (o owned) group(path string) (cgroup.Known, error) {
	t, err := o.one("cgroup", path)
	if err != nil {
		return cgroup.Known{}, err
	}
	return cgroup.Known{ID: t.Id, Path: path, Identity: *t.Identity}, nil
}

func (o owned) process(id int64) (bench.Identity, error) {
	for _, t := range o {
		if t.Id == id && t.Kind == "process" && t.Identity != nil && t.Identity.Pid > 0 && t.Identity.StartTicks != "" {
			return *t.Identity, nil
		}
	}
	return bench.Identity{}, refused("the ledger has no process with number %d", id)
}

// present requires that what lies at a path is the thing.
func (o owned) present(kind, path string) error {
	t, err := o.one(kind, path)
	if err != nil {
		return err
	}
	have, err := fileIdentity(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && have != *t.Identity {
		return refused("%s %s is gone, or another one has its name", kind, path)
	}
	return err
}

// imagePath is where the image of a manifest lies.
func imagePath(ws *engine.Workspace, i bench.Image) string {
	if filepath.IsAbs(i.File) {
		return i.File
	}
	return filepath.Join(ws.State, "images", i.File)
}

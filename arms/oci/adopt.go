package oci

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/checkpoint"
	"github.com/drumsbench/drumsbench/arms/image"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// A slot outlives the program that made it: its tree hangs on nothing of ours,
// its cgroups, folders, runc's state, the mount of the image and the holder of its
// network namespace stay. What another process needs to go on with it is written
// down in the place's handle and the ledger.

// Handle implements engine.Lasting.
func (p *place) Handle() (bench.PlaceHandle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := bench.PlaceHandle{
		Name: bench.Name(p.name), State: "vacant", Tenancies: int64(p.next), Image: p.root.Dir(),
		Ownership: p.arm.owner.Path(), Tools: p.arm.tools.Path(), Group: p.group.Path(),
	}
	t := p.now
	if t == nil {
		return h, nil
	}
	h.Tenancy = &bench.TenancyHandle{
		Folder: t.dir, Process: t.procID, Limits: []string{}, Layers: tree.NonNil(t.layers), Policy: t.policy, Exclude: tree.NonNil(t.exclude),
	}
	if t.limits == nil || t.procID == 0 {
		return h, &engine.Error{Op: "describe " + p.name, Err: fmt.Errorf("%w: the place was left half-made", engine.ErrUnknown)}
	}
	for _, procs := range t.limits.Dirs() {
		h.Tenancy.Limits = append(h.Tenancy.Limits, filepath.Dir(procs))
	}
	if t.from != nil {
		h.Tenancy.From = t.from.Dir
	}
	switch {
	case t.pid == 0 && t.died == "":
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
		return nil, nil, wrapped("adopt "+string(p.Place.Name), err)
	}
	switch p.Place.State {
	case "running":
		return r, &slot{pl}, nil
	case "stopped":
		return r, &stopped{pl}, nil
	}
	return r, pl, nil
}

func (a *Arm) adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (*root, *place, error) {
	things := tree.Owned(p.Owned)
	kdat, err := a.tool.Kdat(tree.KdatDir(ws.State))
	if err == nil {
		err = kdat.Ensure(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := things.Present("directory", ws.Work); err != nil {
		return nil, nil, err
	}
	if err := a.adoptGroups(ws, things, p.Place); err != nil {
		return nil, nil, err
	}
	r, err := a.adoptRoot(ctx, ws, things, p)
	if err != nil {
		return nil, nil, err
	}
	pl := &place{arm: a, ws: ws, root: r, name: string(p.Place.Name), next: int(p.Place.Tenancies)}
	for name, to := range map[string]**cgroup.Group{pl.name: &pl.group, pl.name + "-runc": &pl.helpers} {
		known, err := things.Group(strings.TrimSuffix(p.Place.Group, pl.name) + name)
		if err != nil {
			return nil, nil, err
		}
		if *to, err = a.owner.AdoptGroup(name, known); err != nil {
			return nil, nil, err
		}
	}
	if p.Place.Tenancy != nil {
		if pl.now, err = pl.adopt(things, *p.Place.Tenancy, p.Place.State); err != nil {
			return nil, nil, err
		}
	}
	if a.settings.Namespace == holderNamespace {
		if pl.holder, err = pl.adoptHolder(things); err != nil {
			return nil, nil, err
		}
	}
	return r, pl, nil
}

// adoptGroups takes over the run's ownership cgroup and that of the tools.
func (a *Arm) adoptGroups(ws *engine.Workspace, things tree.Owned, h bench.PlaceHandle) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owner != nil {
		return errors.New("adopt place: the arm has begun a run of its own")
	}
	owner, err := things.Group(h.Ownership)
	if err != nil {
		return err
	}
	tools, err := things.Group(h.Tools)
	if err != nil {
		return err
	}
	if a.owner, err = cgroup.AdoptOwner(ws, owner, map[string]int{string(h.Name): int(h.Tenancies)}); err != nil {
		return err
	}
	a.tools, err = a.owner.AdoptGroup("tools", tools)
	return err
}

// adoptRoot takes over the mounted image.
func (a *Arm) adoptRoot(ctx context.Context, ws *engine.Workspace, things tree.Owned, p bench.AdoptParams) (*root, error) {
	mount, err := things.One("mount", p.Place.Image)
	if err != nil {
		return nil, err
	}
	at := image.Adopted{Dir: p.Place.Image, Mount: *mount.Identity, Device: mount.Claim.Backing}
	for _, t := range things {
		switch {
		case t.Kind == "loop" && t.Identity != nil && t.Identity.Loop == at.Device:
			at.Loop = t.Identity
		case t.Kind == "export" && t.Identity != nil:
			if alive, err := procfs.Alive(*t.Identity); err != nil || !alive {
				return nil, tree.Refused("the program that shows the image, pid %d, has ended (%v)", t.Identity.Pid, err)
			}
		}
	}
	if at.Loop == nil && a.settings.Attach != image.MethodNBD {
		return nil, tree.Refused("the ledger has no loop device for %s", at.Device)
	}
	m, err := image.Adopt(ctx, image.AttachOptions{
		Path: imagePath(ws, p.Image), Image: p.Image, Method: a.settings.Attach, CacheDir: image.CacheDir(ws.State),
	}, at)
	if err != nil {
		return nil, err
	}
	return &root{Mounted: m, sha256: p.Image.Sha256}, nil
}

// adopt takes over a life of the slot: its folder, its limits and, while it
// lives, its first process, by pid and start time.
func (p *place) adopt(things tree.Owned, h bench.TenancyHandle, state string) (*tenancy, error) {
	folder, err := things.One("directory", h.Folder)
	if err != nil {
		return nil, err
	}
	if err := things.Present("directory", h.Folder); err != nil {
		return nil, err
	}
	t := &tenancy{id: "drums-" + p.ws.ID + "-" + filepath.Base(h.Folder), dir: h.Folder, dirID: folder.Id,
		layers: h.Layers, policy: h.Policy, exclude: h.Exclude, procID: h.Process, held: state == "stopped"}
	if h.From != "" {
		cp, err := checkpoint.Open(h.From)
		if err != nil {
			return nil, err
		}
		t.from = &cp
		if t.stopped, err = stoppedIn(cp); err != nil {
			return nil, err
		}
	}
	var limits []cgroup.Known
	for _, path := range h.Limits {
		known, err := things.Group(path)
		if err != nil {
			return nil, err
		}
		limits = append(limits, known)
	}
	if t.limits, err = p.arm.owner.AdoptLimits(limits); err != nil {
		return nil, err
	}
	if state == "vacant" {
		return t, nil
	}
	first, err := things.Process(h.Process)
	if err != nil {
		return nil, err
	}
	t.adopted, err = procfs.Open(first)
	if err == nil {
		var ended bool
		if ended, err = t.adopted.Exited(); err == nil && !ended {
			return t, p.enter(t, first)
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
func (p *place) enter(t *tenancy, first bench.Identity) error {
	pids, err := p.group.Pids()
	if err != nil {
		return err
	}
	if !slices.Contains(pids, int(first.Pid)) {
		return tree.Refused("pid %d is not in the slot's control group %s", first.Pid, p.group.Path())
	}
	if t.net, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", first.Pid)); err != nil {
		return err
	}
	if ended, err := t.adopted.Exited(); err != nil || ended {
		t.net.Close()
		t.net = nil
		return tree.Refused("pid %d ended while it was taken over", first.Pid)
	}
	t.pid = int(first.Pid)
	return nil
}

// adoptHolder takes over the process that keeps the slot's network namespace: of
// several in one ledger the one whose namespace the slot's first process is in.
func (p *place) adoptHolder(things tree.Owned) (*netns.Holder, error) {
	inode := ""
	if t := p.now; t != nil && t.pid != 0 {
		ns, err := procfs.NamespaceOf(t.pid, "net")
		if err != nil {
			return nil, err
		}
		inode = fmt.Sprint(ns.Ino)
	}
	var found []bench.OwnedThing
	for _, o := range things {
		// A first process has no device and inode.
		if o.Kind != "process" || o.Identity == nil || o.Identity.Ino == "" || o.Claim.Cgroup != p.arm.tools.Path() {
			continue
		}
		if inode == "" || string(o.Identity.Ino) == inode {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		return nil, tree.Refused("the ledger has %d holders of the slot's network namespace, not one", len(found))
	}
	return netns.AdoptHolder(p.ws.Ledger, found[0].Id, *found[0].Identity)
}

package oci

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/drumsbench/drumsbench/arms/cgroup"
	"github.com/drumsbench/drumsbench/arms/netns"
	"github.com/drumsbench/drumsbench/arms/procfs"
	"github.com/drumsbench/drumsbench/arms/tree"
	"github.com/drumsbench/drumsbench/engine"
	"github.com/drumsbench/drumsbench/engine/checkpoint"
	"github.com/drumsbench/drumsbench/schemas/bench"
)

// Handle implements engine.Lasting.
func (p *place) Handle() (bench.PlaceHandle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.arm.groups.Handle(p.name, p.next, p.root.Root, p.group, p.now.life())
}

// Adopt implements engine.Adopter.
func (a *Arm) Adopt(ctx context.Context, ws *engine.Workspace, p bench.AdoptParams) (engine.Root, engine.Place, error) {
	return tree.One(a.Inherit(ctx, ws, p.Image, []bench.PlaceHandle{p.Place}, p.Owned))
}

// Inherit implements engine.Heir.
func (a *Arm) Inherit(ctx context.Context, ws *engine.Workspace, image bench.Image, places []bench.PlaceHandle, owned []bench.OwnedThing) (engine.Inheritance, error) {
	return tree.Inherit(ctx, ws, &a.groups, a.tool, image, places, owned, a.settings.Attach, func(r *tree.Root, things tree.Owned) (engine.Root, func(bench.PlaceHandle) (engine.Place, error)) {
		mounted := &root{r}
		return mounted, func(h bench.PlaceHandle) (engine.Place, error) {
			pl, err := a.adopt(ws, mounted, h, things)
			if err == nil && ws.TakeAway != nil {
				err = pl.now.life().Alone(pl.group)
			}
			switch {
			case err != nil:
				return nil, err
			case h.State == "running":
				return &slot{pl}, nil
			case h.State == "stopped":
				return &stopped{pl}, nil
			}
			return pl, nil
		}
	})
}

// adopt takes over one place on an image.
func (a *Arm) adopt(ws *engine.Workspace, r *root, p bench.PlaceHandle, things tree.Owned) (*place, error) {
	pl := &place{arm: a, ws: ws, root: r, name: string(p.Name), next: int(p.Tenancies)}
	for name, to := range map[string]**cgroup.Group{pl.name: &pl.group, pl.name + "-runc": &pl.helpers} {
		known, err := things.Group(strings.TrimSuffix(p.Group, pl.name) + name)
		if err != nil {
			return nil, err
		}
		if *to, err = a.groups.Run.AdoptGroup(name, known); err != nil {
			return nil, err
		}
	}
	var err error
	if p.Tenancy != nil {
		if pl.now, err = pl.adopt(things, *p.Tenancy, p.State); err != nil {
			return nil, err
		}
	}
	if a.settings.Namespace == holderNamespace {
		if pl.holder, err = pl.adoptHolder(things); err != nil {
			return nil, err
		}
	}
	return pl, nil
}

// adopt takes over a life of the slot.
func (p *place) adopt(things tree.Owned, h bench.TenancyHandle, state string) (*tenancy, error) {
	life, err := tree.AdoptTenancy(p.arm.groups.Run, p.group, things, h, state)
	if err != nil {
		return nil, err
	}
	t := &tenancy{Tenancy: *life, id: p.containerID(filepath.Base(h.Folder))}
	if t.From != nil {
		cp, err := checkpoint.Open(t.From.Dir)
		if err != nil {
			return nil, err
		}
		t.From = &cp
		if t.Stopped, err = stoppedIn(cp); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// adoptHolder takes over the process that keeps the slot's network namespace: of
// several in one ledger the one whose namespace the slot's first process is in.
func (p *place) adoptHolder(things tree.Owned) (*netns.Holder, error) {
	inode := ""
	if t := p.now; t != nil && t.Pid != 0 {
		ns, err := procfs.NamespaceOf(t.Pid, "net")
		if err != nil {
			return nil, err
		}
		inode = fmt.Sprint(ns.Ino)
	}
	var found []bench.OwnedThing
	for _, o := range things.Of("process") {
		// A first process has no device and inode.
		if o.Identity == nil || o.Identity.Ino == "" || o.Claim.Cgroup != p.arm.groups.Tools.Path() {
			continue
		}
		if inode == "" || string(o.Identity.Ino) == inode {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		return nil, tree.Refused("the ledger has %d holders of the slot's network namespace, not one", len(found))
	}
	things.Use(found[0])
	return netns.AdoptHolder(p.ws.Ledger, found[0].Id, *found[0].Identity)
}
